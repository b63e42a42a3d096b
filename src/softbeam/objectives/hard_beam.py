"""Search-aware objectives to compare with the soft beam, under the same interface.

Frozen dataclasses of knobs like those of `objectives`, and as cheap to import; the algorithms are
in `beam_training`. Sentence-level costs are rates; a sentence counts as often as it has tokens, so
that total / size is a cost per sentence weighted by length, on the scale of cross-entropy.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from softbeam.errors import UserError, limited
from softbeam.objectives.soft_beam import (
    Objective,
    check_beam,
    check_finish,
    gold_loss,
    run_on,
    size,
)
from softbeam.schedules import Constant, Moment, Schedule

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.objectives.losses.hard_beam import Metric
    from softbeam.types import Batch, Decoder, Hypotheses, Loss

MetricName = Literal["hamming", "edit", "bleu"]
Log = dict[str, float]


def named_metric(metric: "MetricName | Callable[..., float]") -> "Metric":
    """The cost of a name, or the function itself."""
    from softbeam.objectives.losses.hard_beam import METRICS

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


@dataclass(frozen=True, kw_only=True)
class BeamSearchOptimization(SearchObjective):
    """Margins between gold and the k-th hypothesis, with restarts (Wiseman and Rush 2016).

    Args:
        k: beam size; one more than the beam that decodes.
        margin: by which gold must win.
        normalize: locally normalized scores; the paper's are raw.
        delta: cost of the rival that weighs a violation: hamming, edit, bleu, or your own
            function of predicted and gold tokens; 1 if not given.
    """

    k: int = 4
    margin: float = 1.0
    normalize: bool = False
    delta: MetricName | Callable[..., float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("k", self.k, least=2)
        limited("margin", self.margin, least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        super().check(vocab=vocab, time=time, ends=ends)
        check_beam("k", self.k, vocab=vocab, time=time)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import bso_loss

        longer = self.searched(batch)
        found = bso_loss(
            scored(decoder, self.normalize),
            longer.target,
            k=self.k,
            lengths=longer.mask.sum(1),
            eos=self.eos(batch),
            margin=self.margin,
            delta=None if self.delta is None else named_metric(self.delta),
        )
        steps = max(size(longer), 1)
        rates = {"violated": found.violated, "fell": found.fell}
        return found.loss.sum(), {name: v.sum().item() / steps for name, v in rates.items()}


@dataclass(frozen=True, kw_only=True)
class BeamCrf(SearchObjective):
    """Likelihood normalized over the beam, with early update (Andor et al. 2016).

    Args:
        k: beam size.
        normalize: locally normalized scores; the paper's are raw.
    """

    k: int = 4
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("k", self.k, least=1)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        super().check(vocab=vocab, time=time, ends=ends)
        check_beam("k", self.k, vocab=vocab, time=time)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import crf_loss

        longer = self.searched(batch)
        found = crf_loss(
            scored(decoder, self.normalize),
            longer.target,
            k=self.k,
            lengths=longer.mask.sum(1),
            eos=self.eos(batch),
        )
        reached = found.steps.sum().item() / max(size(longer), 1)
        return found.loss.sum(), {"reached": reached, "fell": found.fell.float().mean().item()}


@dataclass(frozen=True, kw_only=True)
class MinimumRisk(SearchObjective):
    """Expected sentence cost over a set of candidates (Shen et al. 2016, Edunov et al. 2018).

    Args:
        candidates: the n best of a beam, or n samples; equal ones count once.
        n: how many.
        sharpness: of the distribution over the candidates (Shen et al.: 0.005 for 100 samples).
        metric: hamming, edit, bleu, or your own function of predicted and gold tokens to a cost.
        include_gold: gold is a candidate too.
        normalize: weights by log-probabilities; false by raw scores (globally normalized).
    """

    candidates: Literal["beam", "sample"] = "beam"
    n: int = 5
    sharpness: float = 1.0
    metric: MetricName | Callable[..., float] = "hamming"
    include_gold: bool = False
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("n", self.n, least=1)
        limited("sharpness", self.sharpness, above=0)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import (
            distinct,
            expected_risk,
            sentence_costs,
            token_scores,
            with_gold,
        )

        decoder, lengths = scored(decoder, self.normalize), batch.mask.sum(1)
        found = self.found(decoder, batch, rng)
        if self.include_gold:
            found = with_gold(found, batch.target, lengths)
        kept = distinct(found)
        scores = token_scores(decoder, found.tokens, found.lengths).sum(-1)
        metric = named_metric(self.metric)
        costs = sentence_costs(
            metric, found.tokens, found.lengths, batch.target, lengths, dtype=scores.dtype
        )
        risk = expected_risk(scores, costs, kept, sharpness=self.sharpness)
        log = {"risk": risk.mean().item(), "candidates": kept.sum(1).float().mean().item()}
        return (lengths * risk).sum(), log

    def found(self, decoder: "Decoder", batch: "Batch", rng: "Generator") -> "Hypotheses":
        """The candidates, with repetitions."""
        from softbeam.objectives.losses.hard_beam import beam_candidates, sampled_candidates

        lengths, eos = self.searched(batch).mask.sum(1), self.eos(batch)
        if self.candidates == "beam":
            return beam_candidates(decoder, n=self.n, lengths=lengths, eos=eos)
        if self.candidates == "sample":
            return sampled_candidates(decoder, n=self.n, lengths=lengths, eos=eos, rng=rng)
        raise ValueError(f"candidates={self.candidates!r} is neither 'beam' nor 'sample'")


RUNNING: "WeakKeyDictionary[nn.Module, float]" = WeakKeyDictionary()  # mean cost so far, by model


@dataclass(frozen=True, kw_only=True)
class Reinforce(SearchObjective):
    """Expected cost by the score-function gradient of one sample (Ranzato et al. 2016).

    The running mean lives as long as the model, and starts again when a run is resumed; the
    greedy baseline has no memory.

    Args:
        baseline: greedy subtracts the cost of the greedy output (self-critical, Rennie et al.
            2017), running the mean cost of earlier batches, none nothing.
        metric: hamming, edit, bleu, or your own function of predicted and gold tokens to a cost.
        gold_steps: so many first steps of a sentence are gold, trained by cross-entropy, and the
            rest is sampled (MIXER); falling, e.g. Linear(start=20, slope=-2).
        momentum: of the running mean.
    """

    baseline: Literal["greedy", "running", "none"] = "greedy"
    metric: MetricName | Callable[..., float] = "hamming"
    gold_steps: Schedule = Constant(value=0.0)
    momentum: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("momentum", self.momentum, least=0, below=1)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import reinforce_loss, rollout, token_scores

        decoder, lengths = scored(decoder, True), batch.mask.sum(1)
        steps = max(0, int(self.gold_steps(now)))
        limits, eos = self.searched(batch).mask.sum(1), self.eos(batch)
        drawn = rollout(decoder, batch.target, gold_steps=steps, lengths=limits, eos=eos, rng=rng)
        costs = self.costs(drawn, batch)
        log_probs = token_scores(decoder, drawn.tokens, drawn.lengths).squeeze(1)
        if self.baseline == "greedy":
            best = rollout(decoder, batch.target, gold_steps=steps, lengths=limits, eos=eos)
            baseline = self.costs(best, batch)
        else:
            baseline = costs.new_full(costs.shape, self.remembered(model, costs.mean().item()))
        surrogate = lengths * reinforce_loss(log_probs, costs, baseline, gold_steps=steps)
        gold = -log_probs[:, :steps].sum()
        log = {"cost": costs.mean().item(), "baseline": baseline.mean().item()}
        return surrogate.sum() + gold, log | {"gold_steps": float(steps)}

    def costs(self, found: "Hypotheses", batch: "Batch") -> "Tensor":
        from softbeam.objectives.losses.hard_beam import sentence_costs

        costs = sentence_costs(
            named_metric(self.metric),
            found.tokens,
            found.lengths,
            batch.target,
            batch.mask.sum(1),
            dtype=found.scores.dtype,
        )
        return costs.squeeze(1)

    def remembered(self, model: "nn.Module", cost: float) -> float:
        """The mean cost of earlier batches; this one's is added to what is remembered."""
        if self.baseline == "none":
            return 0.0
        if self.baseline != "running":
            raise ValueError(f"baseline={self.baseline!r} is none of greedy, running, none")
        before = RUNNING.get(model)
        RUNNING[model] = cost if before is None else before + (1 - self.momentum) * (cost - before)
        return 0.0 if before is None else before


