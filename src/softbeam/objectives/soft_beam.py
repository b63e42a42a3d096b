"""Objectives on the relaxed beam: the direct loss and the hinges (Goyal et al. 2018)."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import WIDEST_BEAM, check_range
from softbeam.objectives.base import Log, SearchObjective, check_beam
from softbeam.objectives.costs import Cost, Hamming
from softbeam.schedules import Exponential, Moment, Schedule, check_alpha
from softbeam.search.soft.form import FAST, Form

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn

    from softbeam import tensors
    from softbeam.search import decoders, hard
    from softbeam.search.soft import beam as soft, loop
    from softbeam.types import Batch, Decoder
else:
    torch, tensors = lazy("torch"), lazy("softbeam.tensors")
    decoders, hard = lazy("softbeam.search.decoders"), lazy("softbeam.search.hard")
    soft, loop = lazy("softbeam.search.soft.beam"), lazy("softbeam.search.soft.loop")


@dataclass(frozen=True, kw_only=True)
class SoftBeamObjective(SearchObjective):
    """An objective on a relaxed beam.

    Args:
        k: beam size (2018, Sec. 3: 3).
        alpha: inverse temperature of the relaxation.
        alpha_final: of the choice among the final beam; as alpha if not given.
        cost: what a wrong token costs.
        normalize: locally normalized scores; false searches raw scores (globally normalized).
        smoothing: of the cross-entropy added to the loss, as in CrossEntropy.
        log_z_penalty: weight of (log Z)^2 after gold prefixes, added to the loss; keeps raw scores
            as a self-normalized start has them, which cross-entropy alone does not.
        candidates: k times this number of best cells enter the relaxation at most, where that is
            exact to a tolerance; if not given, 64 of a vocabulary of more than 128 tokens.
        diagnose_every: updates between diagnostics of the beam.
        form: how a step of the beam is computed.
    """

    k: int = 3
    alpha: Schedule = Exponential(growth=1.4)
    alpha_final: Schedule | None = None
    cost: Cost = Hamming()
    normalize: bool = True
    smoothing: float = 0.0
    log_z_penalty: float = 0.0
    candidates: int | None = None
    diagnose_every: int = 50
    form: Form = field(default=FAST, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha("alpha", self.alpha)
        check_alpha("alpha_final", self.alpha_final or self.alpha)
        for name in ("k", "candidates", "diagnose_every"):
            check_range(name, getattr(self, name), least=1)
        check_range("k", self.k, most=WIDEST_BEAM)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        check_beam("k", self.k, vocab=vocab, time=time)
        super().check(vocab=vocab, time=time, ends=ends)
        self.cost.check(vocab)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        rows, log = self.rows(decoder, batch, now)
        return rows.sum(), {"alpha": self.alpha(now)} | log

    @abstractmethod
    def rows(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        """The loss of each sentence, and what to log."""

    def beam(
        self, decoder: "Decoder", batch: "Batch", now: Moment, cost_scale: float = 0.0
    ) -> "tuple[soft.SoftBeam, Log]":
        """The soft beam over the targets' positions with their costs, and its diagnostics."""
        longer = self.searched(batch)
        watch = self.watched(now)
        pool = self.form.candidates if self.candidates is None else self.candidates
        vocab = decoder.embedding.shape[0]
        costs, expected = self.cost(longer, vocab), (*longer.target.shape, vocab)
        if costs.shape != expected:
            raise ValueError(f"a cost must have the shape {expected}, not {tuple(costs.shape)}")
        beam = loop.soft_beam(
            decoder,
            costs,
            k=self.k,
            alpha=self.alpha(now),
            lengths=longer.ends.lengths,
            eos=longer.ends.eos,
            cost_scale=cost_scale,
            form=replace(self.form, candidates=pool, diagnostics=watch or self.form.diagnostics),
        )
        log = {"gold_on_beam": gold_on_beam(decoder, longer, self.k)} if watch else {}
        means = beam.diagnostics._asdict().items() if beam.diagnostics is not None else ()
        return beam, log | {f"beam_{name}": value.mean().item() for name, value in means}

    def watched(self, now: Moment) -> bool:
        """Say whether the beam of this update is diagnosed: those that are logged."""
        return (now.update + 1) % self.diagnose_every == 0

    def final(self, now: Moment) -> float:
        """The inverse temperature of the choice among the final beam."""
        return (self.alpha_final or self.alpha)(now)


@dataclass(frozen=True, kw_only=True)
class DirectLoss(SoftBeamObjective):
    """Expected cost of the relaxed beam's best element (2018, Equation 2)."""

    def rows(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        beam, log = self.beam(decoder, batch, now)
        return loop.expected_cost(beam, self.final(now)), log


@dataclass(frozen=True, kw_only=True)
class Hinge(SoftBeamObjective):
    """relu(s_max - s(y*)), s_max the score of a cost-augmented search (2018, Sec. 2.5).

    Args:
        cost_scale: weight of the cost beside the scores.
    """

    cost_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("cost_scale", self.cost_scale, least=0)

    def rows(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        s_max, log = self.maximum(decoder, batch, now)
        margin = s_max - gold_score(decoder, batch)
        return margin.relu(), log | {"hinge_zero": (margin <= 0).float().mean().item()}

    @abstractmethod
    def maximum(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        """s_max of each row, and what to log."""


@dataclass(frozen=True, kw_only=True)
class SoftHinge(Hinge):
    """The hinge with the soft maximum of the relaxed beam (2018, Sec. 2.5)."""

    def maximum(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        beam, log = self.beam(decoder, batch, now, cost_scale=self.cost_scale)
        return loop.expected_score(beam, self.final(now)), log


@dataclass(frozen=True, kw_only=True)
class HardHinge(Hinge):
    """The hinge with a hard beam: discontinuous, and unstable in the paper (2018, footnote 3)."""

    def maximum(self, decoder: "Decoder", batch: "Batch", now: Moment) -> "tuple[Tensor, Log]":
        longer = self.searched(batch)
        s_max, _ = hard.hard_beam_max(
            decoder,
            self.cost(longer, decoder.embedding.shape[0]),
            k=self.k,
            cost_scale=self.cost_scale,
            lengths=longer.ends.lengths,
            eos=longer.ends.eos,
        )
        return s_max, {}


def gold_on_beam(decoder: "Decoder", batch: "Batch", k: int) -> float:
    """The share of sentences whose gold output is on the final beam of a hard search."""
    lengths, eos = batch.ends
    with torch.no_grad():
        outputs = hard.beam_search(decoder, k=k, lengths=lengths, eos=eos, nbest=k)
    real = tensors.length_mask(lengths, outputs.tokens.shape[-1])
    gold = batch.target[:, : real.shape[1]].masked_fill(~real, 0)
    same = (outputs.tokens == gold[:, None]).all(-1).any(-1)
    return float(same.float().mean())


def gold_score(decoder: "Decoder", batch: "Batch") -> "Tensor":
    """s(y*): the score of the whole target, teacher forced, without cost."""
    scores = decoders.forced_scores(decoder, batch.target)
    chosen = scores.gather(-1, batch.target[:, :, None])[..., 0]
    real = tensors.length_mask(batch.ends.lengths, chosen.shape[1])
    return chosen.masked_fill(~real, 0.0).sum(-1)  # the score of padding may be -inf
