"""Objectives over whole outputs: minimum risk and REINFORCE; formulas in `losses.risk`.

Costs of sentences are rates, and a sentence counts as often as it has tokens: total / size is a
cost per sentence weighted by length, on the scale of cross-entropy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from softbeam._lazy import lazy
from softbeam.errors import WIDEST_BEAM, UserError, check_range
from softbeam.objectives.base import Log, SearchObjective, named_metric
from softbeam.objectives.functions import FunctionName, Reward
from softbeam.schedules import Constant, Moment, Schedule

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.objectives.losses import risk as losses, texts as text_losses
    from softbeam.objectives.losses.texts import Texts
    from softbeam.search import tracked
    from softbeam.types import Batch, Decoder, Hypotheses
else:
    losses, tracked = lazy("softbeam.objectives.losses.risk"), lazy("softbeam.search.tracked")
    text_losses = lazy("softbeam.objectives.losses.texts")


@dataclass(frozen=True, kw_only=True)
class RiskObjective(SearchObjective):
    """An objective on the costs of whole outputs.

    For a cost of your own, override `sentence_cost`, which sees token numbers, or give a reward,
    which sees texts.

    Args:
        metric: hamming, edit or bleu of token numbers, or wer, the edits for each word of a text.
        reward: a function of texts whose negative is the cost, instead of a metric: called with
            lists of prompts, completions and references, as TRL does, it returns a number for each
            completion. In a file it is named as package.module:function.
    """

    metric: Literal["hamming", "edit", "bleu", "wer"] = "hamming"
    reward: str | Reward | None = field(default=None, metadata={"added": True})
    read = None  # texts and the reward function, after `reading`; not a setting

    def __post_init__(self) -> None:
        super().__post_init__()
        if callable(self.reward):
            object.__setattr__(self, "reward", FunctionName.of(self.reward))

    @property
    def reads_texts(self) -> bool:
        return self.reward is not None or self.metric == "wer"

    def reading(self, texts: "Texts", find: "Callable[[str], Reward]") -> "RiskObjective":
        if not self.reads_texts:
            return self
        reward: Reward = text_losses.word_accuracy
        if isinstance(self.reward, FunctionName):
            reward = self.reward.function
        elif isinstance(self.reward, str):
            reward = find(self.reward)
        ready = replace(self)
        object.__setattr__(ready, "read", (texts, reward))
        return ready

    def sentence_cost(self, predicted: Sequence[int], gold: Sequence[int]) -> float:
        """The cost of an output: 0 is perfect."""
        if self.metric == "wer":
            raise ValueError("metric='wer' compares texts, not numbers")
        return named_metric(self.metric)(predicted, gold)

    def costs(self, outputs: "Hypotheses", batch: "Batch") -> "Tensor":
        """The cost of each output. An unknown label of the target is an error of every output."""
        if self.reads_texts:
            if self.read is None:
                name = self.reward or self.metric
                raise UserError(f"{name} compares texts: give the tokenizer that makes them")
            return text_losses.text_costs(*self.read, outputs, batch)
        gold = batch.target.masked_fill(~batch.mask, -1)
        return losses.sentence_costs(self.sentence_cost, outputs, gold, batch.ends.lengths)


@dataclass(frozen=True, kw_only=True)
class MinimumRisk(RiskObjective):
    """Expected sentence cost over a set of candidates (Shen et al. 2016, Edunov et al. 2018).

    Args:
        candidates: the n best of a beam, or n samples; equal ones count once.
        n: number of candidates.
        sharpness: of the distribution over the candidates (Shen et al.: 0.005 for 100 samples).
        include_gold: gold is a candidate too.
        normalize: weights by log-probabilities; false by raw scores (globally normalized).
    """

    candidates: Literal["beam", "sample"] = "beam"
    n: int = 5
    sharpness: float = 1.0
    include_gold: bool = False
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("n", self.n, least=1, most=WIDEST_BEAM)
        check_range("sharpness", self.sharpness, above=0)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        lengths = batch.ends.lengths
        outputs = self.outputs(decoder, batch, rng)
        if self.include_gold:
            outputs = losses.with_gold(outputs, batch.target, lengths)
        kept = losses.distinct(outputs)
        scores = tracked.token_scores(decoder, outputs.tokens, outputs.lengths).sum(-1)
        costs = self.costs(outputs, batch)
        risk = losses.expected_risk(scores, costs, kept, sharpness=self.sharpness)
        log = {"risk": risk.mean().item(), "candidates": kept.sum(1).float().mean().item()}
        return (lengths * risk).sum(), log

    def outputs(self, decoder: "Decoder", batch: "Batch", rng: "Generator") -> "Hypotheses":
        """The candidates, with repetitions."""
        ends = self.searched(batch).ends
        if self.candidates == "beam":
            return losses.beam_candidates(decoder, ends, n=self.n)
        if self.candidates == "sample":
            return losses.sampled_candidates(decoder, ends, n=self.n, rng=rng)
        raise ValueError(f"candidates={self.candidates!r} is neither 'beam' nor 'sample'")


RUNNING: "WeakKeyDictionary[nn.Module, float]" = WeakKeyDictionary()  # mean cost so far, by model


@dataclass(frozen=True, kw_only=True)
class Reinforce(RiskObjective):
    """Expected cost by the score-function gradient of one sample (Ranzato et al. 2016).

    The running mean lives as long as the model, and starts again when a run is resumed; the
    greedy baseline has no memory.

    Args:
        baseline: greedy subtracts the cost of the greedy output (self-critical, Rennie et al.
            2017), running the mean cost of earlier batches, none nothing.
        gold_steps: number of steps at the beginning of a sentence that are gold, trained by
            cross-entropy; the rest is sampled (MIXER). Falling, e.g. Linear(start=20, slope=-2).
        momentum: of the running mean.
    """

    baseline: Literal["greedy", "running", "none"] = "greedy"
    gold_steps: Schedule = Constant(value=0.0)
    momentum: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("momentum", self.momentum, least=0, below=1)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        steps = max(0, int(self.gold_steps(now)))
        fed, ends = batch.target[:, :steps], self.searched(batch).ends
        drawn = losses.rollout(decoder, ends, gold=fed, rng=rng)
        costs = self.costs(drawn, batch).squeeze(1)
        log_probs = tracked.token_scores(decoder, drawn.tokens, drawn.lengths).squeeze(1)
        if self.baseline == "greedy":
            baseline = self.costs(losses.rollout(decoder, ends, gold=fed), batch).squeeze(1)
        else:
            baseline = costs.new_full(costs.shape, self.remembered(model, costs.mean().item()))
        surrogate = losses.reinforce_loss(log_probs, costs, baseline, gold_steps=fed.shape[1])
        n = min(fed.shape[1], log_probs.shape[1])
        gold = -log_probs[:, :n][batch.mask[:, :n]].sum()
        log = {"cost": costs.mean().item(), "baseline": baseline.mean().item()}
        total = (batch.ends.lengths * surrogate).sum() + gold
        return total, log | {"gold_steps": float(steps)}

    def remembered(self, model: "nn.Module", cost: float) -> float:
        """The mean cost of earlier batches; the cost of this one is added to it afterwards."""
        if self.baseline == "none":
            return 0.0
        if self.baseline != "running":
            raise ValueError(f"baseline={self.baseline!r} is none of greedy, running, none")
        model = getattr(model, "model", model)  # of an adapter, which is made for each batch
        before = RUNNING.get(model)
        RUNNING[model] = cost if before is None else before + (1 - self.momentum) * (cost - before)
        return 0.0 if before is None else before
