"""Paired and crossed bootstraps: how sure a difference between two systems is."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softbeam.training.metrics import Array, _check_lengths, mean


def paired_bootstrap(
    a: Sequence[Any],
    b: Sequence[Any],
    *,
    samples: int = 1000,
    seed: int = 0,
    statistic: Callable[[Any], float] = mean,
) -> dict[str, Any]:
    """Test the difference of two systems from their scores on the same sentences.

    Draws sentences with replacement, the same for both, and returns `difference` (of a over b),
    its 95 % percentile `interval` and a two-sided `p_value`. Swapping a and b changes only signs.
    A sentence's score is a number, or a row of numbers (right and all tokens, say) whose sums
    `statistic` turns into one figure: it is called with an array of one row, the sums.
    """
    return crossed_bootstrap([a], [b], samples=samples, seed=seed, statistic=statistic)


def crossed_bootstrap(
    a: Sequence[Sequence[Any]],
    b: Sequence[Sequence[Any]],
    *,
    samples: int = 1000,
    seed: int = 0,
    statistic: Callable[[Any], float] = mean,
) -> dict[str, Any]:
    """Test the difference of two systems that were trained several times, by seeds and sentences.

    `a[i][j]` is what run i of the first system scores on sentence j; run i of the second is its
    partner. The figure of a system is the mean of its runs' figures. A sentence brings all its
    runs, and a run all its sentences, so that neither counts as more than it is: three runs on the
    same thousand sentences are not three thousand sentences.
    """
    rng = np.random.default_rng(seed)
    gaps = sentence_gaps(a, b, rng, samples=samples, statistic=statistic)
    return {"difference": mean(gaps[:, 0]), **crossed_interval(gaps[:, 1:], rng)}


def sentence_gaps(
    a: Sequence[Sequence[Any]],
    b: Sequence[Sequence[Any]],
    rng: np.random.Generator,
    *,
    samples: int = 1000,
    statistic: Callable[[Any], float] = mean,
) -> Array:
    """Compute by how much run i of a is above run i of b: on all sentences, then on drawn ones.

    Returns an array of `runs` times `1 + samples`. The sentences of a draw are the same for all,
    and count as often as they are drawn: figures are of sums, which need no copies of sentences.
    """
    _check_lengths(a=a, b=b)
    lists = {"a": a[0], "b": b[0]} if len(a) == 1 else numbered(a=a, b=b)
    _check_lengths(**lists)
    _check_samples(samples)
    scores = [np.asarray(a, dtype=float), np.asarray(b, dtype=float)]
    for name, array in zip("ab", scores, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has scores that are not finite")
    if scores[0].ndim == 2:
        if statistic is not mean:
            raise ValueError("a statistic is of rows of numbers; single numbers have their mean")
        scores, statistic = [np.stack([x, np.ones_like(x)], -1) for x in scores], _mean_of
    runs, sentences, columns = scores[0].shape
    table = np.concatenate([x.transpose(1, 0, 2) for x in scores], 1).reshape(sentences, -1)
    gaps = np.empty((runs, 1 + samples))
    for first in range(0, 1 + samples, 500):
        few = range(first, min(first + 500, 1 + samples))
        times = np.array([_drawn(sentences, rng) if i else np.ones(sentences) for i in few])
        sums = (times @ table).reshape(len(few), 2, runs, 1, columns)
        for place, (ours, theirs) in zip(few, sums, strict=True):
            gaps[:, place] = [
                statistic(x) - statistic(y) for x, y in zip(ours, theirs, strict=True)
            ]
    return gaps


def sentence_interval(
    scores: Sequence[Any], *, samples: int = 200, statistic: Callable[[Any], float] = mean
) -> tuple[float, float]:
    """Compute the 95 % interval of one system's figure over sentences drawn with replacement.

    The scores and the statistic are those of `paired_bootstrap`.
    """
    table, rng = np.asarray(scores, dtype=float), np.random.default_rng(0)
    if table.ndim == 1:
        table, statistic = np.stack([table, np.ones_like(table)], -1), _mean_of
    draws = (_drawn(len(table), rng) @ table for _ in range(samples))
    low, high = np.percentile([statistic(sums[None]) for sums in draws], [2.5, 97.5])
    return float(low), float(high)


def _drawn(sentences: int, rng: np.random.Generator) -> Array:
    """Count how often each of n items is drawn in n draws with replacement."""
    rows = rng.integers(sentences, size=sentences)
    return np.bincount(rows, minlength=sentences).astype(float)


def _mean_of(rows: Any) -> float:
    total, count = rows.sum(0)
    return float(total / count)


def crossed_interval(gaps: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Compute the 95 % `interval` and two-sided `p_value` of the mean over drawn runs.

    `gaps[i, j]` is a figure of run i on the j-th draw of sentences: with a run drawn for each
    place, every column is a draw of both.
    """
    runs, samples = gaps.shape
    drawn = rng.integers(runs, size=(runs, samples))
    differences = np.take_along_axis(gaps, drawn, 0).mean(0)
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    low, high = np.percentile(differences, [2.5, 97.5])
    return {
        "interval": (float(low), float(high)),
        "p_value": min(1.0, 2 * (int(tail) + 1) / (samples + 1)),
    }


def numbered(**systems: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Give each run of each system a name of its own."""
    return {f"run {i} of {n}": run for n, runs in systems.items() for i, run in enumerate(runs)}


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples={samples} must be at least 1")
