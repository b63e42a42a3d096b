"""A process that computes cells, one after the other, for a worker of Dask.

A job is a line of JSON on standard input, and its answer a line of JSON on standard output. The
process ends when its input is closed, so that it never outlives its worker. It imports functions
of `cells.WORK`, and others only of the modules that the user of the command has allowed.
"""

import json
import os
import platform
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from softbeam.errors import Interrupted, UserError, reason
from softbeam.runtime.allowed import allowing
from softbeam.runtime.cells import (
    Work,
    cell_of,
    compute,
    name_of,
    read_result,
    settings,
    work_named,
)
from softbeam.runtime.locks import Held
from softbeam.runtime.signals import ending

HELD = 120.0  # seconds to wait for another writer; NFS frees the locks of a lost machine after 90
PAUSE = 2.0  # seconds between two attempts to get a lock
LONGEST = 2000  # characters of an error


def job_of(cell: Any, run: Work[Any], folder: Path, modules: list[str]) -> str:
    """Write what a worker needs to compute a cell: names and JSON."""
    place = {"folder": str(folder), "place": str(Path.cwd()), "modules": modules}
    return json.dumps({"run": name_of(run), "cell": settings(cell)} | place)


def answered(job: str) -> dict[str, Any]:
    """Compute the cell of a job; returns its seconds, or the error."""
    try:
        asked = json.loads(job)
        if not Path(asked["place"]).is_dir() or not Path(asked["folder"]).is_dir():
            where = f"{asked['folder']}, or the current folder {asked['place']}"
            raise UserError(f"{where}, does not exist on {platform.node()}; workers share folders")
        os.chdir(asked["place"])
        with allowing(asked["modules"]), ending():
            run = work_named(asked["run"])
            cell, folder = cell_of(run, asked["cell"]), Path(asked["folder"])
            return {"seconds": computed(cell, run, folder)}
    except (Interrupted, KeyboardInterrupt):
        return {"stopped": True}
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return {"error": f"{kind}{reason(error)}"[:LONGEST]}


def computed(cell: Any, run: Work[Any], folder: Path) -> float:
    """Compute a cell that has no result; waits for a writer that is about to end."""
    last = time.monotonic() + HELD
    while read_result(cell, folder) is None:
        try:
            return compute(cell, run, folder)
        except Held:
            if time.monotonic() > last:
                raise
            time.sleep(PAUSE)
    return 0.0


def read_jobs(jobs: "queue.SimpleQueue[str]") -> None:
    """Put lines of input into a queue; at the end of the input, end the process."""
    for line in sys.stdin:
        jobs.put(line)
    os._exit(1)


def main() -> None:
    """Answer jobs until the input ends; what a cell prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the worker sends SIGTERM
    answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_jobs, args=(jobs,), daemon=True).start()
    while True:
        print(json.dumps(answered(jobs.get())), file=answers, flush=True)


if __name__ == "__main__":
    main()
