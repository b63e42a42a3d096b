"""The worker command, and the flags of commands whose cells workers can run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import parser, say_json
from softbeam.errors import UserError, check_range, need
from softbeam.runtime.allowed import allowed_modules
from softbeam.runtime.grid import MOST_JOBS, Workers
from softbeam.runtime.job_queue import Queue

if TYPE_CHECKING:
    import yaml

    from softbeam.runtime import workers
else:
    yaml, workers = lazy("yaml"), lazy("softbeam.runtime.workers")

STORAGE = "database where cells wait for workers: sqlite:///FILE, postgresql://… or mysql://…"
STUDY = "name of the queue in the database"
HEARTBEAT = "seconds between heartbeats of a worker; it counts as dead after three times as long"


def worker(words: list[str]) -> int:
    """Run `softbeam worker`."""
    command = parser(
        "worker",
        "Run the cells that commands with the same --storage and --study have queued, until none "
        "has waited or run for --idle seconds. Workers and commands must share their folders. With "
        "--submit, workers are started as jobs, on this machine or by SLURM. Cells name functions "
        "of softbeam; --allow-module NAME, as often as needed, allows a module of your own.",
    )
    queue_arguments(command)
    idle = "seconds without work after which the worker ends"
    command.add_argument("--idle", type=float, default=60.0, help=idle)
    command.add_argument("--submit", type=int, default=0, help="number of jobs to start")
    command.add_argument("--cluster", type=str, choices=["local", "slurm"], default="local")
    command.add_argument("--logs", type=str, default="runs/jobs", help="folder of the jobs' files")
    settings = "submitit's parameters of a job, as timeout_min=600,slurm_partition=NAME"
    command.add_argument("--set", type=str, default="", help=settings)
    command.add_argument("--quiet", action="store_true", help="print no line for each cell")
    numbers = "print the numbers of cells as a last line of JSON"
    command.add_argument("--json", action="store_true", help=numbers)
    parsed = command.parse_args(words)
    check_range("--idle", parsed.idle, least=0)
    check_range("--submit", parsed.submit, least=0, most=MOST_JOBS)
    queue = queue_of(parsed)
    if queue is None:
        raise UserError("--storage is missing: the address of the database where cells wait")
    job = workers.Worker(
        queue=queue, modules=allowed_modules(), idle=parsed.idle, quiet=parsed.quiet
    )
    counts = submit(job, parsed) if parsed.submit else [job()]
    if not counts:
        return 0
    cells, failed = (sum(numbers) for numbers in zip(*counts, strict=True))
    print(f"{cells} cells, {failed} of them failed", file=sys.stderr)
    if parsed.json:
        say_json({"cells": cells, "failed": failed})
    return 1 if failed else 0


def submit(worker: "workers.Worker", parsed: Any) -> list[tuple[int, int]]:
    """Start jobs, print their numbers, and return the counts of those on this machine."""
    logs = Path(parsed.logs)
    jobs = workers.submit(
        worker, parsed.submit, cluster=parsed.cluster, logs=logs, parameters=parameters(parsed.set)
    )
    print(f"jobs {', '.join(job.job_id for job in jobs)}, with files in {logs}", flush=True)
    return [job.result() for job in jobs] if parsed.cluster == "local" else []


def parameters(text: str) -> dict[str, Any]:
    """Parse `a=1,b=x` to names and values; raises UserError if a value is missing."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    for name, equals, _ in pairs:
        if not equals:
            raise UserError(f"--set {name}: must be as timeout_min=600")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def worker_arguments(command: Any, *, jobs: int | None = 1) -> None:
    """Add the flags that say which processes run a command's cells."""
    default = "one for each core if not given" if jobs is None else "1 if not given"
    command.add_argument("--jobs", type=int, default=jobs, help=f"processes here; {default}")
    queue_arguments(command)


def queue_arguments(command: Any) -> None:
    """Add the flags that name a queue."""
    command.add_argument("--storage", type=str, default=None, help=STORAGE)
    command.add_argument("--study", type=str, default="softbeam", help=STUDY)
    command.add_argument("--heartbeat", type=int, default=60, help=HEARTBEAT)


def queue_of(parsed: Any) -> Queue | None:
    """Return the queue that the flags name, or None."""
    if parsed.storage is None:
        return None
    need("optuna", "cluster")
    return Queue(storage=parsed.storage, study=parsed.study, heartbeat=parsed.heartbeat)


def workers_of(parsed: Any) -> Workers:
    """Return the processes that the flags ask for."""
    return Workers(jobs=parsed.jobs, queue=queue_of(parsed))
