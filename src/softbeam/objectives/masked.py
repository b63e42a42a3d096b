"""Objectives of conditional masked language models; as cheap to import as `objectives`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from softbeam.errors import limited
from softbeam.objectives.base import Objective
from softbeam.schedules import Moment

if TYPE_CHECKING:
    from torch import Generator, nn

    from softbeam.types import Batch, Loss


@dataclass(frozen=True, kw_only=True)
class UniformMasking(Objective):
    """Cross-entropy of target tokens hidden at random, given the others (Mask-Predict, Sec. 2.3).

    How many are hidden is uniform between one and all, so that the model learns to begin from
    nothing and to mend a nearly finished text. The length of the target is predicted beside it.

    Args:
        smoothing: share of the target distribution spread evenly over the vocabulary.
        length_weight: of the cross-entropy of the length, one for each target.
    """

    left_to_right: ClassVar[bool] = False
    smoothing: float = 0.1
    length_weight: float = 1.0

    def __post_init__(self) -> None:
        limited("smoothing", self.smoothing, least=0, below=1)
        limited("length_weight", self.length_weight, least=0)

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        import torch
        from torch.nn.functional import cross_entropy

        from softbeam.types import Loss

        bound = model(batch.source)
        owner = torch.arange(len(batch.target), device=batch.target.device)
        from softbeam.objectives.losses.masked import hidden_uniformly

        masked = hidden_uniformly(batch.mask, rng)
        logits = bound.logits(batch.target, masked, owner)
        tokens = cross_entropy(
            logits, batch.target[masked], reduction="sum", label_smoothing=self.smoothing
        )
        lengths = batch.ends.lengths.clamp_max(bound.length_scores.shape[1] - 1)
        length = cross_entropy(bound.length_scores, lengths, reduction="sum")
        log = {"length_loss": length.item() / len(lengths)}
        return Loss(tokens + self.length_weight * length, int(masked.sum()), log)
