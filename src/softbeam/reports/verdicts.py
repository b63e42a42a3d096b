"""What the documents state of a table, judged by the runs: reproduced, not reproduced, undecided.

A claim is a difference with a sign: `gaps` says for each repetition (a seed, a dataset, a chain)
how far the figures go in the claimed direction. Its interval is over repetitions, and over
sentences as well where outputs can be compared sentence by sentence.
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
    """A claim, what was found of it, and how sure that is."""

    claim: str
    source: str  # where it is stated
    verdict: Verdict
    within: float | None  # if a difference of at most so much is claimed, of either sign
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
    """A claim's verdict.

    Reproduced: the whole interval is above 0. Not reproduced: all of it is below 0. Undecided:
    anything else. If a difference of at most `within` is claimed, the interval has to be inside or
    outside of that.

    Args:
        gaps: by repetition; positive as claimed.
        tested: the same difference over seeds and sentences
        (`training.significance.crossed_bootstrap`).
        within: a small difference is claimed, of either sign.
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
    """How many claims have each verdict."""
    found = [claim["verdict"] for claim in claims]
    return {verdict: found.count(verdict) for verdict in get_args(Verdict)}


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


def claim_text(found: Judged) -> str:
    """One line: the verdict first."""
    spread = "" if found["spread"] is None else f" ±{found['spread']:.3f}"
    parts = [f"by {found['effect']:.3f}{spread}"]
    if found["interval"] is not None and found["p"] is not None:
        low, high = found["interval"]
        parts.append(f"95 % {low:.3f} to {high:.3f} over {found['over']}, p = {found['p']:.2g}")
    parts.append(f"right in {found['right']} of {found['repetitions']}")
    return f"{found['verdict'].upper():14}  {found['claim']}: {', '.join(parts)}"
