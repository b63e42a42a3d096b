"""What a worker of Dask does: hand a cell to a process of its own, and stop it if it is cancelled.

Only this function travels, by its name, with a text. A cell that crashes ends its own process and
not the worker; a worker that ends, in any way, takes its processes with it.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import softbeam
from softbeam._lazy import lazy

if TYPE_CHECKING:
    import distributed
else:
    distributed = lazy("distributed")

PAUSE = 0.1  # seconds between two looks whether a cell is still wanted
GRACE = 10.0  # seconds in which a cell that is stopped may save its state
RUNNING = ("executing", "long-running")  # states of a task that is wanted


@cache
def versions() -> dict[str, str]:
    """Return what a worker must have in common with the command, or numbers may differ."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"softbeam": softbeam.__version__, "torch": version("torch"), "Python": python}


def run_cell(job: str, wanted: dict[str, str]) -> dict[str, Any]:
    """Compute the cell of a job in a process; returns `seconds`, `error`, `died` or `refused`.

    Args:
        job: JSON, as `cell_process.job_of` writes it.
        wanted: the versions of the command.
    """
    worker = distributed.get_worker()
    names = {"worker": worker.address, "by": f"worker {os.getpid()} on {platform.node()}"}
    others = [
        f"{name} {here}, not {wanted[name]}"
        for name, here in versions().items()
        if here != wanted[name]
    ]
    if others:
        return names | {"refused": ", ".join(others)}
    key = worker.get_current_task()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        alive = worker.status.name not in ("closing", "closed", "failed")
        return alive and task is not None and task.state in RUNNING

    process = IDLE.pop() if IDLE else CellProcess()
    answer = process.answer(job, is_wanted)
    if process.process.returncode is None:
        IDLE.append(process)
    return names | answer


class CellProcess:
    """A process that computes cells; see `cell_process`."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "softbeam.runtime.cell_process"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # a cell may run on each core
        )

    def answer(self, job: str, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """Give the process a job and wait for the answer, as long as it is wanted."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{job}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"died": self.end()}
        while not connection.wait([self.process.stdout.fileno()], PAUSE):
            if not is_wanted():
                self.process.terminate()
                connection.wait([self.process.stdout.fileno()], GRACE)
                self.end()
                return {"stopped": True}
        line = self.process.stdout.readline()
        if not line:
            return {"died": self.end()}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Kill the process if it has not ended; returns its exit code."""
        self.process.kill()
        self.process.communicate()
        return self.process.returncode


IDLE: list[CellProcess] = []  # processes of this worker without a job
