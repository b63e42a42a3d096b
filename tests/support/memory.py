"""The memory of a process that samples, seen from outside, and of one that does so repeatedly."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import psutil

from softbeam.cli import main
from softbeam.sampling.texts import files
from support.forked_commands import Nursery
from support.processes import wait_for


class Measured(NamedTuple):
    """Megabytes in memory at some time, and bytes of samples written by then."""

    minutes: float
    written: int
    megabytes: float


def growth(points: Sequence[Measured], *, warm: int) -> float:
    """Megabytes since so many bytes had been written."""
    return points[-1].megabytes - next(p.megabytes for p in points if p.written >= warm)


def slope(points: Sequence[Measured], *, warm: float) -> float:
    """Megabytes a minute by least squares, from the time on when the process is warm."""
    kept = [point for point in points if point.minutes >= warm]
    return linear_regression([p.minutes for p in kept], [p.megabytes for p in kept]).slope


def endless(mlm: Path, out: Path) -> list[str]:
    """The words of a `sample` that does not end by itself."""
    words = ["sample", "--mlm", str(mlm), "--text", "A[MASK]C[MASK]", "--chains", "2", "--quiet"]
    return [*words, "--sweeps", "10000000", "--burn-in", "1", "--out", str(out)]


def main_with_a_leak(words: list[str]) -> int:
    """Run a command that keeps 10 kB for each line that it writes."""
    plain, kept = files.as_line, []

    def leaky(value: Any) -> Any:
        kept.append(bytearray(10_000))
        return plain(value)

    files.as_line = leaky
    return main(words)


def watched(
    nursery: Nursery, out: Path, *, every: float, enough: Callable[[Measured], bool]
) -> list[Measured]:
    """Memory of a command that was begun since it began to write; it is stopped when it is enough.

    Args:
        nursery: that runs an `endless` command.
        out: its file.
        every: seconds between two looks.
        enough: of what was measured last.
    """
    points: list[Measured] = []
    wait_for(out)
    (process,) = psutil.Process(nursery.process.pid).children()
    started = time.monotonic()
    try:
        while not points or not enough(points[-1]):
            minutes = (time.monotonic() - started) / 60
            points.append(Measured(minutes, out.stat().st_size, process.memory_info().rss / 1e6))
            time.sleep(every)
    finally:
        process.terminate()
        end = nursery.end()
    assert end.code == 143, end.said
    return points


REPEATED = """
import gc, sys
import psutil
from softbeam.cli import main
for _ in range({times}):
    assert main({words!r}) == 0
    gc.collect()
    print("MB", psutil.Process().memory_info().rss / 1e6)
"""


def repeated(mlm: Path, out: Path, *, times: int) -> list[float]:
    """Megabytes after each of so many `sample` commands, plots and all, in one process."""
    words = ["sample", "--mlm", str(mlm), "--text", "A[MASK]", "--chains", "2", "--quiet"]
    words += ["--sweeps", "20", "--burn-in", "3", "--out", str(out), "--overwrite"]
    code = REPEATED.format(times=times, words=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line[3:]) for line in done.stdout.splitlines() if line.startswith("MB ")]
