"""Adapter of Hugging Face causal language models (GPT-2, Llama, ...).

`HfCausalLM(model)(prompt)` is a `Decoder` whose source is the prompt; the output continues it. The
keys and values of the prompts belong to the sources; the state is the cache of the output.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.errors import UserError
from softbeam.models.huggingface.decoder import (
    HfDecoder,
    HfModel,
    State,
    as_cache,
    as_state,
    setting,
)


class Prompts(NamedTuple):
    """The tokens before the last one of each prompt, padded on the right."""

    cache: State
    real: Bool[Tensor, "batch prompt_time"]
    lengths: Int[Tensor, " batch"]


class HfCausalLM(HfModel):
    """A Hugging Face causal language model; 0 is padding, on the right of prompts and outputs.

    Args:
        model: e.g. from `AutoModelForCausalLM.from_pretrained`; it is trained in place.
        pad_id: the model's number of a token that no text holds; by default its padding token. It
            must differ from the end mark, with which many such models are padded.
    """

    def __init__(self, model: Any, pad_id: int | None = None):
        config = model.config
        if config.is_encoder_decoder:
            raise UserError(f"{type(model).__name__} is an encoder-decoder")
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
            raise UserError(
                f"{type(model).__name__} has layers that do not attend to all of the past"
            )
        super().__init__(model, setting(model, "pad_token_id") if pad_id is None else pad_id)

    def forward(self, source: Int[Tensor, "batch source_time"]) -> "HfCausalDecoder":
        return HfCausalDecoder(self, source)


class HfCausalDecoder(HfDecoder):
    """A causal language model bound to its prompts."""

    def __init__(self, adapter: HfCausalLM, source: Int[Tensor, "batch source_time"]):
        lengths = (source != 0).sum(1)
        if int(lengths.min()) < 1:
            raise ValueError(
                f"prompt {int(lengths.argmin())} has no token; it must have at least 1"
            )
        ids = adapter.renumbered(source)
        every = torch.ones_like(ids)  # no token sees the padding after it
        with adapter.cached():
            outputs = adapter.model.base_model(input_ids=ids, attention_mask=every, use_cache=True)
        whole = as_state(outputs.past_key_values)
        before = tuple((key[:, :, :-1], value[:, :, :-1]) for key, value in whole)
        place = torch.arange(source.shape[1] - 1, device=source.device)
        sources = Prompts(before, place < lengths[:, None] - 1, lengths)
        last = source.gather(1, lengths[:, None] - 1)[:, 0]
        empty = tuple((key[:, :, :0], value[:, :, :0]) for key, value in whole)
        super().__init__(adapter, adapter.embedding()[last], empty, sources)

    def extend(
        self, state: State, emb: Float[Tensor, "rows time emb"]
    ) -> tuple[Float[Tensor, "rows time vocab"], State]:
        prompts, before = self.widened(len(emb)), state[0][0].shape[2]
        time = before + emb.shape[1]
        self.check_positions(int(prompts.lengths.max()) - 1 + time)
        both = zip(prompts.cache, state, strict=True)
        past = tuple((torch.cat([a[0], b[0]], 2), torch.cat([a[1], b[1]], 2)) for a, b in both)
        new = torch.arange(before, time, device=emb.device)
        outputs = self.adapter.model(
            inputs_embeds=emb,
            attention_mask=torch.cat([prompts.real, prompts.real.new_ones(len(emb), time)], 1),
            position_ids=prompts.lengths[:, None] - 1 + new,
            past_key_values=as_cache(past),
            use_cache=True,
        )
        return outputs.logits, as_state(outputs.past_key_values, first=prompts.real.shape[1])
