"""Judge the papers' claims by our runs: reproduced, not reproduced or undecided.

A claim is a difference with a sign. For each repetition (a seed, a dataset, a chain) `gaps` has the
difference that was measured, positive in the claimed direction. The interval of the difference is
over repetitions, and over sentences as well where outputs can be compared sentence by sentence.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args
from warnings import catch_warnings, simplefilter

from softbeam._lazy import lazy

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = lazy("scipy.stats")

Verdict = Literal["reproduced", "not reproduced", "undecided"]


class Judged(TypedDict):
    """A claim, its verdict, and the effect that was measured, with its uncertainty."""

    claim: str
    source: str  # where it is stated
    verdict: Verdict
    within: float | None  # the largest difference, of either sign, if a small one is claimed
    effect: float
    spread: float | None  # standard deviation over the repetitions
    right: int  # repetitions that point in the claimed direction ...
    repetitions: int  # ... of these
    interval: list[float] | None  # 95 %
    p: float | None  # two-sided, of no difference
    over: Literal["seeds and sentences", "repetitions"] | None  # what interval and p are about


def judged(
    claim: str,
    gaps: Sequence[float],
    *,
    source: str = "",
    tested: Mapping[str, Any] | None = None,
    within: float | None = None,
) -> Judged:
    """Judge a claim by its 95 % interval.

    Reproduced: the whole interval is above 0. Not reproduced: all of it is below 0. Undecided:
    anything else. If a difference of at most `within` is claimed, the interval has to be inside or
    outside of -within to within.

    Args:
        claim: the claim, as text.
        gaps: the difference of each repetition, positive in the claimed direction.
        source: where the claim is stated.
        tested: interval and p-value of the difference over seeds and sentences, if known
            (`training.significance.crossed_interval`).
        within: the largest difference, of either sign, if a small one is claimed.
    """
    interval, p = over_repetitions(gaps)
    if tested is not None:
        interval, p = list(tested["interval"]), float(tested["p_value"])
    verdict: Verdict = "undecided"
    if interval is not None:
        low, high = interval
        if within is None:
            holds, fails = low > 0, high < 0
        else:
            holds, fails = -within <= low and high <= within, low > within or high < -within
        verdict = "reproduced" if holds else "not reproduced" if fails else "undecided"
    right = sum(gap > 0 if within is None else abs(gap) <= within for gap in gaps)
    return {
        "claim": claim,
        "source": source,
        "verdict": verdict,
        "within": within,
        "effect": mean(gaps),
        "spread": stdev(gaps) if len(gaps) > 1 else None,
        "right": right,
        "repetitions": len(gaps),
        "interval": interval,
        "p": p,
        "over": None if interval is None else "seeds and sentences" if tested else "repetitions",
    }


def verdict_counts(claims: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The number of claims with each verdict."""
    verdicts = [claim["verdict"] for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}


def over_repetitions(gaps: Sequence[float]) -> tuple[list[float] | None, float | None]:
    """Student's 95 % interval and two-sided p-value of the mean; None of a single value."""
    if len(gaps) < 2:
        return None, None
    if len(set(gaps)) == 1:  # no variance, with which scipy gives no interval
        return [gaps[0], gaps[0]], float(gaps[0] == 0)
    with catch_warnings():
        simplefilter("ignore", RuntimeWarning)  # of values that hardly differ
        test = stats.ttest_1samp(gaps, 0.0)
    return [float(end) for end in test.confidence_interval(0.95)], float(test.pvalue)


def claim_text(judgement: Judged) -> str:
    """A line about a judged claim, its verdict first."""
    spread = "" if judgement["spread"] is None else f" ±{judgement['spread']:.3f}"
    parts = [f"by {judgement['effect']:.3f}{spread}"]
    if judgement["interval"] is not None and judgement["p"] is not None:
        low, high = judgement["interval"]
        parts.append(
            f"95 % {low:.3f} to {high:.3f} over {judgement['over']}, p = {judgement['p']:.2g}"
        )
    parts.append(f"right in {judgement['right']} of {judgement['repetitions']}")
    return f"{judgement['verdict'].upper():14}  {judgement['claim']}: {', '.join(parts)}"
