"""A grid of cells, run here, in several processes, or by the workers of a queue.

What has a result is never run again. A grid that was killed therefore goes on where it stopped,
with other workers or other cells beside the old ones if wanted.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from softbeam.errors import UserError, limited
from softbeam.runtime import ranks
from softbeam.runtime.cells import C, Result, Work, compute, key, read_result
from softbeam.runtime.job_queue import PAUSE, Queue, Watch, asking, serve, take
from softbeam.runtime.progress import Progress, clock
from softbeam.runtime.signals import ending


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who runs the cells of a grid.

    Args:
        jobs: processes here; 1 is this one, and 0 leaves all cells to other workers of the queue.
        queue: where cells wait, also for workers elsewhere; none if not given.
    """

    jobs: int = 1
    queue: Queue | None = None

    def __post_init__(self) -> None:
        limited("--jobs", self.jobs, least=1 if self.queue is None else 0)
        if not self.alone and ranks.world() > 1:
            raise UserError("--jobs and --storage are for one process; torchrun starts others")

    @property
    def alone(self) -> bool:
        return self.jobs == 1 and self.queue is None


ALONE = Workers()


def run_grid(
    cells: Sequence[C],
    run: Work[C],
    folder: Path,
    *,
    workers: Workers = ALONE,
    title: str = "cells",
    quiet: bool = False,
) -> list[Result]:
    """The results of all cells, in their order; those without a file in the folder are run.

    Args:
        cells: what is wanted.
        run: computes a cell; for others than this process, a function at the top of a module.
        folder: where `results/KEY.json` are.
        workers: who runs them; they need not be there all the time.
        title: of the progress.
        quiet: no progress.
    """
    missing = list({key(c): c for c in cells if read_result(c, folder) is None}.values())
    with Progress(title, len(cells), quiet=quiet, every=0.0) as progress:
        progress.skip(len(cells) - len(missing))
        if workers.queue is not None and missing:
            in_queue(missing, run, folder, workers.jobs, workers.queue, progress)
        elif workers.jobs == 1 or len(missing) <= 1:
            for cell in missing:
                progress.advance(1, shown(cell, compute(cell, run, folder)))
        else:
            in_processes(missing, run, folder, workers.jobs, progress)
    found = [read_result(cell, folder) for cell in cells]
    return [result for result in found if result is not None]


def in_processes(
    cells: Sequence[C], run: Work[C], folder: Path, jobs: int, progress: Progress
) -> None:
    """In fresh processes with one thread each; after an error no further cell starts."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context, initializer=begin)
    try:
        started: dict[Future[float], C] = {pool.submit(compute, c, run, folder): c for c in cells}
        for done in as_completed(started):
            progress.advance(1, shown(started[done], done.result()))
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():  # asked to end, they take the next cell
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
    """Put into a queue, whose workers, also these, take them; until all have results."""
    with asking(queue) as found, serving(queue, jobs if jobs > 1 else 0, run) as processes:
        watch = Watch(found, cells, run, folder)
        while watch.left:
            here = jobs == 1 and take(found, modules=[run.__module__], taken=lambda cell: None)
            for cell, seconds in watch.finished():
                progress.advance(1, shown(cell, seconds))
            if not here and watch.left:
                watch.look()
                if processes and not any(process.is_alive() for process in processes):
                    raise ended_from_outside(jobs)
                time.sleep(PAUSE)


@contextmanager
def serving(queue: Queue, jobs: int, run: Work[Any]) -> Iterator[list[BaseProcess]]:
    """So many fresh processes that serve a queue until the end; then they finish what they do."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    made: list[BaseProcess] = [
        context.Process(target=serve_here, args=(queue, run.__module__, stop)) for _ in range(jobs)
    ]
    for process in made:
        process.start()
    try:
        yield made
    except KeyboardInterrupt:
        for process in made:  # they give their cells back
            process.terminate()
        raise
    finally:
        stop.set()
        for process in made:
            process.join()


def serve_here(queue: Queue, module: str, stop: Any) -> None:
    """A process of `serving`."""
    begin()
    with suppress(KeyboardInterrupt), ending():
        serve(queue, modules=[module], until=lambda busy: bool(stop.is_set()))


def ended_from_outside(jobs: int) -> UserError:
    return UserError(
        f"one of the {jobs} processes was ended from outside (is memory short?); "
        "the same command goes on where it stopped"
    )


def begin() -> None:
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
