"""Adapter of Hugging Face encoder-decoders (Marian, BART, T5, Whisper, ...).

`HfSeq2Seq(model)(source)` is a `Decoder` bound to the source. It takes embeddings and returns
scores; its cache consists of plain tensors that can be gathered or mixed, and gradients flow
through all of it. It calls the model's own `forward`, with its scales, positions and biases.
"""

from collections.abc import Mapping
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

    Sources are token numbers. If `inputs` are given, sources are the rows of these instead, counted
    from 1, in a column: see `rows`.

    Args:
        model: e.g. from `AutoModelForSeq2SeqLM.from_pretrained`; it is trained in place.
        inputs: the encoder's inputs by name, such as the `input_features` of Whisper.
        prefix: the tokens that the outputs of `inputs` begin with, in the model's numbers; the
            model's start token if not given.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Mapping[str, Tensor] | None = None,
        prefix: Int[Tensor, "batch prefix_time"] | None = None,
    ):
        if not model.config.is_encoder_decoder:
            raise UserError(f"{type(model).__name__} is not an encoder-decoder")
        start, pad = setting(model, "decoder_start_token_id"), setting(model, "pad_token_id")
        ends = getattr(model.generation_config, "eos_token_id", None)
        is_end = pad in ends if isinstance(ends, list) else pad == ends
        super().__init__(model, start if is_end else pad)  # Whisper is padded with its end mark
        self.start_id = int(self.order[start])
        self.inputs, self.prefix = inputs, prefix
        self._fast: FastSteps | None = None
        self.has_fast = type(model).__name__ in OFFSETS  # False after they were tried and differed

    def fast(self) -> FastSteps | None:
        """Faster steps with the weights of now; None while the model trains, or if it has none."""
        if self.model.training or torch.is_grad_enabled() or not self.has_fast:
            return None
        if self._fast is None or self._fast.stamp != stamp(self.model):
            self._fast = FastSteps(self.model)
        return self._fast

    @property
    def rows(self) -> Int[Tensor, "batch 1"]:
        """The sources that stand for all of `inputs`."""
        assert self.inputs is not None
        first = next(iter(self.inputs.values()))
        return torch.arange(1, len(first) + 1, device=first.device)[:, None]

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "HfSeq2SeqDecoder":
        return HfSeq2SeqDecoder(self, source)

    def encoder_inputs(self, source: Int[Tensor, "batch source_time"]) -> dict[str, Tensor]:
        """What the encoder reads for some sources, by name."""
        if self.inputs is None:
            return {"input_ids": self.renumbered(source), "attention_mask": (source != 0).long()}
        return {name: value[source[:, 0] - 1] for name, value in self.inputs.items()}

    def beginnings(self, source: Int[Tensor, "batch source_time"]) -> Int[Tensor, "batch time"]:
        """The tokens that the outputs of some sources begin with, in the numbers used here."""
        if self.prefix is None:
            return source.new_full((len(source), 1), self.start_id)
        return self.renumbered(self.prefix[source[:, 0] - 1])


class HfSeq2SeqDecoder(HfDecoder):
    """An encoder-decoder bound to its sources; a first step computes their keys and values."""

    def __init__(self, adapter: HfSeq2Seq, source: Int[Tensor, "batch source_time"]):
        inputs = adapter.encoder_inputs(source)
        encoded = adapter.model.get_encoder()(**inputs).last_hidden_state
        self.masked = "attention_mask" in inputs
        real = (
            inputs["attention_mask"].bool()
            if self.masked
            else encoded.new_ones(encoded.shape[:2], dtype=torch.bool)
        )
        begun = adapter.embedding()[adapter.beginnings(source)]
        with adapter.cached():
            tried = adapter.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                attention_mask=real.long() if self.masked else None,
                decoder_inputs_embeds=begun,
                use_cache=True,
            )
        caches, first = tried.past_key_values, begun[:, -1]
        cross = as_state(caches.cross_attention_cache)
        before = as_state(caches.self_attention_cache, stop=begun.shape[1] - 1)
        super().__init__(adapter, first, before, Sources(encoded, real, cross))
        self.fast = adapter.fast()
        if self.fast is not None:
            with torch.no_grad():
                scores, _ = self.fast(first, self.empty, cross, real)
            if not torch.allclose(scores, tried.logits[:, -1], rtol=1e-3, atol=1e-3):
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
            attention_mask=real.long() if self.masked else None,
            decoder_inputs_embeds=emb,
            past_key_values=EncoderDecoderCache(as_cache(state), as_cache(cross)),
            use_cache=True,
        )
        return outputs.logits, as_state(outputs.past_key_values.self_attention_cache)
