"""The memory of a process that samples, seen from outside, and of one that does so repeatedly."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

import psutil


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


def sampling(mlm: Path, out: Path, *, code: str = "") -> subprocess.Popen:
    """A `sample` that never ends by itself; other code may run before it."""
    words = ["sample", "--mlm", str(mlm), "--text", "A[MASK]C[MASK]", "--chains", "2", "--quiet"]
    words += ["--sweeps", "10000000", "--burn-in", "1", "--out", str(out)]
    start = f"import sys\n{code}\nfrom softbeam.cli import main\nsys.exit(main({words!r}))"
    return subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.DEVNULL)


def watched(
    process: subprocess.Popen, out: Path, *, every: float, enough: Callable[[Measured], bool]
) -> list[Measured]:
    """Its memory since it began to write; it is asked to stop when that is enough.

    Args:
        process: of `sampling`.
        out: its file.
        every: seconds between two looks.
        enough: of what was measured last.
    """
    points: list[Measured] = []
    seen = psutil.Process(process.pid)
    try:
        while not out.exists():
            assert process.poll() is None
            time.sleep(0.05)
        started = time.monotonic()
        while not points or not enough(points[-1]):
            assert process.poll() is None
            minutes = (time.monotonic() - started) / 60
            points.append(Measured(minutes, out.stat().st_size, seen.memory_info().rss / 1e6))
            time.sleep(every)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    finally:
        process.kill()
        process.wait()
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
    words += ["--sweeps", "20", "--burn-in", "3", "--out", str(out)]
    code = REPEATED.format(times=times, words=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line[3:]) for line in done.stdout.splitlines() if line.startswith("MB ")]
