"""Objectives over whole outputs: minimum risk and REINFORCE."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from softbeam.errors import limited
from softbeam.schedules import Constant, Moment, Schedule

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.types import Batch, Decoder, Hypotheses
from softbeam.objectives.base import Log, MetricName, SearchObjective, named_metric, scored


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
        from softbeam.objectives.losses.risk import (
            distinct,
            expected_risk,
            sentence_costs,
            with_gold,
        )
        from softbeam.search.tracked import token_scores

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
        from softbeam.objectives.losses.risk import beam_candidates, sampled_candidates

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
        from softbeam.objectives.losses.risk import reinforce_loss, rollout
        from softbeam.search.tracked import token_scores

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
        from softbeam.objectives.losses.risk import sentence_costs

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
