"""Errors that the command line prints as one line, and checks of ranges."""

import math
from importlib.util import find_spec


class UserError(Exception):
    """An error that the user can fix; the message names the setting, its value and the limit."""


class NotFinite(UserError):
    """Scores, a loss or a gradient that are infinite or not a number, before a weight changes."""


class Interrupted(Exception):
    """A signal asked to stop; everything needed to go on has been saved."""

    def __init__(self, signum: int, hint: str):
        super().__init__(hint)
        self.signum = signum


class MissingExtra(UserError):
    """An optional package is not installed; the sentence names the extra that brings it."""

    def __init__(self, package: str, extra: str):
        super().__init__(f"{package} is not installed: pip install 'softbeam[{extra}]'")


def need(package: str, extra: str) -> None:
    """A `MissingExtra` if the package is not there, before anything long begins."""
    if find_spec(package) is None:
        raise MissingExtra(package, extra)


LARGEST_SEED = 2**32 - 1  # numpy's


def check_range(
    name: str,
    value: float | None,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raises UserError if a value is outside of its limits or not a number.

    None is a value that was not given.
    """
    if value is None or (least <= value <= most and above < value < below):
        return
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    said = " and ".join(
        f"{word} {x:,.0f}" if abs(x) >= 10**6 else f"{word} {x:g}"
        for word, x in limits.items()
        if math.isfinite(x)
    )
    raise UserError(f"{name} {value}: must be {said or 'finite'}")


UNION = "Does not validate against any of the Union subtypes"  # how jsonargparse begins such a list


def reason(error: BaseException) -> str:
    """An error's text on one line; of a list of what no type of a union took, the first entry."""
    first, deepest = (str(error).splitlines() or [""])[0], error
    while UNION in str(deepest) and deepest.__cause__ is not None:
        deepest = deepest.__cause__
    head = first if deepest is not error and UNION not in first else ""
    return " ".join(f"{head} {deepest}".split())
