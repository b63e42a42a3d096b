"""Adapter of Hugging Face encoder-decoders (Marian, BART, T5, ...).

`HfSeq2Seq(model)(source)` is a `Decoder` bound to the source. It takes embeddings and returns
scores; its cache consists of plain tensors that can be gathered or mixed, and gradients flow
through all of it. It calls the model's own `forward`, with its scales, positions and biases.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from softbeam.errors import UserError
from softbeam.models.huggingface.decoder import (
    HfDecoder,
    HfModel,
    State,
    as_cache,
    as_state,
    setting,
)
from softbeam.models.huggingface.fast_steps import OFFSETS, FastSteps
from softbeam.models.huggingface.packed import stamp


class Sources(NamedTuple):
    """Encoded sources, which the decoder's layers attend to."""

    encoded: Float[Tensor, "batch source_time width"]
    real: Bool[Tensor, "batch source_time"]
    cross: State  # keys and values of each layer's attention to the source


class HfSeq2Seq(HfModel):
    """A Hugging Face encoder-decoder with a language-model head; 0 is padding on both sides.

    Args:
        model: e.g. from `AutoModelForSeq2SeqLM.from_pretrained`; it is trained in place.
    """

    def __init__(self, model: Any):
        if not model.config.is_encoder_decoder:
            raise UserError(f"{type(model).__name__} is not an encoder-decoder")
        super().__init__(model, setting(model, "pad_token_id"))
        self.start_id = int(self.order[setting(model, "decoder_start_token_id")])
        self._fast: FastSteps | None = None
        self.has_fast = type(model).__name__ in OFFSETS  # False after they were tried and differed

    def fast(self) -> FastSteps | None:
        """Faster steps with the weights of now; None while the model trains, or if it has none."""
        if self.model.training or torch.is_grad_enabled() or not self.has_fast:
            return None
        if self._fast is None or self._fast.stamp != stamp(self.model):
            self._fast = FastSteps(self.model)
        return self._fast

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "HfSeq2SeqDecoder":
        return HfSeq2SeqDecoder(self, source)


class HfSeq2SeqDecoder(HfDecoder):
    """An encoder-decoder bound to its sources; a first step computes their keys and values."""

    def __init__(self, adapter: HfSeq2Seq, source: Int[Tensor, "batch source_time"]):
        real = source != 0
        encoder = adapter.model.get_encoder()
        encoded = encoder(input_ids=adapter.renumbered(source), attention_mask=real.long())
        first = adapter.embedding()[adapter.start_id].expand(len(source), -1)
        with adapter.cached():
            tried = adapter.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded.last_hidden_state),
                attention_mask=real.long(),
                decoder_inputs_embeds=first[:, None],
                use_cache=True,
            )
        caches = tried.past_key_values
        cross = as_state(caches.cross_attention_cache)
        sources = Sources(encoded.last_hidden_state, real, cross)
        super().__init__(adapter, first, as_state(caches.self_attention_cache, first=1), sources)
        self.fast = adapter.fast()
        if self.fast is not None:
            with torch.no_grad():
                scores, _ = self.fast(first, self.empty, cross, real)
            if not torch.allclose(scores, tried.logits[:, 0], rtol=1e-3, atol=1e-3):
                self.fast, adapter.has_fast = None, False

    def step(
        self, state: State, emb: Float[Tensor, "rows emb"]
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        if self.fast is None or torch.is_grad_enabled():
            return super().step(state, emb)
        self.check_positions(state[0][0].shape[2] + 1)
        scores, state = self.fast(emb, state, self.sources.cross, self.sources.real)
        return self.adapter.in_order(scores), state

    def extend(
        self, state: State, emb: Float[Tensor, "rows time emb"]
    ) -> tuple[Float[Tensor, "rows time vocab"], State]:
        self.check_positions(state[0][0].shape[2] + emb.shape[1])
        encoded, real, cross = self.widened(len(emb))
        outputs = self.adapter.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            attention_mask=real.long(),
            decoder_inputs_embeds=emb,
            past_key_values=EncoderDecoderCache(as_cache(state), as_cache(cross)),
            use_cache=True,
        )
        return outputs.logits, as_state(outputs.past_key_values.self_attention_cache)
