"""Errors that the command line prints as one line, and checks of ranges."""

import math
import re
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
LARGEST_COUNT = 10**9  # of a setting that is a whole number and has no other limit
LARGEST_NUMBER = 1e30  # of any other setting: float32 ends at 3e38
MOST_THREADS = 512  # torch crashes with many more
WIDEST_BEAM = 10_000
TEMPERATURES = {"least": 1e-6, "most": 1e6}  # scores are divided by them


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

    A value without an upper or lower limit has `LARGEST_COUNT` or `LARGEST_NUMBER` for one. A
    value that must be above 0 is at least 1 / LARGEST_NUMBER. None is a value that was not given.
    """
    if value is None:
        return
    widest = LARGEST_COUNT if isinstance(value, int) else LARGEST_NUMBER
    if math.inf == most == below and value > widest:
        most = widest
    if -math.inf == least == above and value < -widest:
        least = -widest
    if above == 0 and 0 < value < 1 / LARGEST_NUMBER:
        least = 1 / LARGEST_NUMBER
    if least <= value <= most and above < value < below:
        return
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    said = " and ".join(
        f"{word} {x:,.0f}" if 10**6 <= abs(x) < LARGEST_NUMBER else f"{word} {x:g}"
        for word, x in limits.items()
        if math.isfinite(x)
    )
    raise UserError(f"{name} {str(value)[:60]}: must be {said or 'finite'}")


def check_threads(threads: int) -> None:
    """Raises UserError if torch cannot use this number of threads."""
    check_range("--threads", threads, least=1, most=MOST_THREADS)


# How torch, numpy and C++ say that there is no memory, or that a number does not fit.
NO_MEMORY = re.compile("can.t allocate memory|not enough memory|out of memory|bad_alloc")
TOO_LARGE = re.compile("[Oo]verflow|Maximum allowed dimension|[Tt]oo many elements")


def shortage(error: BaseException) -> str | None:
    """Name the limit of the machine that an error reports, or return None for other errors."""
    text = str(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and NO_MEMORY.search(text)
    ):
        size = re.search(r"allocate (\d+) bytes", text)
        return "not enough memory" + (f" for {int(size[1]):,} bytes" if size else "")
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    kinds = (RuntimeError, ValueError, TypeError)
    if isinstance(error, OverflowError) or (isinstance(error, kinds) and TOO_LARGE.search(text)):
        return "a number is too large to compute with"
    return None


UNION = "Does not validate against any of the Union subtypes"  # how jsonargparse begins such a list


def reason(error: BaseException) -> str:
    """An error's text on one line; of a list of what no type of a union took, the first entry."""
    first, deepest = (str(error).splitlines() or [""])[0], error
    while UNION in str(deepest) and deepest.__cause__ is not None:
        deepest = deepest.__cause__
    head = first if deepest is not error and UNION not in first else ""
    return " ".join(f"{head} {deepest}".split())
