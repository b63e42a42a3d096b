"""Adapter of Hugging Face causal language models that reads one text and keeps its prefixes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor

from softbeam.errors import UserError
from softbeam.models.huggingface.decoder import State, as_cache, as_state
from softbeam.models.huggingface.hub import loading_options
from softbeam.models.huggingface.masked import check_finite, quiet


class HfPrefixLM:
    """A causal language model with its tokenizer; `after(prompt)` binds it to a prompt.

    Args:
        model: the model; it is switched to evaluation, and its parameters are frozen.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any):
        check_finite(model)
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer

    @classmethod
    def load(cls, name: str | Path, *, dtype: torch.dtype = torch.float32) -> "HfPrefixLM":
        """Load the model of a folder, or of a name on the hub; raises UserError if it is none."""
        try:
            options = loading_options(name)
            with quiet():
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    name, dtype=dtype, **options
                )
        except Exception as error:  # transformers raises any class of error for a broken folder
            reason = " ".join(str(error).split())[:400]
            raise UserError(f"{str(name)!r} cannot be loaded as a causal LM: {reason}") from error
        return cls(model, tokenizer)

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        number: int | None = self.tokenizer.eos_token_id
        return number

    def after(self, prompt: str) -> "Prompted":
        """Bind the model to a prompt. Raises UserError if it has no token."""
        ids = [int(i) for i in self.tokenizer(prompt, verbose=False)["input_ids"]]
        if not ids:
            raise UserError("the prompt has no token: a causal LM continues a text")
        return Prompted(self.model, ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Convert tokens to a text, without special ones."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


class Prompted:
    """A causal language model after a prompt, which is read when it is needed first."""

    def __init__(self, model: Any, prompt: Sequence[int]):
        self.model, self.prompt = model, list(prompt)

    def start(self) -> tuple[Float[Tensor, " vocab"], State]:
        """Read the prompt."""
        logits, past = self.step((), self.prompt)
        return logits[-1], past

    @torch.no_grad()
    def step(self, past: State, tokens: Sequence[int]) -> tuple[Float[Tensor, "new vocab"], State]:
        """Read more tokens; the logits after each of them."""
        cache = as_cache(past) if past else transformers.DynamicCache()
        ids = torch.tensor([list(tokens)], device=self.model.device)
        output = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.logits[0], as_state(output.past_key_values)

    def cut(self, past: State, length: int) -> State:
        """Keep the prompt and the first `length` tokens after it."""
        end = len(self.prompt) + length
        return tuple((key[:, :, :end], value[:, :, :end]) for key, value in past)
