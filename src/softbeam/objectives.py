"""What training minimizes: frozen dataclasses of knobs, called once per batch.

Importing this module must stay cheap (the command line lists the knobs without loading torch), so
the algorithms are imported where they are called.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, nn

    from softbeam.types import Batch, Loss


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss of a model on a batch. `update` drives schedules, `rng` every random choice."""

    @abstractmethod
    def __call__(
        self, model: "nn.Module", batch: "Batch", *, update: int, rng: "Generator"
    ) -> "Loss": ...


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Objective):
    """Negative log-likelihood of the gold tokens given the gold prefix (2017, Sec. 2).

    Args:
        smoothing: share of the target distribution spread evenly over the vocabulary.
    """

    smoothing: float = 0.0

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, update: int, rng: "Generator"
    ) -> "Loss":
        from torch.nn.functional import cross_entropy

        from softbeam.decoders import forced_scores
        from softbeam.types import Loss

        scores = forced_scores(model(batch.source), batch.target)
        total = cross_entropy(
            scores.flatten(0, 1),
            batch.target.masked_fill(~batch.mask, -100).flatten(),  # -100 counts for nothing
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return Loss(total, int(batch.mask.sum()), {})
