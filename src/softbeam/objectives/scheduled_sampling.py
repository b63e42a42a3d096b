"""Scheduled sampling, hard and differentiable (Goyal et al. 2017; thesis, chapter 3)."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from softbeam._lazy import lazy
from softbeam.errors import check_range
from softbeam.objectives.base import (
    BEFORE_DROPOUT,
    Objective,
    SearchDropout,
    check_dropout,
    gold_loss,
    size,
)
from softbeam.schedules import Exponential, InverseSigmoid, Moment, Schedule, check_alpha

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn

    from softbeam import tensors, types
    from softbeam.objectives.losses import feedback
    from softbeam.search import dropout
    from softbeam.types import Batch, Loss
else:
    torch, tensors, types = lazy("torch"), lazy("softbeam.tensors"), lazy("softbeam.types")
    feedback = lazy("softbeam.objectives.losses.feedback")
    dropout = lazy("softbeam.search.dropout")

FeedbackName = Literal[
    "hard_argmax",
    "hard_sample",
    "soft_argmax_embedding",
    "gumbel_soft_sample",
    "straight_through_argmax",
    "straight_through_sample",
]


@dataclass(frozen=True, kw_only=True)
class FeedbackObjective(Objective):
    """Cross-entropy when predictions of the model are fed at some steps.

    Args:
        feedback: a form of `softbeam.objectives.losses.feedback.feed`, from scores to the
            embedding fed next.
        alpha: inverse temperature of the soft forms.
        gold: probability of feeding gold; Constant 0 is 'always sample'.
        gold_epochs: epochs at the beginning in which gold is always fed.
        per: one coin for each token, each step of the batch, or each sequence.
        smoothing: as in CrossEntropy.
        search_dropout: dropout while own predictions are fed, as in the objectives that search.
    """

    feedback: FeedbackName = "soft_argmax_embedding"
    alpha: Schedule = Exponential()
    gold: Schedule = InverseSigmoid()
    gold_epochs: int = 1
    per: Literal["token", "step", "sequence"] = "token"
    smoothing: float = 0.0
    search_dropout: SearchDropout = field(default="none", metadata=BEFORE_DROPOUT)

    def __post_init__(self) -> None:
        check_dropout(self.search_dropout)
        check_alpha("alpha", self.alpha)
        check_range("gold_epochs", self.gold_epochs, least=0)
        check_range("smoothing", self.smoothing, least=0, below=1)

    def warning(self, epochs: int) -> str | None:
        if epochs > self.gold_epochs:
            return None
        return f"only gold is fed in {epochs} epoch(s): gold_epochs is {self.gold_epochs}"

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        p = 1.0 if now.epoch < self.gold_epochs else self.gold(now)
        coins = self.coins(batch, p, rng)
        mode = "independent" if p >= 1 else self.search_dropout  # with gold alone nothing is fed
        with dropout.searching(model, mode) as bound:
            scores = self.scores()(
                bound(batch.source),
                batch.target,
                coins,
                feedback=getattr(feedback, self.feedback),
                alpha=self.alpha(now),
                rng=rng,
            )
        realised = coins[batch.mask].float().mean().item()
        log = {"alpha": self.alpha(now), "gold": p, "gold_realised": realised}
        return types.Loss(gold_loss(scores, batch, self.smoothing), size(batch), log)

    @abstractmethod
    def scores(self) -> "Callable[..., Tensor]":
        """The function that scores the target given a mixture of gold and predictions."""

    def coins(self, batch: "Batch", p: float, rng: "Generator") -> "Tensor":
        """True where gold is fed after a step (batch, time): never after an unknown label."""
        rows, time = batch.target.shape
        shape = {"token": (rows, time), "step": (1, time), "sequence": (rows, 1)}[self.per]
        drawn = tensors.uniform(shape, rng, batch.mask.device, None) < p
        return drawn & (batch.mask | ~tensors.length_mask(batch.ends.lengths, time))


@dataclass(frozen=True, kw_only=True)
class ScheduledSampling(FeedbackObjective):
    """Cross-entropy of the gold tokens given a mixture of gold and own predictions (2017)."""

    def scores(self) -> "Callable[..., Tensor]":
        return feedback.mixed_scores


@dataclass(frozen=True, kw_only=True)
class TwoPassScheduledSampling(FeedbackObjective):
    """Scheduled sampling in two calls of a Transformer instead of one for each token.

    Predictions are made given gold prefixes (Mihaylova and Martins 2019). They do not see earlier
    predictions, so that this objective differs from ScheduledSampling in value.
    """

    def scores(self) -> "Callable[..., Tensor]":
        return feedback.two_pass_scores
