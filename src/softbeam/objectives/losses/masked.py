"""Masked cross-entropy, and functions that choose which tokens are hidden."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from softbeam.tensors import moved, rank, uniform
from softbeam.types import Loss, MaskedLM, OnePassMlm


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


def hidden_or_none(real: Bool[Tensor, "rows time"], rng: Generator) -> Bool[Tensor, "rows time"]:
    """Hide nothing in half of the rows, and a uniformly drawn number of tokens in the others."""
    some = uniform((len(real), 1), rng, real.device, None) < 0.5
    return hidden_uniformly(real, rng) & some


def masked_cross_entropy(
    mlm: MaskedLM, tokens: Int[Tensor, "rows time"], hidden: Bool[Tensor, "rows time"]
) -> Loss:
    """Sum -log p of the hidden tokens given the others; the size is their number."""
    logits = mlm.logits(tokens, hidden, torch.zeros_like(tokens[:, 0]))
    total = cross_entropy(logits, moved(tokens[hidden], logits.device), reduction="sum")
    return Loss(total, int(hidden.sum()), {})


def any_order_cross_entropy(
    mlm: MaskedLM, tokens: Int[Tensor, "rows time"], hidden: Bool[Tensor, "rows time"]
) -> Loss:
    """Sum an upper bound of -log p of whole texts, for a uniformly drawn number of hidden tokens.

    A hidden token counts n / count times, for count hidden tokens of n: the weight 1 / t of masked
    diffusion models (Sahoo et al. 2024; Nie et al. 2025). The mean over numbers and choices of
    hidden tokens is the mean of -log p over all orders of the chain rule.
    """
    logits = mlm.logits(tokens, hidden, torch.zeros_like(tokens[:, 0]))
    each = cross_entropy(logits, moved(tokens[hidden], logits.device), reduction="none")
    real = (tokens != mlm.pad_id).sum(-1)
    weight = (real / hidden.sum(-1).clamp_min(1))[hidden.nonzero()[:, 0]]
    return Loss((each * moved(weight, each.device)).sum(), int(real.sum()), {})


def one_pass_cross_entropy(
    mlm: OnePassMlm, tokens: Int[Tensor, "rows time"], hidden: Bool[Tensor, "rows time"]
) -> Loss:
    """Sum -log p of all tokens, each given those of the others that are not hidden."""
    real = tokens != mlm.pad_id
    seen = tokens.masked_fill(hidden, mlm.mask_id)
    logits = mlm.every_logits(seen, torch.zeros_like(tokens[:, 0]))[real]
    total = cross_entropy(logits, moved(tokens[real], logits.device), reduction="sum")
    return Loss(total, int(real.sum()), {})
