"""Choose the number of processor threads: what the environment says, or what a trial finds."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import MOST_THREADS, check_threads

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

VARIABLE = "OMP_NUM_THREADS"
LONGEST = 2.0  # seconds of a trial
ENOUGH = 0.1  # seconds of a step that can be timed
ROUNDS = 4  # of a trial, at most
CLEARLY = 0.9  # more threads are worth it if they need this share of the time, or less


def from_environment() -> int | None:
    """Return the number in OMP_NUM_THREADS; None if there is none that torch can use."""
    first = os.environ.get(VARIABLE, "").split(",")[0].strip()  # a list is for nested regions
    usable = first.isdecimal() and 1 <= int(first) <= MOST_THREADS
    return int(first) if usable else None


def checked_threads(given: int | None) -> int:
    """Return the number that was given, or OMP_NUM_THREADS, or 1; raises UserError if too large."""
    threads = given if given is not None else from_environment() or 1
    check_threads(threads)
    return threads


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return min(len(usable(0)) if usable else os.cpu_count() or 1, MOST_THREADS)


def faster(
    step: Callable[[int], object],
    *,
    rows: int,
    most: int,
    clock: Callable[[], float] = time.monotonic,
    set_threads: Callable[[int], object] | None = None,
) -> int:
    """Try a step with one thread and with `most`, in turn, and return the better number.

    The step begins with one row and grows until it is long enough to be timed, so that the trial
    ends within `LONGEST` seconds.

    Args:
        step: what is timed, with this number of rows of a batch.
        rows: of the whole batch.
        most: number of threads to try beside one.
        clock: of seconds.
        set_threads: sets the number of threads, by default of torch.
    """
    if most == 1:
        return 1
    choose = set_threads or torch.set_num_threads

    def timed(threads: int, rows: int) -> float:
        choose(threads)
        began = clock()
        step(rows)
        return clock() - began

    started = clock()
    timed(1, 1)  # a warm-up
    tried, last = 1, timed(1, 1)
    while last < ENOUGH and tried < rows:
        tried = min(2 * tried, rows)
        last = timed(1, tried)
    best = {1: last, most: float("inf")}
    for threads in [most, 1] * ROUNDS:
        if clock() - started + last > LONGEST:
            break
        last = timed(threads, tried)
        best[threads] = min(best[threads], last)
    return most if best[most] < CLEARLY * best[1] else 1
