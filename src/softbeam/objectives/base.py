"""The protocol of objectives, and what those that search have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range
from softbeam.schedules import Moment

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn
    from torch.nn import functional

    from softbeam import tensors, types
    from softbeam.objectives.functions import Reward
    from softbeam.objectives.losses import risk
    from softbeam.objectives.losses.texts import Texts
    from softbeam.search import decoders, dropout
    from softbeam.types import Batch, Decoder, Loss
else:
    torch, functional = lazy("torch"), lazy("torch.nn.functional")
    decoders, risk = lazy("softbeam.search.decoders"), lazy("softbeam.objectives.losses.risk")
    tensors, types = lazy("softbeam.tensors"), lazy("softbeam.types")
    dropout = lazy("softbeam.search.dropout")

SearchDropout = Literal["none", "shared", "independent"]
BEFORE_DROPOUT = {"added": True, "before": "independent"}  # what runs did without the setting
MetricName = Literal["hamming", "edit", "bleu"]
Log = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """A loss of a model on a batch. `now` drives schedules, `rng` every random choice.

    Rows without a known target token are left out. A batch without any other row has the loss 0,
    of size 0, and no gradient.
    """

    left_to_right: ClassVar[bool] = True  # needs a decoder's scores; else a masked language model's
    finish = False  # whether outputs may end early, which needs an end mark in every batch

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        """Raises UserError if the objective does not fit the targets.

        Args:
            vocab: number of output tokens.
            time: length of the longest target.
            ends: whether targets end with an end mark.
        """
        return

    @property
    def run_folders(self) -> "tuple[Path, ...]":
        """The folders of the runs that the settings name."""
        return ()

    def loaded(self, load: "Callable[[Path], nn.Module]") -> "Objective":
        """Return the objective with the models of the run folders that its settings name.

        Args:
            load: from a folder to the model of its run.
        """
        return self

    @property
    def reads_texts(self) -> bool:
        """Whether `reading` has to be called before the objective."""
        return False

    def reading(self, texts: "Texts", find: "Callable[[str], Reward]") -> "Objective":
        """Return the objective with what its costs of texts need.

        Args:
            texts: from the numbers of a batch to texts.
            find: from `package.module:function` to the function, for names out of a file.
        """
        return self

    def warning(self, epochs: int) -> str | None:
        """A warning if `epochs` is too small for this objective to take effect."""
        return None

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        known = batch.mask.any(1)
        if not bool(known.all()):
            source, target, mask = (part[known] for part in batch[:3])
            ends = batch.ends._replace(lengths=batch.ends.lengths[known])
            batch = types.Batch(source, target, mask, ends)
        if not len(batch.mask):
            nothing = torch.zeros((), device=batch.mask.device, requires_grad=True)
            return types.Loss(nothing, 0, {})
        return self.compute(model, batch, now=now, rng=rng)

    @abstractmethod
    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        """The loss of a batch whose rows have at least one known target token each."""


def gold_loss(scores: "Tensor", batch: "Batch", smoothing: float = 0.0) -> "Tensor":
    """Negative log-likelihood of the known targets, summed."""
    target = batch.target.masked_fill(~batch.mask, -100)  # cross_entropy leaves -100 out
    return functional.cross_entropy(
        scores.flatten(0, 1), target.flatten(), reduction="sum", label_smoothing=smoothing
    )


def size(batch: "Batch") -> int:
    """The number of known target tokens, over which losses are averaged."""
    return int(batch.mask.sum())


def named_metric(metric: MetricName) -> "risk.Metric":
    """The metric of this name."""
    if metric not in risk.METRICS:
        raise ValueError(f"metric={metric!r} is none of {', '.join(risk.METRICS)}")
    return risk.METRICS[metric]


@dataclass(frozen=True, kw_only=True)
class SearchObjective(Objective):
    """An objective on the outputs of a search, hard or relaxed.

    Args:
        cross_entropy: weight of cross-entropy added to the loss.
        finish: outputs may end early, and are carried forward; needs an end mark.
        extra: steps searched past the end of the target, with finish.
        search_dropout: dropout in the search: none; shared, one mask for each sentence, for all
            rows and steps; independent, anew for each row and step.
    """

    cross_entropy: float = 0.0
    finish: bool = False
    extra: int = 0
    search_dropout: SearchDropout = field(default="none", metadata=BEFORE_DROPOUT)
    # for the objectives that have no such setting:
    normalize = True
    smoothing = 0.0
    log_z_penalty = 0.0

    def __post_init__(self) -> None:
        check_dropout(self.search_dropout)
        for name in ("cross_entropy", "log_z_penalty", "extra"):
            check_range(name, getattr(self, name), least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        if self.finish and not ends:
            raise UserError("finish true: outputs of this task have no end mark")

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        with dropout.searching(model, self.search_dropout) as bound:
            inner = bound(batch.source)
            decoder = decoders.LocallyNormalized(inner) if self.normalize else inner
            total, log = self.loss(model, decoder, completed(decoder, batch), now, rng)
            if self.cross_entropy > 0 or self.log_z_penalty > 0:
                total = total + self.beside(decoders.forced_scores(inner, batch.target), batch, log)
        return types.Loss(total, size(batch), log)

    def beside(self, scores: "Tensor", batch: "Batch", log: Log) -> "Tensor":
        """What is added to the loss of the search, of scores after gold prefixes; it is logged."""
        gold = gold_loss(scores, batch, self.smoothing)
        log_z = scores.logsumexp(-1)[batch.mask]
        log["cross_entropy"] = gold.item() / max(size(batch), 1)
        log["log_z_mean"] = log_z.mean().item()
        return self.cross_entropy * gold + self.log_z_penalty * log_z.square().sum()

    @abstractmethod
    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        """The loss summed over the batch, and what to log.

        `decoder` has the scores that are searched; `batch` has no unknown label left.
        """

    def searched(self, batch: "Batch") -> "Batch":
        """The batch with the positions that the search may use and the ends of its outputs."""
        lengths, eos = batch.ends
        if not self.finish:
            return batch._replace(ends=types.Ends(lengths))
        if eos is None:
            raise ValueError("finish=True: the batch has no end mark; set the eos of its ends")
        return run_on(batch, self.extra)


def check_dropout(mode: str) -> None:
    """Raises UserError if a kind of dropout does not exist."""
    if mode not in get_args(SearchDropout):
        kinds = ", ".join(get_args(SearchDropout))
        raise UserError(f"search_dropout {mode}: there are {kinds}")


def check_beam(name: str, k: int, *, vocab: int, time: int) -> None:
    """Raises UserError if a beam is larger than the number of possible outputs."""
    if k > vocab**time:
        outputs = f"all outputs of {time} out of {vocab} tokens"
        raise UserError(f"{name} {k}: must be at most {vocab**time}, {outputs}")


def completed(decoder: "Decoder", batch: "Batch") -> "Batch":
    """Give every unknown label inside a target the decoder's best label after the gold prefix.

    Gold is then one path of the search space, from the first step to the last; the mask still
    says which labels are known. Without unknown labels it is the batch itself.
    """
    holes = tensors.length_mask(batch.ends.lengths, batch.mask.shape[1]) & ~batch.mask
    target = batch.target
    with torch.no_grad():
        for t in holes.any(0).nonzero()[:, 0].tolist():
            best = decoders.forced_scores(decoder, target[:, : t + 1])[:, t].argmax(-1)
            target = target.clone()
            target[:, t] = torch.where(holes[:, t], best, target[:, t])
    return batch._replace(target=target)


def run_on(batch: "Batch", extra: int) -> "Batch":
    """The batch with `extra` more positions after each target, whose gold token is padding."""
    lengths, eos = batch.ends
    mask, target = (functional.pad(part, (0, extra)) for part in (batch.mask, batch.target))
    longer = tensors.length_mask(lengths + extra, mask.shape[1])
    mask = mask | (longer & ~tensors.length_mask(lengths, mask.shape[1]))
    return types.Batch(batch.source, target, mask, types.Ends(lengths + extra, eos))
