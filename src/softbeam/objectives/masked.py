"""Objectives of conditional masked language models."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from softbeam._lazy import lazy
from softbeam.errors import check_range
from softbeam.objectives.base import Objective
from softbeam.schedules import Moment

if TYPE_CHECKING:
    import torch
    from torch import Generator, nn
    from torch.nn import functional

    from softbeam import types
    from softbeam.objectives.losses import masked as losses
    from softbeam.types import Batch, Loss
else:
    torch, functional = lazy("torch"), lazy("torch.nn.functional")
    losses, types = lazy("softbeam.objectives.losses.masked"), lazy("softbeam.types")


@dataclass(frozen=True, kw_only=True)
class UniformMasking(Objective):
    """Cross-entropy of target tokens hidden at random, given the others (Mask-Predict, Sec. 2.3).

    The number of hidden tokens is uniform between one and all, so that the model learns to begin
    from nothing and to improve a nearly finished text. It also predicts the target's length.

    Args:
        smoothing: share of the target distribution spread evenly over the vocabulary.
        length_weight: of the cross-entropy of the length, one for each target.
    """

    left_to_right: ClassVar[bool] = False
    smoothing: float = 0.1
    length_weight: float = 1.0

    def __post_init__(self) -> None:
        check_range("smoothing", self.smoothing, least=0, below=1)
        check_range("length_weight", self.length_weight, least=0)

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        bound = model(batch.source)
        owner = torch.arange(len(batch.target), device=batch.target.device)
        masked = losses.hidden_uniformly(batch.mask, rng)
        logits = bound.logits(batch.target, masked, owner)
        tokens = functional.cross_entropy(
            logits, batch.target[masked], reduction="sum", label_smoothing=self.smoothing
        )
        lengths = batch.ends.lengths.clamp_max(bound.length_scores.shape[1] - 1)
        length = functional.cross_entropy(bound.length_scores, lengths, reduction="sum")
        log = {"length_loss": length.item() / len(lengths)}
        return types.Loss(tokens + self.length_weight * length, int(masked.sum()), log)
