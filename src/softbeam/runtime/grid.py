"""Compute a grid of cells in this process, in several processes, or by the workers of a queue.

A cell that has a result is not computed again. A grid that was killed therefore resumes where it
stopped, also with other workers or more cells.
"""

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range
from softbeam.runtime import inputs, locks, outputs, ranks
from softbeam.runtime.allowed import allow, allowed_modules
from softbeam.runtime.cells import C, Result, Work, compute, key, read_result
from softbeam.runtime.job_queue import PAUSE, Queue, Watch, asking, serve, take
from softbeam.runtime.progress import Progress, clock
from softbeam.runtime.signals import ending

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

MOST_JOBS = 1024


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that compute the cells of a grid.

    Args:
        jobs: number of processes here; 1 is this process, and 0 leaves all cells to other workers
            of the queue.
        queue: where cells wait for workers, here and elsewhere; None for no queue.
    """

    jobs: int = 1
    queue: Queue | None = None

    def __post_init__(self) -> None:
        check_range("--jobs", self.jobs, least=1 if self.queue is None else 0, most=MOST_JOBS)
        if not self.alone and ranks.world() > 1:
            raise UserError("--jobs and --storage cannot be used together with torchrun")

    @property
    def alone(self) -> bool:
        """True if this process computes all cells."""
        return self.jobs == 1 and self.queue is None


ALONE = Workers()
RESULT = re.compile(r"[0-9a-f]{16}\.json")


@contextmanager
def grid_folder(out: Path, read: Iterable[Path] = ()) -> Iterator[None]:
    """Own the folder of a grid, which goes on with the results that are in it.

    The folder gets a record of inputs, and loses it after an error if there is nothing else. Raises
    UserError if another process has the folder, if softbeam did not write what is in it, or if it
    is one of the folders that are read.
    """
    with outputs.folder(out, describe=content_of, inputs=read, resume=True):
        inputs.record(out, {})
        try:
            yield
        finally:
            if {path.name for path in out.iterdir()} == {inputs.NAME, locks.NAME}:
                (out / inputs.NAME).unlink()


def content_of(folder: Path) -> str | None:
    """Say whether a folder is that of a grid: by its record, its results, or subfolders alone."""
    results = (path.name for path in (folder / "results").glob("*.json"))
    ours = (folder / inputs.NAME).is_file() or any(RESULT.fullmatch(name) for name in results)
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return "a grid" if ours or all(path.is_dir() for path in visible) else None


def run_grid(
    cells: Sequence[C],
    run: Work[C],
    folder: Path,
    *,
    workers: Workers = ALONE,
    title: str = "cells",
    quiet: bool = False,
) -> list[Result]:
    """Return the results of all cells, in their order; compute those that have no file yet.

    Args:
        cells: the cells of the grid.
        run: computes a cell; other processes need a function at the top of a module.
        folder: the grid's folder, with a file `results/KEY.json` for each finished cell.
        workers: the processes that compute cells.
        title: what the progress line begins with.
        quiet: show no progress.
    """
    missing = list({key(c): c for c in cells if read_result(c, folder) is None}.values())
    with Progress(title, len(cells), quiet=quiet) as progress:
        progress.skip(len(cells) - len(missing))
        if workers.queue is not None and missing:
            in_queue(missing, run, folder, workers.jobs, workers.queue, progress)
        elif workers.jobs == 1 or len(missing) <= 1:
            for cell in missing:
                progress.advance(1, shown(cell, compute(cell, run, folder)))
        else:
            in_processes(missing, run, folder, workers.jobs, progress)
    results = [read_result(cell, folder) for cell in cells]
    return [result for result in results if result is not None]


def in_processes(
    cells: Sequence[C], run: Work[C], folder: Path, jobs: int, progress: Progress
) -> None:
    """Compute cells in new processes with one thread each; after an error no other cell starts."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(cells)), mp_context=context, initializer=begin, initargs=(allowed_modules(),)
    )
    try:
        started: dict[Future[float], C] = {pool.submit(compute, c, run, folder): c for c in cells}
        for done in as_completed(started):
            progress.advance(1, shown(started[done], done.result()))
    except KeyboardInterrupt:
        for (
            process
        ) in multiprocessing.active_children():  # if terminated, they would take the next cell
            process.kill()
        raise
    except BrokenProcessPool:
        raise ended_from_outside(jobs) from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_queue(
    cells: Sequence[C],
    run: Work[C],
    folder: Path,
    jobs: int,
    queue: Queue,
    progress: Progress,
) -> None:
    """Enqueue the cells and wait for their results; this process may also compute some."""
    with asking(queue) as database, serving(queue, jobs if jobs > 1 else 0, run) as processes:
        watch = Watch(database, cells, run, folder)
        while watch.left:
            here = jobs == 1 and take(database, modules=modules_for(run), taken=lambda cell: None)
            for cell, seconds in watch.finished():
                progress.advance(1, shown(cell, seconds))
            if not here and watch.left:
                watch.look()
                if processes and not any(process.is_alive() for process in processes):
                    raise ended_from_outside(jobs)
                time.sleep(PAUSE)


@contextmanager
def serving(queue: Queue, jobs: int, run: Work[Any]) -> Iterator[list[BaseProcess]]:
    """Start `jobs` processes that serve a queue; after the block they finish and end."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes: list[BaseProcess] = [
        context.Process(target=serve_here, args=(queue, modules_for(run), stop))
        for _ in range(jobs)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    except KeyboardInterrupt:
        for process in processes:  # they return their cells to the queue
            process.terminate()
        raise
    finally:
        stop.set()
        for process in processes:
            process.join()


def modules_for(run: Work[Any]) -> list[str]:
    """Return the modules that are allowed here, and that of a function of the user's own."""
    own = [] if run.__module__.split(".")[0] == "softbeam" else [run.__module__]
    return [*allowed_modules(), *own]


def serve_here(queue: Queue, modules: Sequence[str], stop: Any) -> None:
    """Serve the queue in a process that `serving` started."""
    begin(modules)
    with suppress(KeyboardInterrupt), ending():
        serve(queue, modules=modules, until=lambda busy: bool(stop.is_set()))


def ended_from_outside(jobs: int) -> UserError:
    """Make the UserError for a process that was killed."""
    return UserError(
        f"one of the {jobs} processes was killed (out of memory?); "
        "run the same command again to resume"
    )


def begin(modules: Sequence[str]) -> None:
    """Set up a new process: one thread for torch, quiet on Ctrl-C, an end with its parent.

    The modules that are allowed in the parent are allowed here too.
    """
    allow(modules)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait for the parent process to end, then end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def shown(cell: Any, seconds: float) -> dict[str, str]:
    """Return the cell and its time, as fields of the progress line."""
    return {"finished": str(cell), "in": clock(seconds)}
