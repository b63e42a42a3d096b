"""Losses that compare probabilities of tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import kl_div

# Distillation


def distillation_loss(
    scores: Float[Tensor, "batch time vocab"],
    teacher: Float[Tensor, "batch time vocab"],
    mask: Bool[Tensor, "batch time"],
    *,
    temperature: float = 1.0,
) -> Float[Tensor, " batch"]:
    """temperature^2 * KL(teacher || student) of real steps (Hinton et al. 2015).

    Zero exactly where both have the same distributions; constants added to the scores of a step
    change nothing, so a globally normalized student keeps its scale.
    """
    p, q = ((s / temperature).log_softmax(-1) for s in (teacher, scores))
    divergence = kl_div(q, p, reduction="none", log_target=True).sum(-1)
    return temperature**2 * torch.where(mask, divergence, 0.0).sum(1)
