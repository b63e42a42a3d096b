"""Show progress on standard error: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy

if TYPE_CHECKING:
    from rich import console as rich_console, progress as bars
else:
    rich_console, bars = lazy("rich.console"), lazy("rich.progress")

NOTHING: Mapping[str, str] = MappingProxyType({})

MANY = 1000  # items, of which not every one gets a line
EVERY = 60.0  # seconds between two lines of progress, where there is no terminal
printed = -math.inf  # when the last of these lines was printed, by whatever progress


class Progress:
    """A count up to a total, with fields such as loss and tokens/s and the time that is left.

    A terminal shows a bar. Elsewhere at most one line a minute is printed, so that a log stays
    short. `quiet` hides both.
    """

    def __init__(self, title: str, total: int, *, quiet: bool = False):
        self.title, self.total, self.quiet = title, total, quiet
        self.done: float = 0
        self.skipped: float = 0
        self.started = time.monotonic()
        self.line = -math.inf  # when `finished` printed its last line
        self.bar: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = terminal_bar(title, total)

    def skip(self, n: int) -> None:
        """Count n items that were done earlier, which do not enter the speed."""
        self.skipped += n
        self.done += n
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)

    def expect(self, total: int) -> None:
        """Change the total, if it becomes known while the work is done."""
        self.total = total
        if self.bar is not None:
            self.bar.update(self.task, total=total)

    def advance(self, n: int = 1, shown: Mapping[str, str] = NOTHING) -> None:
        """Count n more items, and show these fields beside the count."""
        self.done += n
        self.within(0.0, shown)

    def finished(self, what: str) -> None:
        """Count an item, and print a line about it with the rate and the time that is left.

        Of more than a thousand items, at most one line a second is printed.
        """
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        now = time.monotonic()
        if self.total > MANY and now - self.line < 1.0 and self.done < self.total:
            return
        self.line = now
        each = (now - self.started) / max(self.done - self.skipped, 1e-9)
        rate = f"{1 / max(each, 1e-9):.1f}/s" if each < 1 else f"{60 / each:.1f}/min"
        left = clock((self.total - self.done) * each)
        self.say(f"{self.title}  {self.done:.0f}/{self.total}  {what}  {rate}  {left} left")

    def within(self, share: float, shown: Mapping[str, str] = NOTHING) -> None:
        """Say which share of the next item is done, and show these fields beside the count."""
        done = self.done + share
        text = "  ".join(f"{name} {value}" for name, value in shown.items())
        if self.bar is not None:
            self.bar.update(self.task, completed=done, fields=text)
            return
        rate = (time.monotonic() - self.started) / max(done - self.skipped, 1e-9)
        count = f"{done:.1f}" if share else f"{done:.0f}"
        left = clock((self.total - done) * rate)
        self.note(f"{self.title}  {count}/{self.total}  {text}  {left} left")

    def note(self, line: str) -> None:
        """Print a line above the bar; without a terminal, only if the last one is a minute old."""
        if self.bar is not None or is_time():
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line that must not be missed, above the bar."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def note(line: str) -> None:
    """Print a line; without a terminal, only if the last one is a minute old."""
    if sys.stderr.isatty() or is_time():
        print(line, file=sys.stderr, flush=True)


def is_time() -> bool:
    """Say whether a line of progress may be printed where there is no terminal, and count it."""
    global printed
    if time.monotonic() - printed < EVERY:
        return False
    printed = time.monotonic()
    return True


class Meter:
    """Mean loss and speed since the start of the epoch."""

    def __init__(self, total: float, count: int, log: dict[str, float]) -> None:
        self.total, self.count, self.before, self.log = total, count, count, dict(log)
        self.started = time.monotonic()

    def add(self, total: float, count: int, log: dict[str, float]) -> None:
        self.total, self.count = self.total + total, self.count + count
        self.log |= log

    def mean(self) -> float:
        return self.total / max(self.count, 1)

    def speed(self) -> float:
        return (self.count - self.before) / max(time.monotonic() - self.started, 1e-9)

    def shown(self) -> dict[str, str]:
        return {"loss": f"{self.mean():.4f}", "tokens/s": f"{self.speed():,.0f}"}

    def row(self) -> dict[str, float]:
        return {"loss": self.mean(), "tokens_per_s": round(self.speed(), 1)} | self.log


def terminal_bar(title: str, total: int) -> tuple[Any, Any]:
    """Make a bar for a terminal, and return it with its task."""
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[fields]}"),
        bars.TimeRemainingColumn(),
        console=rich_console.Console(stderr=True),
        transient=True,
    )
    return bar, bar.add_task(title, total=total, fields="")


def clock(seconds: float) -> str:
    """Format a time as 1:05 or 2:03:04."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
