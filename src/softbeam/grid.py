"""A grid of cells: each is computed once, its result kept in a file, whatever happens between.

A cell is a frozen dataclass of all that its result depends on. `run` maps it to a result that JSON
can hold; the result's file is named by a hash of the cell, and a cell with a file is never run
again. A run that was killed therefore goes on where it stopped, with other numbers of jobs or
other cells beside the old ones if wanted.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from softbeam.errors import UserError
from softbeam.files import write_text
from softbeam.progress import Progress, clock

C = TypeVar("C")  # a frozen dataclass
Result = dict[str, Any]


def settings(cell: Any) -> dict[str, Any]:
    """The cell as JSON knows it, with its class."""
    return {"cell": type(cell).__name__} | asdict(cell)


def key(cell: Any) -> str:
    """A name that depends on the cell's class and settings alone."""
    text = json.dumps(settings(cell), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_path(cell: Any, folder: Path) -> Path:
    return folder / "results" / f"{key(cell)}.json"


def read_result(cell: Any, folder: Path) -> Result | None:
    """The result of a finished cell, or None."""
    path = result_path(cell, folder)
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))["result"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} is not a result ({error}); remove it to run it again") from None
    return found


def run_grid(
    cells: Sequence[C],
    run: Callable[[C], Result],
    folder: Path,
    *,
    jobs: int = 1,
    title: str = "cells",
    quiet: bool = False,
) -> list[Result]:
    """The results of all cells, in their order; those without a file in the folder are run.

    Args:
        run: computes a cell; with several jobs, a function that pickle can name.
        folder: where `results/KEY.json` are.
        jobs: processes; 1 runs the cells here, one after the other.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: must be at least 1")
    missing = list({key(c): c for c in cells if read_result(c, folder) is None}.values())
    with Progress(title, len(cells), quiet=quiet, every=0.0) as progress:
        progress.skip(len(cells) - len(missing))
        if jobs == 1 or len(missing) <= 1:
            for cell in missing:
                progress.advance(1, shown(cell, compute(cell, run, folder)))
        else:
            in_processes(missing, run, folder, jobs, progress)
    found = [read_result(cell, folder) for cell in cells]
    return [result for result in found if result is not None]


def compute(cell: C, run: Callable[[C], Result], folder: Path) -> float:
    """Run one cell and write its file; returns the seconds it took."""
    started = time.monotonic()
    result = run(cell)
    seconds = time.monotonic() - started
    record = settings(cell) | {"seconds": round(seconds, 3), "result": result}
    write_text(result_path(cell, folder), json.dumps(record, indent=1) + "\n")
    return seconds


def in_processes(
    cells: Sequence[C], run: Callable[[C], Result], folder: Path, jobs: int, progress: Progress
) -> None:
    """The same in fresh processes with one thread each; after an error no further cell starts."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context, initializer=worker)
    try:
        started: dict[Future[float], C] = {pool.submit(compute, c, run, folder): c for c in cells}
        for done in as_completed(started):
            progress.advance(1, shown(started[done], done.result()))
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():  # their cells would take too long
            process.terminate()
        raise
    except BrokenProcessPool:
        raise UserError(
            f"one of the {jobs} processes was ended from outside (is memory short?); "
            "the same command goes on where it stopped"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def worker() -> None:
    """A process at its start: one thread for torch, quiet on Ctrl-C, no life after its parent."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def shown(cell: Any, seconds: float) -> dict[str, str]:
    """The cell and its time, for the line of progress."""
    return {"finished": str(cell), "in": clock(seconds)}
