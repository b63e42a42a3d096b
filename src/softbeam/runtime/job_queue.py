"""Cells that wait in a database for workers, here or on other machines.

The database is one of Optuna's: a cell is a trial that waits, runs or is finished, and it only says
who does what. What comes out goes into files as in every grid, in a folder that all workers share.
Workers give signs of life; the cell of one that gives none any more is given to another.
"""

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam.errors import Interrupted, MissingExtra, UserError, limited, need, reason
from softbeam.runtime.cells import (
    Work,
    cell_of,
    compute,
    key,
    name_of,
    read_record,
    read_result,
    settings,
    work_named,
)

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
DRIVERS |= {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
RETRIES = 3  # of a cell whose worker has died
OPENINGS = 5  # several processes may make the tables of a new database at once
PAUSE = 0.5  # seconds between two looks at the database


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Where cells wait.

    Args:
        storage: address of the database: sqlite:///FILE, postgresql://… or mysql://…
        study: what the cells that belong together are called there.
        heartbeat: seconds between two signs of life; without one for three times as long, a worker
            counts as dead.
    """

    storage: str
    study: str = "softbeam"
    heartbeat: int = 60

    def __post_init__(self) -> None:
        limited("--heartbeat", self.heartbeat, least=1)

    @property
    def grace(self) -> int:
        return 3 * self.heartbeat


class Open(NamedTuple):
    """A queue that can be asked."""

    study: "Study"
    storage: "RDBStorage"
    grace: int


class Unable(UserError):
    """This worker cannot run a cell that others may be able to run."""


# The database


def opened(queue: Queue) -> Open:
    """The queue, made if there is none of its name; or a sentence about its address."""
    need("optuna", "cluster")
    import optuna
    from sqlalchemy.exc import ArgumentError, DBAPIError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    for left in reversed(range(OPENINGS)):
        try:
            storage = _storage(queue)
            study = optuna.create_study(
                storage=storage,
                study_name=queue.study,
                sampler=optuna.samplers.RandomSampler(),
                load_if_exists=True,
            )
            return Open(study, storage, queue.grace)
        except ArgumentError as error:
            raise UserError(f"--storage {shown(queue.storage)}: {reason(error)}") from None
        except ImportError as error:
            raise MissingExtra(f"the driver of {queue.storage.split(':')[0]}", "cluster") from error
        except DBAPIError as error:
            if not left:
                raise unreachable(queue, error) from None
            time.sleep(PAUSE)
    raise AssertionError("unreachable")


def _storage(queue: Queue) -> "RDBStorage":
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

    scheme, colon, rest = queue.storage.partition(":")
    lite = scheme.startswith("sqlite")
    options = {"connect_args": {"timeout": 60}} if lite else {"pool_pre_ping": True}
    storage = RDBStorage(
        DRIVERS.get(scheme, scheme) + colon + rest,
        engine_kwargs=options,
        heartbeat_interval=queue.heartbeat,
        grace_period=queue.grace,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
    )
    if lite:
        _lock_before_reading(storage.engine)
    return storage


def _lock_before_reading(engine: Any) -> None:
    """SQLite has no SELECT FOR UPDATE: without this two workers could take one cell."""
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def plain(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def lock(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections made before


def shown(address: str) -> str:
    """The address without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(address).render_as_string(hide_password=True)
    except ArgumentError:
        return address


def unreachable(queue: Queue, error: Any) -> UserError:
    return UserError(f"--storage {shown(queue.storage)}: {reason(error.orig or error)}")


@contextmanager
def asking(queue: Queue) -> Iterator[Open]:
    """The open queue; if its database is lost, a sentence."""
    found = opened(queue)
    from sqlalchemy.exc import DBAPIError

    try:
        yield found
    except DBAPIError as error:
        raise unreachable(queue, error) from error
    finally:
        found.storage.remove_session()
        found.storage.engine.dispose()


# Workers


def take(queue: Open, *, modules: Sequence[str] = (), taken: Callable[[Any], None]) -> bool:
    """Run a cell that waits, if there is one; `taken` is told which. What it raises is raised."""
    import optuna

    if not queue.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
        optuna.storages.fail_stale_trials(queue.study)
        return False
    done: list[str] = []
    serve_one = partial(_served, queue=queue, modules=modules, taken=taken, done=done)
    try:
        queue.study.optimize(serve_one, n_trials=1)
    except ValueError as error:
        if not (done and str(error).startswith("Cannot tell a")):
            raise  # else it was taken for dead, and another has the cell; the result is the same
    return True


def _served(
    trial: "Trial",
    *,
    queue: Open,
    modules: Sequence[str],
    taken: Callable[[Any], None],
    done: list[str],
) -> float:
    """The seconds that a trial's cell took; an error is noted for those who wait for it."""
    import optuna

    known = trial.user_attrs
    if "cell" not in known:
        raise optuna.TrialPruned("others were faster, and Optuna makes a trial of its own then")
    queue.storage.record_heartbeat(trial._trial_id)  # who has a worker has shown signs of life
    trial.set_user_attr("worker", f"process {os.getpid()} of {socket.gethostname()}")
    try:
        if not Path(known["place"]).is_dir():
            raise Unable(f"{known['place']}, where a cell's files are, is not on this machine")
        with chdir(known["place"]):
            try:
                run = work_named(known["run"], modules)
                cell = cell_of(run, known["cell"])
            except UserError as error:
                raise Unable(str(error)) from None
            folder = Path(known["folder"])
            taken(cell)
            finished = read_result(cell, folder) is not None
            seconds = 0.0 if finished else compute(cell, run, folder)
    except (Unable, Interrupted, KeyboardInterrupt):
        trial.set_user_attr("returned", True)
        asked = {name: known[name] for name in ("cell", "run", "folder", "key", "place")}
        queue.study.enqueue_trial({}, user_attrs=asked)
        raise
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {reason(error)}"[:2000])
        raise
    done.append(known["key"])
    return seconds


def serve(
    queue: Queue,
    *,
    modules: Sequence[str] = (),
    until: Callable[[bool], bool],
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int, int]:
    """Run cells one after the other: how many were taken, and how many of them failed.

    Args:
        queue: where they wait.
        modules: whose functions may be run beside softbeam's own.
        until: asked between cells, and told whether this or another worker has something to do.
        say: gets a line for each cell.
    """
    from optuna.trial import TrialState
    from sqlalchemy.exc import DBAPIError

    count = failed = 0

    def taken(cell: Any) -> None:
        nonlocal count
        count += 1
        say(str(cell))

    with asking(queue) as found:
        busy = True
        while not until(busy):
            try:
                took = take(found, modules=modules, taken=taken)
            except (Unable, Interrupted, DBAPIError):
                raise
            except Exception as error:
                took, failed = True, failed + 1
                say(f"failed: {type(error).__name__}: {reason(error)}")
            running = found.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            busy = took or any("worker" in trial.user_attrs for trial in running)
            if not took:
                time.sleep(PAUSE)
    return count, failed


class Patience:
    """True once nothing has been to do for so many seconds."""

    def __init__(self, seconds: float):
        self.seconds, self.since = seconds, time.monotonic()

    def __call__(self, busy: bool) -> bool:
        now = time.monotonic()
        self.since = now if busy else self.since
        return now - self.since > self.seconds


# Those who want the results


class Watch:
    """The cells of a grid in a queue: put there, asked after, put there again if they are lost."""

    def __init__(self, queue: Open, cells: Sequence[Any], run: Work[Any], folder: Path):
        self.queue, self.run, self.folder = queue, run, folder
        self.left = {key(cell): cell for cell in cells}
        self.missed: dict[str, float] = {}  # since when nobody has had a cell
        trials = self.trials()
        self.old = {t.number for t in trials if t.state.is_finished()}
        there = {t.user_attrs["key"] for t in trials if not t.state.is_finished()}
        for name in self.left:
            if name not in there:
                self.add(name)

    def trials(self) -> "list[FrozenTrial]":
        """All that have been of these cells; what is finished is read from the database once."""
        every = self.queue.study.get_trials(deepcopy=False)
        return [
            t
            for t in every
            if t.user_attrs.get("key") in self.left and t.user_attrs["folder"] == str(self.folder)
        ]

    def add(self, name: str) -> None:
        cell = self.left[name]
        asked = {"cell": settings(cell), "run": name_of(self.run), "key": name}
        place = {"folder": str(self.folder), "place": str(Path.cwd())}
        self.queue.study.enqueue_trial({}, user_attrs=asked | place)

    def finished(self) -> Iterator[tuple[Any, float]]:
        """Cells that have a result since the last time, and their seconds."""
        for name, cell in list(self.left.items()):
            record = read_record(cell, self.folder)
            if record is not None:
                del self.left[name]
                yield cell, float(record.get("seconds", 0.0))

    def look(self) -> None:
        """Raise what went wrong in a cell, and put those again that have got lost."""
        import optuna

        optuna.storages.fail_stale_trials(self.queue.study)
        mine = [t for t in self.trials() if t.number not in self.old]
        for trial in mine:
            self.check(trial, mine)
        running = [t for t in mine if t.state == optuna.trial.TrialState.RUNNING]
        silent = [t for t in running if "worker" not in t.user_attrs]  # died at the very start
        alive = {t.user_attrs["key"] for t in mine if not t.state.is_finished()}
        alive -= {t.user_attrs["key"] for t in silent}
        now = time.monotonic()
        self.missed = {n: self.missed.get(n, now) for n in self.left if n not in alive}
        for name, since in list(self.missed.items()):
            if now - since > self.queue.grace:
                for trial in silent:
                    if trial.user_attrs["key"] == name:
                        self.queue.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                self.add(name)
                del self.missed[name]

    def check(self, trial: "FrozenTrial", mine: "Sequence[FrozenTrial]") -> None:
        """Raise the error of a trial, or that too many workers have died in its cell."""
        known, cell = trial.user_attrs, self.left[trial.user_attrs["key"]]
        if "error" in known:
            raise UserError(f"{cell}: {known['error']} (in {known['worker']})")
        if sum(died(t) and t.user_attrs["key"] == known["key"] for t in mine) > RETRIES:
            raise UserError(f"{cell}: {RETRIES + 1} workers have died in it (is memory short?)")


def died(trial: "FrozenTrial") -> bool:
    """True if its worker ended without a word."""
    return trial.state.name == "FAIL" and not {"error", "returned"} & set(trial.user_attrs)
