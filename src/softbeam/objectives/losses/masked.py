"""Masked cross-entropy, and ways to choose what is masked."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from softbeam.types import Loss, MaskedLM


def hidden_uniformly(real: "Tensor", rng: "Generator") -> "Tensor":
    """For each row a number uniform between one and all of its real cells, and so many of them."""
    size = real.sum(1)
    count = 1 + (torch.rand(len(real), generator=rng, device=real.device) * size).long()
    key = torch.rand(real.shape, generator=rng, device=real.device)
    rank = key.masked_fill(~real, float("inf")).argsort(-1).argsort(-1)
    return real & (rank < count[:, None])


Hide = Callable[[Tensor, Generator], Tensor]  # real cells -> hidden ones, some in each row


def hidden_at_rate(
    real: Bool[Tensor, "rows time"], rng: Generator, *, rate: float = 0.15
) -> Bool[Tensor, "rows time"]:
    """Each real cell by itself with this probability, and at least one in each row (BERT)."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate} must be above 0 and at most 1")
    u = torch.rand(real.shape, generator=rng, device=real.device).masked_fill(~real, 2.0)
    return real & ((u < rate) | (u == u.amin(-1, keepdim=True)))


def masked_cross_entropy(
    mlm: MaskedLM, tokens: Int[Tensor, "rows time"], hidden: Bool[Tensor, "rows time"]
) -> Loss:
    """-log p of the hidden tokens given the others, summed; its size is their number."""
    logits = mlm.logits(tokens, hidden, torch.zeros_like(tokens[:, 0]))
    total = cross_entropy(logits, tokens[hidden], reduction="sum")
    return Loss(total, int(hidden.sum()), {})
