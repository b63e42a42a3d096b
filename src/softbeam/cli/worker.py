"""The command of workers, and the flags of commands that have work for them."""

import sys
from pathlib import Path
from typing import Any

from softbeam.cli.parser import parser, say_json
from softbeam.errors import UserError, limited, need
from softbeam.runtime.grid import Workers
from softbeam.runtime.job_queue import Queue

STORAGE = "database where cells wait for workers: sqlite:///FILE, postgresql://… or mysql://…"
STUDY = "what the cells that belong together are called there"
HEARTBEAT = "seconds between signs of life of a worker; after three times as long it is dead"


def worker(words: list[str]) -> int:
    """Run cells that wait in a database: softbeam worker --storage sqlite:///FILE"""
    made = parser(
        "worker",
        "Run the cells that commands with the same --storage and --study have put there, until "
        "none has waited or run for --idle seconds. Workers and commands share their folders. With "
        "--submit, workers are started as jobs, on this machine or by SLURM.",
    )
    queue_arguments(made)
    made.add_argument("--idle", type=float, default=60.0, help="seconds")
    other = "modules, as A,B, whose functions may be run beside softbeam's own"
    made.add_argument("--module", type=str, default="", help=other)
    made.add_argument("--submit", type=int, default=0, help="jobs to start, by submitit")
    made.add_argument("--cluster", type=str, choices=["local", "slurm"], default="local")
    made.add_argument("--logs", type=str, default="runs/jobs", help="folder of the jobs' files")
    known = "submitit's parameters of a job, as timeout_min=600,slurm_partition=NAME"
    made.add_argument("--set", type=str, default="", help=known)
    made.add_argument("--quiet", action="store_true", help="no line for each cell")
    made.add_argument("--json", action="store_true", help="numbers of cells as a last line of JSON")
    parsed = made.parse_args(words)
    limited("--idle", parsed.idle, least=0)
    limited("--submit", parsed.submit, least=0)
    queue = queue_of(parsed)
    if queue is None:
        raise UserError("--storage is missing: the address of the database where cells wait")
    from softbeam.runtime.workers import Worker

    modules = tuple(name for name in parsed.module.split(",") if name)
    one = Worker(queue=queue, modules=modules, idle=parsed.idle, quiet=parsed.quiet)
    found = submitted(one, parsed) if parsed.submit else [one()]
    if not found:
        return 0
    cells, failed = (sum(counts) for counts in zip(*found, strict=True))
    print(f"{cells} cells, {failed} of them failed", file=sys.stderr)
    if parsed.json:
        say_json({"cells": cells, "failed": failed})
    return 1 if failed else 0


def submitted(one: Any, parsed: Any) -> list[tuple[int, int]]:
    """Start jobs; on this machine wait for what they say, of SLURM's show the numbers."""
    from softbeam.runtime.workers import submit

    logs = Path(parsed.logs)
    jobs = submit(
        one, parsed.submit, cluster=parsed.cluster, logs=logs, parameters=parameters(parsed.set)
    )
    print(f"jobs {', '.join(job.job_id for job in jobs)}, with files in {logs}", flush=True)
    return [job.result() for job in jobs] if parsed.cluster == "local" else []


def parameters(text: str) -> dict[str, Any]:
    """`a=1,b=x` as names and values."""
    import yaml

    pairs = [part.partition("=") for part in text.split(",") if part]
    for name, equals, _ in pairs:
        if not equals:
            raise UserError(f"--set {name}: must be as timeout_min=600")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def worker_arguments(made: Any, *, jobs: int | None = 1) -> None:
    """The flags of who runs a command's cells."""
    every = "one for each core if not given" if jobs is None else "1 if not given"
    made.add_argument("--jobs", type=int, default=jobs, help=f"processes here; {every}")
    queue_arguments(made)


def queue_arguments(made: Any) -> None:
    made.add_argument("--storage", type=str, default=None, help=STORAGE)
    made.add_argument("--study", type=str, default="softbeam", help=STUDY)
    made.add_argument("--heartbeat", type=int, default=60, help=HEARTBEAT)


def queue_of(parsed: Any) -> Queue | None:
    if parsed.storage is None:
        return None
    need("optuna", "cluster")
    return Queue(storage=parsed.storage, study=parsed.study, heartbeat=parsed.heartbeat)


def workers_of(parsed: Any) -> Workers:
    return Workers(jobs=parsed.jobs, queue=queue_of(parsed))
