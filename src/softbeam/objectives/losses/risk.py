"""Minimum risk and REINFORCE: losses over whole outputs and their costs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from softbeam._lazy import lazy
from softbeam.search.hard import ancestral_sample, beam_search, one_by_one
from softbeam.search.tracked import Repeated
from softbeam.tensors import draw
from softbeam.types import Decoder, Ends, Hypotheses

if TYPE_CHECKING:
    from rapidfuzz.distance import Levenshtein
    from sacrebleu.metrics import bleu as sacrebleu
else:
    Levenshtein = lazy("rapidfuzz.distance.Levenshtein")
    sacrebleu = lazy("sacrebleu.metrics.bleu")

Metric = Callable[[Sequence[int], Sequence[int]], float]  # (predicted, gold) -> cost, 0 is perfect


def sentence_costs(
    metric: Metric,
    outputs: Hypotheses,
    target: Int[Tensor, "batch target_time"],
    lengths: Int[Tensor, " batch"],
) -> Float[Tensor, "batch n"]:
    """The metric of each output against its sentence's gold tokens; end marks are tokens."""
    golds = [gold[:n] for gold, n in zip(target.tolist(), lengths.tolist(), strict=True)]
    tokens, sizes = outputs.tokens.tolist(), outputs.lengths.tolist()
    costs = [
        [metric(path[:n], gold) for path, n in zip(paths, ns, strict=True)]
        for paths, ns, gold in zip(tokens, sizes, golds, strict=True)
    ]
    return outputs.scores.new_tensor(costs)


@torch.no_grad()
def beam_candidates(decoder: Decoder, ends: Ends, *, n: int) -> Hypotheses:
    """The n best of a beam of n; a score of -inf marks places that a small space leaves empty."""
    return beam_search(decoder, k=n, lengths=ends.lengths, eos=ends.eos, nbest=n)


@torch.no_grad()
def sampled_candidates(decoder: Decoder, ends: Ends, *, n: int, rng: Generator) -> Hypotheses:
    """n outputs of each source by ancestral sampling, with repetitions."""
    lengths = ends.lengths.repeat_interleave(n)
    drawn = ancestral_sample(Repeated(decoder, n), lengths=lengths, eos=ends.eos, rng=rng)
    shape = (len(ends.lengths), n)
    tokens = drawn.tokens.squeeze(1).unflatten(0, shape)
    return Hypotheses(tokens, *(v.squeeze(1).unflatten(0, shape) for v in drawn[1:]))


def with_gold(
    outputs: Hypotheses, target: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"]
) -> Hypotheses:
    """The candidates with gold before them (at score 0)."""
    time = max(outputs.tokens.shape[2], target.shape[1])
    gold, others = (pad(t, (0, time - t.shape[-1])) for t in (target[:, None], outputs.tokens))
    return Hypotheses(
        torch.cat([gold, others], 1),
        torch.cat([lengths[:, None], outputs.lengths], 1),
        pad(outputs.scores, (1, 0)),
    )


def distinct(outputs: Hypotheses) -> Bool[Tensor, "batch n"]:
    """True at the first of equal candidates, False at empty places."""
    same = (outputs.tokens[:, :, None] == outputs.tokens[:, None]).all(-1)
    same &= outputs.lengths[:, :, None] == outputs.lengths[:, None]
    return ~same.tril(-1).any(-1) & ~outputs.scores.isneginf()


def expected_risk(
    scores: Float[Tensor, "batch n"],
    costs: Float[Tensor, "batch n"],
    kept: Bool[Tensor, "batch n"],
    *,
    sharpness: float = 1.0,
) -> Float[Tensor, " batch"]:
    """Expected cost under softmax(sharpness * scores) over the kept (Shen et al. 2016).

    Over the whole space, with log-probabilities and sharpness 1, it is the model's expected cost.
    """
    weights = (sharpness * scores).masked_fill(~kept, float("-inf")).softmax(-1)
    return (weights * costs.to(weights.dtype)).sum(-1)


@torch.no_grad()
def rollout(
    decoder: Decoder,
    ends: Ends,
    *,
    gold: Int[Tensor, "batch gold_steps"],
    rng: Generator | None = None,
) -> Hypotheses:
    """Outputs that begin with the gold tokens and continue with samples, or greedily."""
    first = iter(gold.unbind(1))

    def choose(scores: Tensor) -> Tensor:
        given = next(first, None)
        if given is not None:
            return given
        if rng is None:
            return scores.argmax(-1)
        return draw(scores.softmax(-1), rng).squeeze(-1)

    return one_by_one(decoder, choose, lengths=ends.lengths, eos=ends.eos)


def reinforce_loss(
    log_probs: Float[Tensor, "batch time"],
    costs: Float[Tensor, " batch"],
    baseline: Float[Tensor, " batch"] | float = 0.0,
    *,
    gold_steps: int = 0,
) -> Float[Tensor, " batch"]:
    """(cost - baseline) * log p(y_s+1: | y_1:s), of an output's log-probabilities (Williams 1992).

    The expected gradient is that of the expected cost of what follows `gold_steps` gold tokens,
    for any baseline that does not depend on the sample; only the gradient is of interest.
    """
    return (costs - baseline).to(log_probs.dtype) * log_probs[:, gold_steps:].sum(1)


Words = Sequence[int] | Sequence[str]


def hamming_rate(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """The share of wrong tokens; those that only one of the two has are wrong."""
    right = sum(a == b for a, b in zip(predicted, gold, strict=False))
    return 1.0 - right / max(len(predicted), len(gold), 1)


def edit_rate(predicted: Words, gold: Words) -> float:
    """Edit distance per gold token; insertions can take it beyond 1."""
    return float(Levenshtein.distance(predicted, gold)) / max(len(gold), 1)


def bleu_cost(predicted: Words, gold: Words) -> float:
    """1 - BLEU of one sentence, smoothed and with sacrebleu's effective order."""
    texts = [" ".join(map(str, tokens)) for tokens in (predicted, gold)]
    score = float(_sentence_bleu().sentence_score(texts[0], [texts[1]]).score)
    return max(0.0, 1.0 - score / 100)  # sacrebleu's 100 may be 100.00000000000004


@cache
def _sentence_bleu() -> Any:
    return sacrebleu.BLEU(tokenize="none", smooth_method="exp", effective_order=True, force=True)


METRICS: dict[str, Metric] = {"hamming": hamming_rate, "edit": edit_rate, "bleu": bleu_cost}
