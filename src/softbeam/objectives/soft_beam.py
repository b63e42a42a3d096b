"""What training minimizes: frozen dataclasses of knobs, called once per batch.

Importing this module must stay cheap (the command line lists the knobs without loading torch), so
the algorithms are imported where they are called.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from softbeam.errors import UserError, limited
from softbeam.objectives.costs import Cost, Hamming
from softbeam.schedules import Constant, Exponential, InverseSigmoid, Moment, Schedule, positive

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.search.soft.loop import Diagnostics, Form, SoftBeam
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


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Objective):
    """Negative log-likelihood of the gold tokens given the gold prefix (2017, Sec. 2).

    Args:
        smoothing: share of the target distribution spread evenly over the vocabulary.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        limited("smoothing", self.smoothing, least=0, below=1)

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.search.decoders import forced_scores
        from softbeam.types import Loss

        scores = forced_scores(model(batch.source), batch.target)
        return Loss(gold_loss(scores, batch, self.smoothing), size(batch), {})


@dataclass(frozen=True, kw_only=True)
class SelfNormalized(Objective):
    """Cross-entropy + penalty * (log Z)^2 over the real tokens (2019; thesis 5.3.1).

    Pulls every step's normalizer to 1, so that raw scores are nearly log-probabilities: the start
    from which globally normalized training goes on.

    Args:
        penalty: lambda; unpublished, 0.1 is ours.
        smoothing: as in CrossEntropy.
    """

    penalty: float = 0.1
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        limited("penalty", self.penalty, least=0)
        limited("smoothing", self.smoothing, least=0, below=1)

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.search.decoders import forced_scores
        from softbeam.types import Loss

        scores = forced_scores(model(batch.source), batch.target)
        log_z = scores.logsumexp(-1)[batch.mask]
        total = gold_loss(scores, batch, self.smoothing) + self.penalty * log_z.square().sum()
        log = {"log_z_mean": log_z.mean().item(), "log_z_variance": log_z.var(correction=0).item()}
        return Loss(total, size(batch), log)


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
    """What the forms of scheduled sampling share.

    Args:
        feedback: the function of `softbeam.objectives.losses.feedback` from scores to the embedding
        fed next. alpha: inverse temperature of the soft forms.
        gold: probability of feeding gold; Constant 0 is 'always sample'.
        gold_epochs: epochs at the beginning in which gold is always fed.
        per: one coin for each token, each step of the batch, or each sequence.
        smoothing: as in CrossEntropy.
    """

    feedback: FeedbackName = "soft_argmax_embedding"
    alpha: Schedule = Exponential()
    gold: Schedule = InverseSigmoid()
    gold_epochs: int = 1
    per: Literal["token", "step", "sequence"] = "token"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)
        limited("gold_epochs", self.gold_epochs, least=0)
        limited("smoothing", self.smoothing, least=0, below=1)

    def warning(self, epochs: int) -> str | None:
        if epochs > self.gold_epochs:
            return None
        return f"only gold is fed in {epochs} epoch(s): gold_epochs is {self.gold_epochs}"

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.objectives.losses import feedback
        from softbeam.types import Loss

        p = 1.0 if now.epoch < self.gold_epochs else self.gold(now)
        coins = self.coins(batch, p, rng)
        scores = self.scores()(
            model(batch.source),
            batch.target,
            coins,
            feedback=getattr(feedback, self.feedback),
            alpha=self.alpha(now),
            rng=rng,
        )
        realised = coins[batch.mask].float().mean().item()
        log = {"alpha": self.alpha(now), "gold": p, "gold_realised": realised}
        return Loss(gold_loss(scores, batch, self.smoothing), size(batch), log)

    @abstractmethod
    def scores(self) -> "Callable[..., Tensor]":
        """The function of `softbeam.objectives.losses.feedback` that scores the target given a
        mixture.
        """

    def coins(self, batch: "Batch", p: float, rng: "Generator") -> "Tensor":
        """True where gold is fed after a step: batch, time."""
        import torch

        rows, time = batch.target.shape
        shape = {"token": (rows, time), "step": (1, time), "sequence": (rows, 1)}[self.per]
        drawn = torch.rand(shape, generator=rng, device=rng.device) < p
        return drawn.expand(rows, time)


