"""Send the cells of a grid to the workers of a Dask cluster, and wait for their results."""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.errors import UserError, reason
from softbeam.runtime.cell_process import job_of
from softbeam.runtime.cells import Work, key, read_record
from softbeam.runtime.cluster import Cluster, connected
from softbeam.runtime.progress import Progress, clock
from softbeam.runtime.remote import run_cell, versions

if TYPE_CHECKING:
    import distributed
else:
    distributed = lazy("distributed")

DEATHS = 3  # of its process or its worker, after which a cell is given up
WINDOW = 5000  # cells that the scheduler has at a time
PAUSE = 0.05  # seconds between two batches of answers, so that many small ones come together
RETURN = 120.0  # seconds to wait for a scheduler that has gone
SHARED = 60.0  # seconds until a file of another machine must be seen here


class SchedulerLost(UserError):
    """The scheduler has ended, or cannot be reached any more."""


def in_cluster(
    cells: Sequence[Any],
    run: Work[Any],
    folder: Path,
    modules: list[str],
    cluster: Cluster,
    progress: Progress,
) -> None:
    """Compute cells in a cluster, until each has a result.

    A cell whose process or worker dies is sent again; after the third death it is given up, and
    the others go on. If the scheduler dies, its return is waited for.

    Raises UserError if a cell has failed or was given up.
    """
    folder = folder.resolve()
    jobs = {key(cell): job_of(cell, run, folder, modules) for cell in cells}
    sending = Sending({key(cell): cell for cell in cells}, jobs, folder, progress)
    last = None
    while sending.left:
        try:
            with connected(cluster) as client:
                last = None
                sending.send(client)
        except SchedulerLost as error:
            progress.say(f"{error}: waiting for its return")
            last = time.monotonic() + RETURN
        except UserError:  # there is no scheduler
            if last is None or time.monotonic() > last:
                raise
    sending.report()


class Sending:
    """Cells on their way: which are left, how often each has died, which workers are refused."""

    def __init__(
        self, cells: Mapping[str, Any], jobs: Mapping[str, str], folder: Path, progress: Progress
    ):
        self.cells, self.jobs, self.folder, self.progress = cells, jobs, folder, progress
        self.left = dict.fromkeys(cells)
        self.deaths: Counter[str] = Counter()
        self.given_up: dict[str, str] = {}
        self.refused: dict[str, str] = {}  # why, by their addresses
        self.token, self.numbers = secrets.token_hex(8), count()

    def send(self, client: "distributed.Client") -> None:
        """Send the cells that are left, some at a time, and take answers until none is left.

        Raises SchedulerLost if the connection ends.
        """
        if not client.scheduler_info(n_workers=1)["workers"]:
            self.progress.say(f"{client.scheduler.address} has no workers yet: waiting for them")
        names = iter(list(self.left))
        waiting = distributed.as_completed(loop=client.loop)
        waiting.update(self.submitted(client, islice(names, WINDOW)))
        try:
            for batch in waiting.batches():
                more = [*self.taken(client, batch), *islice(names, len(batch))]
                waiting.update(self.submitted(client, more))
                time.sleep(PAUSE)
        finally:
            if client.status == "running":
                client.cancel(list(waiting.futures), force=True)

    def submitted(
        self, client: "distributed.Client", names: Iterable[str]
    ) -> "list[distributed.Future]":
        """Submit cells, to workers that have not been refused."""
        chosen = list(names)
        tasks = [(f"softbeam-{self.token}", name, next(self.numbers)) for name in chosen]
        futures: list[distributed.Future] = client.map(
            run_cell,
            [self.jobs[name] for name in chosen],
            wanted=versions(),
            key=tasks,
            workers=self.accepted(client) if self.refused else None,
            pure=False,
        )
        return futures

    def accepted(self, client: "distributed.Client") -> list[str]:
        """Return the addresses of workers that were not refused; raises UserError if none is."""
        everyone = set(client.scheduler_info(n_workers=-1)["workers"])
        if not everyone - self.refused.keys():
            raise UserError(f"no worker can be used: {'; '.join(self.refused.values())}")
        return sorted(everyone - self.refused.keys())

    def taken(
        self, client: "distributed.Client", batch: "Sequence[distributed.Future]"
    ) -> Iterator[str]:
        """Take the answers of tasks that have ended; yields the names of cells to send again.

        Raises UserError if a cell has failed, and SchedulerLost if the connection has ended.
        """
        try:
            answers = client.gather(dict(enumerate(batch)), errors="skip")
        except (OSError, CancelledError, RuntimeError) as error:
            raise lost(client) from error
        for number, future in enumerate(batch):
            name: str = future.key[1]  # type: ignore[index,assignment]
            if future.status in ("cancelled", "lost"):
                raise lost(client)
            answer = answers[number]
            if answer is None:
                why = future.exception()
                if not isinstance(why, distributed.scheduler.KilledWorker):
                    raise UserError(f"{self.cells[name]}: {type(why).__name__}: {reason(why)}")
                answer = {"died": None, "by": why.last_worker.address}
                self.deaths[name] = DEATHS - 1  # as many as the scheduler allows
            if self.is_again(name, answer):
                yield name

    def is_again(self, name: str, answer: Mapping[str, Any]) -> bool:
        """Take the answer of a cell; tell whether the cell has to be sent again."""
        cell, by = self.cells[name], answer["by"]
        if "error" in answer:
            raise UserError(f"{cell}: {answer['error']} (in {by})")
        if "refused" in answer:
            address = answer["worker"]
            if address not in self.refused:
                self.refused[address] = f"{by} ({address}) has {answer['refused']}"
                self.progress.say(f"warning: {self.refused[address]}: it gets no cells")
            return True
        if "seconds" in answer:
            self.check_written(cell, by)
            self.progress.finished(f"{cell}  by {by} in {clock(answer['seconds'])}")
            del self.left[name]
            return False
        self.deaths[name] += 1
        if self.deaths[name] < DEATHS:
            self.progress.say(f"{cell}: its process died ({by}); it is sent again")
            return True
        self.given_up[name] = f"{cell}: its process died {DEATHS} times, last of {by}"
        self.progress.say(f"warning: {self.given_up[name]}: it is given up")
        del self.left[name]
        return False

    def check_written(self, cell: Any, by: str) -> None:
        """Wait until the result of a cell is seen here; raises UserError if it never is."""
        last = time.monotonic() + SHARED
        while read_record(cell, self.folder) is None:
            if time.monotonic() > last:
                raise UserError(
                    f"{cell}: {by} has written its result, but it is not in {self.folder}; "
                    "workers and this command must share the folder"
                )
            time.sleep(0.1)

    def report(self) -> None:
        """Raise UserError if cells were given up."""
        if self.given_up:
            number = f"{len(self.given_up)} of {len(self.cells)} cells"
            reasons = "; ".join(self.given_up.values())
            raise UserError(f"{number} failed, the others are finished: {reasons} (out of memory?)")


def lost(client: "distributed.Client") -> SchedulerLost:
    """Make the error for a connection that has ended."""
    return SchedulerLost(f"the connection to {client.scheduler.address} is lost")
