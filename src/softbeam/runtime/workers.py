"""Start workers as jobs by submitit, on this machine or on a SLURM cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.errors import UserError, need, reason
from softbeam.runtime.job_queue import Patience, Queue, serve

if TYPE_CHECKING:
    import torch

    from softbeam import tensors
else:
    torch, tensors = lazy("torch"), lazy("softbeam.tensors")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that runs as a job.

    Args:
        queue: the queue that it serves.
        modules: modules of the user's own that cells may name.
        idle: seconds without work after which it ends.
        quiet: print no line for each cell.
    """

    queue: Queue
    modules: tuple[str, ...] = ()
    idle: float = 60.0
    quiet: bool = False

    def __call__(self) -> tuple[int, int]:
        """Serve the queue; return the number of cells taken and how many of them failed."""
        torch.set_num_threads(1)  # cells are small, and there is a worker for each core
        say = (lambda line: None) if self.quiet else partial(print, flush=True)
        with tensors.flushed_denormals():
            return serve(self.queue, modules=self.modules, until=Patience(self.idle), say=say)

    def checkpoint(self) -> Any:
        """Let submitit requeue a preempted job as the same worker."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    worker: Worker, number: int, *, cluster: str, logs: Path, parameters: Mapping[str, Any]
) -> Sequence[Any]:
    """Submit `number` workers as one job array, with `parameters` for submitit."""
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
