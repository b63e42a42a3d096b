"""What training minimizes: frozen dataclasses of knobs, called once per batch.

Importing this module must stay cheap (the command line lists the knobs without loading torch), so
the algorithms are imported where they are called.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softbeam.errors import limited
from softbeam.objectives.costs import Cost, Hamming
from softbeam.schedules import Exponential, Moment, Schedule, positive

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.search.soft.loop import Diagnostics, Form, SoftBeam
    from softbeam.types import Batch, Decoder, Loss
from softbeam.objectives.base import Objective, check_beam, check_finish, gold_loss, run_on, size


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
        from softbeam.search.hard import hard_beam_max

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
