"""Workers started as jobs by submitit: on this machine, or by SLURM on others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from softbeam.errors import UserError, need, reason
from softbeam.runtime.job_queue import Patience, Queue, serve


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker as a job.

    Args:
        queue: whose cells it runs.
        modules: whose functions may be run beside softbeam's own.
        idle: seconds without anything to do after which it ends.
        quiet: no line for each cell.
    """

    queue: Queue
    modules: tuple[str, ...] = ()
    idle: float = 60.0
    quiet: bool = False

    def __call__(self) -> tuple[int, int]:
        """Serve; how many cells were taken, and how many of them failed."""
        import torch

        from softbeam.tensors import flushed_denormals

        torch.set_num_threads(1)  # cells are small, and there is a worker for each core
        say = (lambda line: None) if self.quiet else partial(print, flush=True)
        with flushed_denormals():
            return serve(self.queue, modules=self.modules, until=Patience(self.idle), say=say)

    def checkpoint(self) -> Any:
        """What a job that is preempted is put into SLURM's queue again as: the same worker."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    worker: Worker, number: int, *, cluster: str, logs: Path, parameters: Mapping[str, Any]
) -> Sequence[Any]:
    """So many of them as jobs of one array, with what submitit's `update_parameters` knows."""
    need("submitit", "cluster")
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(name="softbeam", **parameters)
        with executor.batch():
            jobs = [executor.submit(worker) for _ in range(number)]
    except (RuntimeError, TypeError, ValueError, NameError, OSError) as error:
        raise UserError(f"--cluster {cluster}: {reason(error)}") from error
    return jobs