@dataclass(frozen=True, kw_only=True)
class ScheduledSampling(FeedbackObjective):
    """Cross-entropy of the gold tokens given a mixture of gold and own predictions (2017)."""

    def scores(self) -> "Callable[..., Tensor]":
        from softbeam.objectives.losses.feedback import mixed_scores

        return mixed_scores


@dataclass(frozen=True, kw_only=True)
class TwoPassScheduledSampling(FeedbackObjective):
    """The same with predictions given gold prefixes: two calls of a Transformer, not one a token.

    Mihaylova and Martins (2019). Predictions do not see earlier ones, so that it is another
    objective than ScheduledSampling, not a faster form of it.
    """

    def scores(self) -> "Callable[..., Tensor]":
        from softbeam.objectives.losses.feedback import two_pass_scores

        return two_pass_scores


@dataclass(frozen=True, kw_only=True)
class SoftBeamObjective(Objective):
    """What the objectives on a relaxed beam share.

    Args:
        k: beam size (2018, Sec. 3: 3).
        alpha: inverse temperature of the relaxation.
        alpha_final: of the choice among the final beam; as alpha if not given.
        cost: what a wrong token costs.
        normalize: locally normalized scores; false searches raw scores (globally normalized).
        cross_entropy: weight of cross-entropy added to the loss.
        smoothing: of that cross-entropy, as in CrossEntropy.
        log_z_penalty: weight of (log Z)^2 after gold prefixes, added to the loss; keeps raw scores
            as a self-normalized start has them, which cross-entropy alone does not.
        finish: outputs may end early, and finished mass is carried forward; needs an end mark.
        extra: steps searched past the end of the target, with finish.
        candidates: only so many best cells of each beam row enter the relaxation, where that is
            exact to a tolerance; all of them if not given.
        diagnose_every: updates between diagnostics of the beam.
    """

    k: int = 3
    alpha: Schedule = Exponential(growth=1.4)
    alpha_final: Schedule | None = None
    cost: Cost = Hamming()
    normalize: bool = True
    cross_entropy: float = 0.0
    smoothing: float = 0.0
    log_z_penalty: float = 0.0
    finish: bool = False
    extra: int = 0
    candidates: int | None = None
    diagnose_every: int = 50

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)
        positive("alpha_final", self.alpha_final or self.alpha)
        for name in ("k", "candidates", "diagnose_every"):
            limited(name, getattr(self, name), least=1)
        for name in ("cross_entropy", "log_z_penalty", "extra"):
            limited(name, getattr(self, name), least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        check_beam("k", self.k, vocab=vocab, time=time)
        check_finish(self.finish, ends)
        self.cost.check(vocab)

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.search.decoders import LocallyNormalized, forced_scores
        from softbeam.types import Loss

        inner = model(batch.source)
        decoder = LocallyNormalized(inner) if self.normalize else inner
        longer = run_on(batch, self.extra) if self.finish else batch
        log = {"alpha": self.alpha(now)}
        total, more = self.loss(decoder, longer, now)
        log |= more
        if self.cross_entropy > 0 or self.log_z_penalty > 0:
            scores = forced_scores(inner, batch.target)
            gold = gold_loss(scores, batch, self.smoothing)
            log_z = scores.logsumexp(-1)[batch.mask]
            total = total + self.cross_entropy * gold + self.log_z_penalty * log_z.square().sum()
            log["cross_entropy"] = gold.item() / max(size(batch), 1)
            log["log_z_mean"] = log_z.mean().item()
        return Loss(total, size(batch), log)

    @abstractmethod
    def loss(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        """The relaxed loss summed over the batch, and what to log."""

    def beam(
        self, decoder: "Decoder", batch: "Batch", now: Moment, cost_scale: float = 0.0
    ) -> "SoftBeam":
        """The soft beam over the targets' positions, with their costs (Algorithm 3)."""
        from softbeam.search.soft.loop import soft_beam

        return soft_beam(
            decoder,
            self.cost(batch, decoder.embedding.shape[0]),
            k=self.k,
            alpha=self.alpha(now),
            lengths=batch.mask.sum(1),
            eos=self.eos(batch),
            cost_scale=cost_scale,
            form=self.form(now),
        )

    def form(self, now: Moment) -> "Form":
        from softbeam.search.soft.loop import Form

        watch = (now.update + 1) % self.diagnose_every == 0  # the update that is logged
        return Form(candidates=self.candidates, diagnostics=watch)

    def final(self, now: Moment) -> float:
        return (self.alpha_final or self.alpha)(now)

    def eos(self, batch: "Batch") -> int | None:
        """The end mark, with which every target of a batch ends; None without `finish`."""
        first = batch.target[0]
        return int(first[first != 0][-1]) if self.finish else None


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


def shown(found: "Diagnostics | None") -> dict[str, float]:
    """Diagnostics as numbers to log."""
    if found is None:
        return {}
    return {f"beam_{name}": value.mean().item() for name, value in found._asdict().items()}


@dataclass(frozen=True, kw_only=True)
class DirectLoss(SoftBeamObjective):
    """Expected cost of the relaxed beam's best element (2018, Equation 2)."""

    def loss(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        from softbeam.search.soft.loop import expected_cost

        beam = self.beam(decoder, batch, now)
        return expected_cost(beam, self.final(now)).sum(), shown(beam.diagnostics)


@dataclass(frozen=True, kw_only=True)
class Hinge(SoftBeamObjective):
    """relu(s_max - s(y*)), s_max the score of a cost-augmented search (2018, Sec. 2.5).

    Args:
        cost_scale: weight of the cost beside the scores.
    """

    cost_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("cost_scale", self.cost_scale, least=0)

    def loss(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        s_max, log = self.maximum(decoder, batch, now)
        margin = s_max - gold_score(decoder, batch, self.eos(batch))
        return margin.relu().sum(), log | {"hinge_zero": (margin <= 0).float().mean().item()}

    @abstractmethod
    def maximum(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        """s_max of each row, and what to log."""


@dataclass(frozen=True, kw_only=True)
class SoftHinge(Hinge):
    """The hinge with the soft maximum of the relaxed beam (2018, Sec. 2.5)."""

    def maximum(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        from softbeam.search.soft.loop import expected_score

        beam = self.beam(decoder, batch, now, cost_scale=self.cost_scale)
        return expected_score(beam, self.final(now)), shown(beam.diagnostics)


@dataclass(frozen=True, kw_only=True)
class HardHinge(Hinge):
    """The same with a hard beam: discontinuous, and unstable in the paper (2018, footnote 3)."""

    def maximum(
        self, decoder: "Decoder", batch: "Batch", now: Moment
    ) -> "tuple[Tensor, dict[str, float]]":
        from softbeam.search.soft.loop import hard_beam_max

        s_max, _ = hard_beam_max(
            decoder,
            self.cost(batch, decoder.embedding.shape[0]),
            k=self.k,
            cost_scale=self.cost_scale,
            lengths=batch.mask.sum(1),
            eos=self.eos(batch),
        )
        return s_max, {}


def gold_score(decoder: "Decoder", batch: "Batch", eos: int | None) -> "Tensor":
    """s(y*): the target's score, teacher forced, without cost; padding after the end is free."""
    from softbeam.search.decoders import forced_scores

    scores = forced_scores(decoder, batch.target).gather(-1, batch.target[:, :, None])[..., 0]
    counted = batch.mask if eos is None else batch.mask & (batch.target != 0)
    return (scores * counted).sum(-1)


ALWAYS = Constant(value=0.0)  # 'always sample': gold is never fed after the first epochs
