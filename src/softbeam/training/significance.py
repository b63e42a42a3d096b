"""How sure a difference between two systems is, over seeds and over sentences.

`crossed_test` is the one test of the project: a Student's t whose variance has a term for the seeds
and a term for the sentences that all seeds share. docs/design/0014-claims.md has its error rates.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softbeam._lazy import lazy
from softbeam.training.metrics import Array, _check_lengths, mean

if TYPE_CHECKING:
    from scipy import special
else:
    special = lazy("scipy.special")

Rows = np.ndarray[Any, np.dtype[np.int64]]
LEVEL = 0.95  # of intervals
NO_SPREAD = 1e-12  # a standard error below this share of the difference is rounding


class Test(NamedTuple):
    """A difference, its 95 % interval and the two-sided p-value of no difference."""

    difference: float
    interval: tuple[float, float]
    p_value: float


class Gaps(NamedTuple):
    """By how much run i of a system is above run i of another, and what each sentence does to it.

    Args:
        runs: the differences, one for each pair of runs.
        effects: how far sentence j moves the difference of run i, in such units that the products
            of two runs, summed over sentences, are the covariance of their differences.
        sentences: the number of sentences that were drawn.
    """

    runs: Array
    effects: Array
    sentences: int

    def less(self, other: "Gaps", *, same_sentences: bool) -> "Gaps":
        """Subtract the differences of two other systems, on the same sentences or on others."""
        if same_sentences:
            effects = self.effects - other.effects
        else:
            effects = np.concatenate([self.effects, -other.effects], 1)
        fewest = min(self.sentences, other.sentences)
        return Gaps(self.runs - other.runs, effects, fewest)


def sentence_gaps(
    a: Sequence[Sequence[Any]],
    b: Sequence[Sequence[Any]],
    *,
    statistic: Callable[[Any], float] = mean,
) -> Gaps:
    """Compute the differences of runs, and by a jackknife what each sentence does to them.

    `a[i][j]` is what run i of the first system scores on sentence j; run i of the second is its
    partner. A sentence's score is a number, or a row of numbers (right and all tokens, say) whose
    sums `statistic` turns into one figure: it is called with an array of one row, the sums. So F1
    and BLEU, which are no means over sentences, have the same test: a sentence's effect is the
    change of the figure when it is left out.
    """
    _check_lengths(a=a, b=b)
    _check_lengths(**({"a": a[0], "b": b[0]} if len(a) == 1 else numbered(a=a, b=b)))
    scores = [np.asarray(x, dtype=float) for x in (a, b)]
    for name, array in zip("ab", scores, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has scores that are not finite")
    if scores[0].ndim == 2:
        if statistic is not mean:
            raise ValueError("a statistic is of rows of numbers; single numbers have their mean")
        scores, statistic = [np.stack([x, np.ones_like(x)], -1) for x in scores], _mean_of
    n = scores[0].shape[1]
    sides = []
    for system in scores:
        sums = system.sum(1, keepdims=True)
        rest = sums - system if n > 1 else sums
        parts = np.concatenate([sums, rest], 1)
        sides.append(np.array([[statistic(row[None]) for row in run] for run in parts]))
    gaps = sides[0] - sides[1]
    without = gaps[:, 1:]
    effects = (without - without.mean(1, keepdims=True)) * ((n - 1) / n) ** 0.5
    return Gaps(gaps[:, 0], effects, n)


def drawn_gaps(gaps: Array, sentences: int) -> Gaps:
    """Make the same of a bootstrap: `gaps[i, 0]` is of all sentences, the rest of drawn ones."""
    drawn = gaps[:, 1:]
    effects = (drawn - drawn.mean(1, keepdims=True)) / max(drawn.shape[1] - 1, 1) ** 0.5
    return Gaps(gaps[:, 0], effects, sentences)


def crossed_test(gaps: Gaps | Sequence[float]) -> Test | None:
    """Test the mean difference over runs; None if a single run has no sentences to vary.

    With R runs whose differences have the variance s^2, and B the covariance that two runs have by
    their common sentences, the mean has the variance V = s^2/R + B. One run has the variance of
    its sentences. The degrees of freedom are the harmonic mean of R - 1 and the sentences less
    one, weighted by the shares of both terms. Satterthwaite's squares the shares, which decides
    up to 8 % of true zeros with three seeds; this decides 3.6 to 5.8 % with three seeds and more.

    Without any spread there is nothing to test by: the interval is the difference itself, and p is
    that of a sign test, 2^(1 - n) of n runs (of n sentences, if there is one run).
    """
    if not isinstance(gaps, Gaps):
        gaps = Gaps(np.asarray(gaps, dtype=float), np.zeros((len(gaps), 0)), 0)
    count, sentences = len(gaps.runs), gaps.sentences
    if count == 1 and sentences < 2:
        return None
    middle = float(gaps.runs.mean())
    covariance = gaps.effects @ gaps.effects.T
    if count == 1:
        seeds, shared = 0.0, float(covariance[0, 0])
    else:
        between = covariance.sum() - covariance.trace()
        seeds = float(gaps.runs.var(ddof=1) / count)
        shared = max(0.0, float(between / (count * (count - 1))))
    variance = seeds + shared
    if variance**0.5 <= NO_SPREAD * abs(middle):
        units = count if count > 1 else sentences
        return Test(middle, (middle, middle), 1.0 if middle == 0 else 2.0 ** max(1 - units, -1000))
    inverse = seeds / max(count - 1, 1) + shared / max(sentences - 1, 1)
    freedom, error = variance / inverse, variance**0.5
    half = float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p_value = float(2 * special.stdtr(freedom, -abs(middle) / error))
    return Test(middle, (middle - half, middle + half), max(p_value, 1e-300))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values of one family by Holm's method; the order stays."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def sentence_interval(
    scores: Sequence[Any], *, samples: int = 200, statistic: Callable[[Any], float] = mean
) -> tuple[float, float]:
    """Compute the 95 % interval of one system's figure over sentences drawn with replacement.

    The scores and the statistic are those of `sentence_gaps`.
    """
    table, rng = np.asarray(scores, dtype=float), np.random.default_rng(0)
    if table.ndim == 1:
        table, statistic = np.stack([table, np.ones_like(table)], -1), _mean_of
    draws = (_drawn(len(table), rng) @ table for _ in range(samples))
    low, high = np.percentile([statistic(sums[None]) for sums in draws], [2.5, 97.5])
    return float(low), float(high)


def resampled_intervals(
    score: Callable[[Rows], dict[str, float]], sentences: int, *, samples: int = 200
) -> dict[str, tuple[float, float]]:
    """Compute 95 % intervals of any figures over sentences drawn with replacement.

    Args:
        score: from the numbers of sentences, of which some come several times, to the figures.
        sentences: how many there are.
        samples: of the bootstrap.
    """
    rng = np.random.default_rng(0)
    draws = [score(rng.integers(sentences, size=sentences)) for _ in range(samples)]
    ends = {name: np.percentile([draw[name] for draw in draws], [2.5, 97.5]) for name in draws[0]}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _drawn(sentences: int, rng: np.random.Generator) -> Array:
    """Count how often each of n items is drawn in n draws with replacement."""
    rows = rng.integers(sentences, size=sentences)
    return np.bincount(rows, minlength=sentences).astype(float)


def _mean_of(rows: Any) -> float:
    total, count = rows.sum(0)
    return float(total / count)


def numbered(**systems: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Give each run of each system a name of its own."""
    return {f"run {i} of {n}": run for n, runs in systems.items() for i, run in enumerate(runs)}
