"""Masked language models small enough to list all their texts."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from softbeam.exact import Space
from softbeam.sampling.masking import Every, WrappedMlm, in_one_pass
from softbeam.types import MaskedLM


class TinyMLM:
    """A masked language model small enough to list its texts, with random weights in float64.

    Token 0 is padding, 1 the mask, 2 a separator; then follow the words, the only allowed tokens.
    Each masked position depends on every other one through a tanh, so that no joint distribution
    has these conditionals. Padding contributes nothing.

    Args:
        words: the number of words.
        sources: the number of sources, each with its own conditionals.
        scale: the spread of the logits; larger is harder to sample.
        seed: the seed of the weights.
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


class CountedMlm(WrappedMlm):
    """A masked language model that counts its calls, rows and masked cells."""

    def __init__(self, mlm: MaskedLM):
        super().__init__(mlm)
        self.reset()

    def reset(self) -> None:
        """Start counting from 0."""
        self.calls = self.rows = self.cells = 0

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        self.calls, self.rows = self.calls + 1, self.rows + len(tokens)
        self.cells += int(masked.sum())
        return super().logits(tokens, masked, owner)

    @property
    def every_logits(self) -> Every | None:
        """That of the other model, if it has one; a row of it counts as one."""
        every = in_one_pass(self.mlm)
        if every is None:
            return None

        def counted(tokens: Tensor, owner: Tensor) -> Tensor:
            self.calls, self.rows = self.calls + 1, self.rows + len(tokens)
            self.cells += tokens.numel()
            return every(tokens, owner)

        return counted


def every_text(mlm: MaskedLM, *, time: int) -> Int[Tensor, "state time"]:
    """List every text of `time` allowed tokens."""
    forbidden = tuple((~mlm.allowed).nonzero()[:, 0].tolist())
    return torch.cat(list(Space(vocab=len(mlm.allowed), time=time, forbidden=forbidden)))


def every_length(mlm: MaskedLM, *, longest: int) -> Int[Tensor, "state longest"]:
    """List every text of 0 to `longest` allowed tokens, padded on the right."""
    tables = [mlm.allowed.new_zeros(1, 0).long()]
    tables += [every_text(mlm, time=time) for time in range(1, longest + 1)]
    return torch.cat([pad(t, (0, longest - t.shape[1]), value=mlm.pad_id) for t in tables])
