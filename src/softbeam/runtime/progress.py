"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere; speed."""

import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class Progress:
    """Counts up to a total; shows fields such as loss and tokens/s, and the time still to go.

    On a terminal a bar that moves; otherwise a line every `every` seconds. Quiet shows nothing.
    """

    def __init__(self, title: str, total: int, *, quiet: bool = False, every: float = 10.0):
        self.title, self.total, self.quiet, self.every = title, total, quiet, every
        self.done = self.skipped = 0
        self.started = self.shown = time.monotonic()
        self.bar: Any = None
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = terminal_bar(title, total)

    def skip(self, n: int) -> None:
        """Count what was done before, without its time."""
        self.skipped = n
        self.done += n
        if self.bar is not None:
            self.bar.update(self.task, advance=n)

    def advance(self, n: int = 1, shown: Mapping[str, str] = MappingProxyType({})) -> None:
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
        """A line of its own that stays."""
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
    """Running loss and speed since the start of the epoch."""

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
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress as Bar,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[fields]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    return bar, bar.add_task(title, total=total, fields="")


def clock(seconds: float) -> str:
    """1:05 or 2:03:04."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
