"""Show progress on standard error: a bar on a terminal, plain lines elsewhere."""

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


class Progress:
    """A count up to a total, with fields such as loss and tokens/s and the time that is left.

    A terminal shows a bar; elsewhere a line is printed every `every` seconds. `quiet` hides both.
    """

    def __init__(self, title: str, total: int, *, quiet: bool = False, every: float = 10.0):
        self.title, self.total, self.quiet, self.every = title, total, quiet, every
        self.done = self.skipped = 0
        self.started = self.shown = time.monotonic()
        self.bar: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = terminal_bar(title, total)

    def skip(self, n: int) -> None:
        """Count n items that were done earlier, which do not enter the speed."""
        self.skipped = n
        self.done += n
        if self.bar is not None:
            self.bar.update(self.task, advance=n)

    def advance(self, n: int = 1, shown: Mapping[str, str] = MappingProxyType({})) -> None:
        """Count n more items, and show these fields beside the count."""
        self.done += n
        text = "  ".join(f"{name} {value}" for name, value in shown.items())
        if self.bar is not None:
            self.bar.update(self.task, advance=n, fields=text)
        elif not self.quiet and time.monotonic() - self.shown >= self.every:
            self.shown = time.monotonic()
            rate = (self.shown - self.started) / max(self.done - self.skipped, 1)
            left = (self.total - self.done) * rate
            self.say(f"{self.title}  {self.done}/{self.total}  {text}  {clock(left)} left")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
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
