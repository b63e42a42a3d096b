"""Judge the papers' claims by our runs, with five verdicts.

A claim is a difference with a sign. For each repetition (a seed, a dataset, a chain) `gaps` has the
difference that was measured, positive in the claimed direction. The interval of the difference is
over repetitions, and over sentences as well where outputs can be compared sentence by sentence:
`training.significance.crossed_test` for all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any, Literal, NotRequired, TypedDict, get_args

from softbeam.training.significance import Gaps, crossed_test, holm

Verdict = Literal[
    "reproduced",
    "reproduced smaller",  # the right sign, and the published size is excluded
    "not reproduced",
    "published size excluded",  # no difference is possible, the published one is not
    "undecided",
]

Over = Literal["seeds and sentences", "sentences", "repetitions"]


class Judged(TypedDict):
    """A claim, its verdict, and the effect that was measured, with its uncertainty."""

    claim: str
    source: str  # where it is stated
    verdict: Verdict
    within: float | None  # the largest difference, of either sign, if a small one is claimed
    published: float | None  # the published effect, in the units of ours
    effect: float
    spread: float | None  # standard deviation over the repetitions
    right: int  # repetitions that point in the claimed direction ...
    repetitions: int  # ... of these
    interval: list[float] | None  # 95 %
    p: float | None  # two-sided, of no difference
    p_holm: float | None  # the same, corrected for the other claims of the table
    over: Over | None  # what interval and p are about
    rhat: NotRequired[float]  # of chains that have not mixed: then the claim is not judged


def judged(
    claim: str,
    gaps: Gaps | Sequence[float],
    *,
    source: str = "",
    within: float | None = None,
    published: float | None = None,
) -> Judged:
    """Judge a claim by its 95 % interval.

    Reproduced: the whole interval is above 0 (reproduced smaller, if all of it is also below the
    published effect). Not reproduced: all of it is below 0. Published size excluded: it contains 0
    and ends below the published effect. Undecided: anything else, and whatever has no spread or a
    single repetition. If a difference of at most `within` is claimed, the interval has to be inside
    or outside of -within to within.

    Args:
        claim: the claim, as text.
        gaps: the difference of each repetition, positive in the claimed direction; with the
            effects of sentences, if they are known.
        source: where the claim is stated.
        within: the largest difference, of either sign, if a small one is claimed.
        published: the published effect, if it is in the units of ours.
    """
    test = crossed_test(gaps)
    by_sentence = isinstance(gaps, Gaps)
    values = [float(gap) for gap in (gaps.runs if isinstance(gaps, Gaps) else gaps)]
    several = len(values) > 1
    verdict: Verdict = "undecided"
    if test is not None and several and test.interval[0] < test.interval[1]:
        verdict = verdict_of(test.interval, within, published)
    right = sum(gap > 0 if within is None else abs(gap) <= within for gap in values)
    about: Over = "repetitions"
    if by_sentence:
        about = "seeds and sentences" if several else "sentences"
    return {
        "claim": claim,
        "source": source,
        "verdict": verdict,
        "within": within,
        "published": published,
        "effect": sum(values) / len(values),
        "spread": stdev(values) if several else None,
        "right": right,
        "repetitions": len(values),
        "interval": None if test is None else list(test.interval),
        "p": None if test is None else test.p_value,
        "p_holm": None,
        "over": None if test is None else about,
    }


def verdict_of(interval: Sequence[float], within: float | None, published: float | None) -> Verdict:
    """Return the verdict that an interval gives, as `judged` says."""
    low, high = interval
    if within is not None:
        if -within <= low and high <= within:
            return "reproduced"
        return "not reproduced" if low > within or high < -within else "undecided"
    if high < 0:
        return "not reproduced"
    smaller = published is not None and high < published
    if low > 0:
        return "reproduced smaller" if smaller else "reproduced"
    return "published size excluded" if smaller else "undecided"


def reason(claim: Mapping[str, Any]) -> str:
    """Say in one line why a judged claim is not simply reproduced; empty if it is.

    Records of old have no published effect; then nothing is said of it.
    """
    within, published = claim["within"], claim.get("published")
    size = "" if published is None else f"the published {published:.3g}"
    if claim["interval"] is None or claim["repetitions"] == 1:
        return "a single repetition"
    low, high = claim["interval"]
    if low == high:
        return "no spread"
    if claim["verdict"] == "undecided":
        if within is not None:
            return f"the interval crosses the margin of {within:g}"
        both = f" and {size}" if published is not None and low <= published <= high else ""
        return f"the interval contains 0{both}"
    reasons = {
        "reproduced": "",
        "reproduced smaller": f"the interval is between 0 and {size}",
        "not reproduced": f"the interval is {'below 0' if within is None else 'beyond the margin'}",
        "published size excluded": f"the interval contains 0, and ends below {size}",
    }
    return reasons[claim["verdict"]]


def with_holm(claims: Iterable[Judged]) -> list[Judged]:
    """Add the p-values that Holm's method gives for the claims of one table."""
    claims = list(claims)
    tested = [claim["p"] for claim in claims if claim["p"] is not None]
    corrected = iter(holm(tested))
    return [c if c["p"] is None else {**c, "p_holm": next(corrected)} for c in claims]


def verdict_counts(claims: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The number of claims with each verdict."""
    verdicts = [claim["verdict"] for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}


def claim_text(judgement: Mapping[str, Any]) -> str:
    """A line about a judged claim, its verdict first; records of old lack some figures."""
    spread = "" if judgement["spread"] is None else f" ±{judgement['spread']:.3f}"
    printed = judgement.get("published")
    size = "" if printed is None else f" (published {printed:.3g})"
    parts = [f"by {judgement['effect']:.3f}{spread}{size}"]
    if judgement["interval"] is not None and judgement["p"] is not None:
        low, high = judgement["interval"]
        corrected = judgement.get("p_holm")
        of_all = "" if corrected is None else f" (Holm {corrected:.2g})"
        tested = f"over {judgement['over']}, p = {judgement['p']:.2g}{of_all}"
        parts.append(f"95 % {low:.3f} to {high:.3f} {tested}")
    parts.append(f"right in {judgement['right']} of {judgement['repetitions']}")
    if why := reason(judgement):
        parts.append(why)
    return f"{judgement['verdict'].upper():{WIDTH}}  {judgement['claim']}: {', '.join(parts)}"


def not_judged_text(claim: Mapping[str, Any]) -> str:
    """A line about a claim whose chains have not mixed: they show where they started."""
    return (
        f"{'NOT JUDGED':{WIDTH}}  {claim['claim']}: R-hat {claim['rhat']:.2f}, the chains have not "
        f"mixed (start bias, {claim['effect']:.3f})"
    )


WIDTH = max(map(len, get_args(Verdict)))


def is_claim_text(line: str) -> bool:
    """Say whether a line of a record was made by `claim_text`, of this version or of an older."""
    return line.split("  ")[0] in {verdict.upper() for verdict in get_args(Verdict)}
