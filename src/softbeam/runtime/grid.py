"""Compute a grid of cells in this process, in several processes, or in a Dask cluster.

A cell that has a result is not computed again. A grid that was killed therefore resumes where it
stopped, also with other workers or more cells.
"""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.errors import UserError, check_range
from softbeam.runtime import inputs, locks, outputs, ranks
from softbeam.runtime.allowed import allow, allowed_modules
from softbeam.runtime.cells import C, Result, Work, compute, key, read_result
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.dispatch import in_cluster
from softbeam.runtime.files import remove
from softbeam.runtime.progress import Progress, clock

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

MOST_JOBS = 1024


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that compute the cells of a grid.

    Args:
        jobs: number of processes here; 1 is this process.
        cluster: the Dask cluster that computes all cells instead; None for none.
    """

    jobs: int = 1
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        check_range("--jobs", self.jobs, least=1, most=MOST_JOBS)
        if self.cluster is not None and self.jobs > 1:
            raise UserError(f"--jobs {self.jobs}: --cluster says how many processes there are")
        if not self.alone and ranks.world() > 1:
            raise UserError("--jobs and --cluster cannot be used together with torchrun")

    @property
    def alone(self) -> bool:
        """True if this process computes all cells."""
        return self.jobs == 1 and self.cluster is None


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


def remove_results(folder: Path) -> None:
    """Remove the results of a grid, and its folder if nothing else is in it."""
    results = folder / "results"
    remove(*(path for path in results.glob("*.json") if RESULT.fullmatch(path.name)))
    with suppress(OSError):  # something else is there
        results.rmdir()
        remove(folder / inputs.NAME)
        folder.rmdir()


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
    again: Container[C] = (),
    title: str = "cells",
    quiet: bool = False,
) -> list[Result]:
    """Return the results of all cells, in their order; compute those that have no file yet.

    The arguments are those of `compute_grid`.
    """
    compute_grid(cells, run, folder, workers=workers, again=again, title=title, quiet=quiet)
    results = [read_result(cell, folder) for cell in cells]
    return [result for result in results if result is not None]


def compute_grid(
    cells: Sequence[C],
    run: Work[C],
    folder: Path,
    *,
    workers: Workers = ALONE,
    again: Container[C] = (),
    title: str = "cells",
    quiet: bool = False,
) -> None:
    """Compute the cells that have no file yet.

    Args:
        cells: the cells of the grid.
        run: computes a cell; other processes need a function at the top of a module.
        folder: the grid's folder, with a file `results/KEY.json` for each finished cell.
        workers: the processes that compute cells.
        again: cells that are computed even if they have a file, which is then replaced.
        title: what the progress line begins with.
        quiet: show no progress.
    """
    wanted = [c for c in cells if c in again or read_result(c, folder) is None]
    missing = list({key(c): c for c in wanted}.values())
    with Progress(title, len(cells), quiet=quiet) as progress:
        progress.skip(len(cells) - len(missing))
        if workers.cluster is not None and missing:
            in_cluster(missing, run, folder, modules_for(run), workers.cluster, progress)
        elif workers.jobs == 1 or len(missing) <= 1:
            for cell in missing:
                progress.advance(1, shown(cell, compute(cell, run, folder)))
        else:
            in_processes(missing, run, folder, workers.jobs, progress)


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


def modules_for(run: Work[Any]) -> list[str]:
    """Return the modules that are allowed here, and that of a function of the user's own."""
    own = [] if run.__module__.split(".")[0] == "softbeam" else [run.__module__]
    return [*allowed_modules(), *own]


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
