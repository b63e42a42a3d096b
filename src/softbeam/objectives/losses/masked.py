"""Masked cross-entropy, and functions that choose which tokens are hidden."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from softbeam.tensors import moved, rank, uniform
from softbeam.types import Loss, MaskedLM


def hidden_uniformly(real: Bool[Tensor, "rows time"], rng: Generator) -> Bool[Tensor, "rows time"]:
    """Hide a uniformly drawn number (1 to n) of each row's n real tokens."""
    size = real.sum(1)
    count = 1 + (uniform((len(real),), rng, real.device, None) * size).long()
    key = uniform(real.shape, rng, real.device, None)
    return real & (rank(key.masked_fill(~real, float("inf"))) < count[:, None])


Hide = Callable[[Tensor, Generator], Tensor]  # real tokens -> hidden ones, some in each row


def hidden_at_rate(
    real: Bool[Tensor, "rows time"], rng: Generator, *, rate: float = 0.15
) -> Bool[Tensor, "rows time"]:
    """Hide each real token with this probability, and at least one in each row (BERT)."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate} must be above 0 and at most 1")
    u = uniform(real.shape, rng, real.device, None).masked_fill(~real, 2.0)
    return real & ((u < rate) | (u == u.amin(-1, keepdim=True)))


def masked_cross_entropy(
    mlm: MaskedLM, tokens: Int[Tensor, "rows time"], hidden: Bool[Tensor, "rows time"]
) -> Loss:
    """Sum -log p of the hidden tokens given the others; the size is their number."""
    logits = mlm.logits(tokens, hidden, torch.zeros_like(tokens[:, 0]))
    total = cross_entropy(logits, moved(tokens[hidden], logits.device), reduction="sum")
    return Loss(total, int(hidden.sum()), {})
