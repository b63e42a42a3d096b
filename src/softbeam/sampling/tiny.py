"""Masked language models small enough to list all their texts."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.exact import Space
from softbeam.types import MaskedLM

# A model to try it on


class TinyMLM:
    """A masked language model small enough to list its texts: random, in float64.

    Tokens are 0 padding, 1 mask, 2 a separator, and then the words, which alone are allowed. Each
    masked position hears every other one through a tanh, so that its conditionals are those of no
    joint distribution. Padding adds nothing.

    Args:
        words: number of words.
        sources: number of sources, each with conditionals of its own.
        scale: how far the logits spread; larger is harder to sample.
        seed: of its weights.
    """

    pad_id = 0
    mask_id = 1

    def __init__(self, *, words: int = 3, sources: int = 1, scale: float = 0.5, seed: int = 0):
        rng = torch.Generator().manual_seed(seed)
        vocab, hidden, self.reach = words + 3, 6, 4

        def weights(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        self.allowed = torch.arange(vocab) >= 3
        self.heard = weights(2 * self.reach + 1, vocab, hidden)  # by distance and token
        self.heard[:, self.pad_id] = 0.0
        self.source = weights(sources, hidden)
        self.out, self.bias = scale * weights(hidden, vocab), scale * weights(vocab)

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        row, site = masked.nonzero(as_tuple=True)
        context = tokens.masked_fill(masked, self.mask_id)[row]
        distance = torch.arange(tokens.shape[1]) - site[:, None]
        near = distance.clamp(-self.reach, self.reach) + self.reach
        h = self.heard[near, context].sum(1) + self.source[owner[row]]
        return h.tanh() @ self.out + self.bias


class CountedMlm:
    """A masked language model that counts what it is asked: calls, rows, masked cells."""

    def __init__(self, mlm: MaskedLM):
        self.mlm = mlm
        self.reset()

    def reset(self) -> None:
        self.calls = self.rows = self.cells = 0

    @property
    def pad_id(self) -> int:
        return self.mlm.pad_id

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.mlm.allowed

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        self.calls, self.rows = self.calls + 1, self.rows + len(tokens)
        self.cells += int(masked.sum())
        return self.mlm.logits(tokens, masked, owner)


def every_text(mlm: MaskedLM, *, time: int) -> Int[Tensor, "state time"]:
    """Every text of `time` allowed tokens."""
    forbidden = tuple((~mlm.allowed).nonzero()[:, 0].tolist())
    return torch.cat(list(Space(vocab=len(mlm.allowed), time=time, forbidden=forbidden)))
