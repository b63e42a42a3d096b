"""The one exception that the command line turns into a sentence and exit code 2."""

import math


class UserError(Exception):
    """Something the user can mend: names the thing, the value and the limit, in one sentence."""


class Interrupted(Exception):
    """A signal asked to stop; everything needed to go on has been saved."""

    def __init__(self, signum: int, hint: str):
        super().__init__(hint)
        self.signum = signum


class MissingExtra(UserError):
    """An optional package is not installed; the sentence names the extra that brings it."""

    def __init__(self, package: str, extra: str):
        super().__init__(f"{package} is not installed: pip install 'softbeam[{extra}]'")


def limited(
    name: str,
    value: float | None,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """A UserError that names a value and its limits if it is outside of them, or not a number.

    None is a value that was not given.
    """
    if value is None or (least <= value <= most and above < value < below):
        return
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    said = " and ".join(f"{word} {x:g}" for word, x in limits.items() if math.isfinite(x))
    raise UserError(f"{name} {value}: must be {said or 'finite'}")