Load = Callable[[Path], Any]


@lru_cache(maxsize=1)
def frozen_teacher(load: Load, teacher: Path) -> "nn.Module":
    """The teacher of a run's folder, loaded once, without dropout or gradient."""
    from torch import nn

    loaded = load(teacher)
    model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded.model
    return model.eval().requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective):
    """Warm start from a teacher's step distributions (Hinton et al. 2015; thesis 5.3.1).

    KL divergence from the teacher, given the gold prefix, to softmax of the student's raw scores.
    Loading a run is the affair of a higher layer, so the function that does it is a knob.

    Args:
        teacher: folder of the teacher's run, with the student's vocabularies.
        load: from that folder to a model or a run: softbeam.training.runs.load_run.
        temperature: of both distributions.
        cross_entropy: weight of cross-entropy added to the loss.
    """

    teacher: Path
    load: Load
    temperature: float = 1.0
    cross_entropy: float = 0.0

    def __post_init__(self) -> None:
        limited("temperature", self.temperature, above=0)
        limited("cross_entropy", self.cross_entropy, least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        import torch

        decoder = frozen_teacher(self.load, self.teacher)(torch.ones(1, 1, dtype=torch.long))
        outputs = len(decoder.embedding)
        if outputs != vocab:
            raise UserError(f"teacher {self.teacher} has {outputs} outputs, not {vocab}")

    def __call__(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        from softbeam.objectives.losses.hard_beam import distillation_loss
        from softbeam.search.decoders import forced_scores
        from softbeam.types import Loss

        scores = forced_scores(model(batch.source), batch.target)
        wanted = self.wanted(batch, scores)
        found = distillation_loss(scores, wanted, batch.mask, temperature=self.temperature).sum()
        gold = gold_loss(scores, batch)
        parts = {"divergence": found, "cross_entropy": gold}
        log = {name: part.item() / max(size(batch), 1) for name, part in parts.items()}
        return Loss(found + self.cross_entropy * gold, size(batch), log)

    def wanted(self, batch: "Batch", like: "Tensor") -> "Tensor":
        """The teacher's scores, without gradient."""
        import torch

        from softbeam.search.decoders import forced_scores

        with torch.no_grad():
            teacher = frozen_teacher(self.load, self.teacher).to(like.device)
            scores = forced_scores(teacher(batch.source), batch.target)
        if scores.shape != like.shape:
            raise ValueError(
                f"teacher={self.teacher} has {scores.shape[-1]} outputs, not {like.shape[-1]}"
            )
        return scores
