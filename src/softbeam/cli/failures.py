"""Turn an error into the line and the exit code with which a command ends."""

import re

from softbeam.cli.parser import options
from softbeam.errors import Interrupted, UserError, shortage
from softbeam.runtime.signals import signum_of

GOES_ON = dict.fromkeys(
    ("compare", "sweep", "reproduce"), "stopped; the same command continues after what is finished"
)


def explained(words: list[str], error: BaseException) -> tuple[str, int] | None:
    """Return the line and the exit code for an error; None for a fault of the program."""
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, Interrupted):
        return GOES_ON.get(words[0], str(error)), 128 + error.signum
    if isinstance(error, KeyboardInterrupt):
        return GOES_ON.get(words[0], "interrupted"), 128 + signum_of(error)
    if isinstance(error, OSError):  # an unforeseen problem with a disk or folder
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", 2
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:60]!r} cannot be written as UTF-8", 2
    if limit := shortage(error):
        return f"{limit}; {likely_cause(words, error)}", 2
    return None


def likely_cause(words: list[str], error: BaseException) -> str:
    """Name the option that asks for the most: the largest number, or the deepest nested value."""
    flags = [(flag, value) for flag, value in options(words) if flag not in ("--seed", "--seeds")]
    numbers = {f"{flag} {value}": size(value) for flag, value in flags}
    if isinstance(error, RecursionError):
        numbers = {flag: value.count("[") + value.count("{") for flag, value in flags}
    largest = max(numbers, key=numbers.__getitem__, default="")
    if largest and numbers[largest] >= 100:
        return f"the likely cause is {largest[:100]}"
    return "use smaller settings (model, batch, beam, chains) or less data at once"


def size(value: str) -> float:
    """Return the largest number in the text of an option; 0 if there is none."""
    if not re.fullmatch(r"[\[\]\d.,eE+ -]+", value):
        return 0.0
    numbers = re.findall(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", value)
    return max((float(number) for number in numbers), default=0.0)
