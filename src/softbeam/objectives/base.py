"""What all objectives share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from softbeam.errors import UserError, limited
from softbeam.schedules import Moment

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.objectives.losses.risk import Metric
    from softbeam.types import Batch, Decoder, Loss


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss of a model on a batch. `now` drives schedules, `rng` every random choice."""

    left_to_right: ClassVar[bool] = True  # of a decoder's scores; else of a masked language model's

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        """A UserError if it is not for targets of at most `time` tokens out of `vocab`.

        `ends` says whether an end mark is the last of them.
        """
        return

    def warning(self, epochs: int) -> str | None:
        """What a stage of so many epochs would not do, though it looks as if it did."""
        return None

    @abstractmethod
    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss": ...


def gold_loss(scores: "Tensor", batch: "Batch", smoothing: float = 0.0) -> "Tensor":
    """Negative log-likelihood of the real targets, summed."""
    from torch.nn.functional import cross_entropy

    target = batch.target.masked_fill(~batch.mask, -100)  # -100 counts for nothing
    return cross_entropy(
        scores.flatten(0, 1), target.flatten(), reduction="sum", label_smoothing=smoothing
    )


def size(batch: "Batch") -> int:
    """The number of real target tokens, over which losses are averaged."""
    return int(batch.mask.sum())


MetricName = Literal["hamming", "edit", "bleu"]
Log = dict[str, float]


def named_metric(metric: "MetricName | Callable[..., float]") -> "Metric":
    """The cost of a name, or the function itself."""
    from softbeam.objectives.losses.risk import METRICS

    if callable(metric):
        return metric
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is none of {', '.join(METRICS)}, nor a function")
    return METRICS[metric]


@dataclass(frozen=True, kw_only=True)
class SearchObjective(Objective):
    """What the objectives on a hard search share.

    Args:
        cross_entropy: weight of cross-entropy added to the loss.
        finish: outputs may end early, and are carried forward; needs an end mark.
        extra: steps searched past the end of the target, with finish.
    """

    cross_entropy: float = 0.0
    finish: bool = False
    extra: int = 0

    def __post_init__(self) -> None:
        limited("cross_entropy", self.cross_entropy, least=0)
        limited("extra", self.extra, least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        check_finish(self.finish, ends)

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.search.decoders import forced_scores
        from softbeam.types import Loss

        decoder = model(batch.source)
        total, log = self.loss(model, decoder, batch, now, rng)
        if self.cross_entropy > 0:
            gold = gold_loss(forced_scores(decoder, batch.target), batch)
            total = total + self.cross_entropy * gold
            log["cross_entropy"] = gold.item() / max(size(batch), 1)
        return Loss(total, size(batch), log)

    @abstractmethod
    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        """The loss summed over the batch, and what to log."""

    def searched(self, batch: "Batch") -> "Batch":
        """The batch with the positions that the search may use."""
        return run_on(batch, self.extra) if self.finish else batch

    def eos(self, batch: "Batch") -> int | None:
        """The end mark, with which every target of a batch ends; None without `finish`."""
        first = batch.target[0]
        return int(first[first != 0][-1]) if self.finish else None


def scored(decoder: "Decoder", normalize: bool) -> "Decoder":
    """The decoder with log-probabilities, or with its raw scores."""
    from softbeam.search.decoders import LocallyNormalized

    return LocallyNormalized(decoder) if normalize else decoder


def check_beam(name: str, k: int, *, vocab: int, time: int) -> None:
    """A UserError if a beam has more places than there are outputs of the greatest length."""
    if k > vocab**time:
        outputs = f"all outputs of {time} out of {vocab} tokens"
        raise UserError(f"{name} {k}: must be at most {vocab**time}, {outputs}")


def check_finish(finish: bool, ends: bool) -> None:
    if finish and not ends:
        raise UserError("finish true: outputs of this task have no end mark")


def run_on(batch: "Batch", extra: int) -> "Batch":
    """The batch with `extra` more positions after each target, whose gold token is padding."""
    import torch
    from torch.nn.functional import pad

    lengths = batch.mask.sum(1) + extra
    mask = torch.arange(batch.mask.shape[1] + extra, device=lengths.device) < lengths[:, None]
    return batch._replace(target=pad(batch.target, (0, extra)), mask=mask)
