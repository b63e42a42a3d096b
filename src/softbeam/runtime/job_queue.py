"""Queue cells in a database for workers, here or on other machines.

The database belongs to Optuna: a cell is a trial that waits, runs or is finished. It only records
which worker has which cell; results go into files as in every grid, in a folder that all workers
share. Workers send heartbeats, and the cell of a worker that stops doing so goes to another.
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

from softbeam.errors import Interrupted, MissingExtra, UserError, check_range, need, reason
from softbeam.runtime.allowed import allowing
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
from softbeam.runtime.locks import Held

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
DRIVERS |= {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
RETRIES = 3  # of a cell whose worker has died
OPENINGS = 5  # several processes may make the tables of a new database at once
PAUSE = 0.5  # seconds between two looks at the database
WAIT = 5.0  # seconds before a cell is tried again whose folder another process has


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue of cells.

    Args:
        storage: address of the database: sqlite:///FILE, postgresql://… or mysql://…
        study: name of the queue in the database.
        heartbeat: seconds between two heartbeats of a worker, which counts as dead after three
            times as long without one.
    """

    storage: str
    study: str = "softbeam"
    heartbeat: int = 60

    def __post_init__(self) -> None:
        check_range("--heartbeat", self.heartbeat, least=1)

    @property
    def grace(self) -> int:
        return 3 * self.heartbeat


class Open(NamedTuple):
    """A queue whose database is open."""

    study: "Study"
    storage: "RDBStorage"
    grace: int


class Unable(UserError):
    """Raised if this worker cannot run a cell that others may be able to run."""


# The database


def opened(queue: Queue) -> Open:
    """Open a queue, and create it if need be; raises UserError if its address is wrong."""
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
    """Lock SQLite, which has no SELECT FOR UPDATE, so that no two workers take one cell."""
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def plain(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def lock(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections made before


def shown(address: str) -> str:
    """Return the address without its password."""
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
    """Open a queue for the block; raises UserError if the database cannot be reached."""
    database = opened(queue)
    from sqlalchemy.exc import DBAPIError

    try:
        yield database
    except DBAPIError as error:
        raise unreachable(queue, error) from error
    finally:
        database.storage.remove_session()
        database.storage.engine.dispose()


# Workers


def take(queue: Open, *, modules: Sequence[str] = (), taken: Callable[[Any], None]) -> bool:
    """Run a waiting cell, if there is one, and tell whether there was.

    `taken` is called with the cell before it runs. An error of the cell is raised.
    """
    import optuna

    if not queue.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
        optuna.storages.fail_stale_trials(queue.study)
        return False
    done: list[str] = []
    serve_one = partial(_served, queue=queue, modules=modules, taken=taken, done=done)
    try:
        queue.study.optimize(serve_one, n_trials=1)
    except Held:  # by a worker that was taken for dead and is not
        time.sleep(WAIT)
        return False
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
    """Run a trial's cell and return its seconds; an error is recorded for those who wait."""
    import optuna

    attributes = trial.user_attrs
    if "cell" not in attributes:
        raise optuna.TrialPruned("others were faster, and Optuna makes a trial of its own then")
    queue.storage.record_heartbeat(trial._trial_id)  # a trial with a worker has a heartbeat
    trial.set_user_attr("worker", f"process {os.getpid()} of {socket.gethostname()}")
    try:
        if not Path(attributes["place"]).is_dir():
            raise Unable(f"{attributes['place']}, the folder of a cell, is not on this machine")
        with chdir(attributes["place"]), allowing(modules):
            try:
                run = work_named(attributes["run"])
                cell = cell_of(run, attributes["cell"])
            except UserError as error:
                raise Unable(str(error)) from None
            folder = Path(attributes["folder"])
            taken(cell)
            finished = read_result(cell, folder) is not None
            seconds = 0.0 if finished else compute(cell, run, folder)
    except (Unable, Held, Interrupted, KeyboardInterrupt):
        trial.set_user_attr("returned", True)
        asked = {name: attributes[name] for name in ("cell", "run", "folder", "key", "place")}
        queue.study.enqueue_trial({}, user_attrs=asked)
        raise
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {reason(error)}"[:2000])
        raise
    done.append(attributes["key"])
    return seconds


def serve(
    queue: Queue,
    *,
    modules: Sequence[str] = (),
    until: Callable[[bool], bool],
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int, int]:
    """Run waiting cells; return the number of cells taken and how many of them failed.

    Args:
        queue: the queue to serve.
        modules: modules of the user's own that cells may name; see `runtime.allowed`.
        until: called between cells with whether any worker is busy; a true answer ends serving.
        say: called with a line for each cell.
    """
    from optuna.trial import TrialState
    from sqlalchemy.exc import DBAPIError

    count = failed = 0

    def taken(cell: Any) -> None:
        nonlocal count
        count += 1
        say(str(cell))

    with asking(queue) as database:
        busy = True
        while not until(busy):
            try:
                took = take(database, modules=modules, taken=taken)
            except (Unable, Interrupted, DBAPIError):
                raise
            except Exception as error:
                took, failed = True, failed + 1
                say(f"failed: {type(error).__name__}: {reason(error)}")
            running = database.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            busy = took or any("worker" in trial.user_attrs for trial in running)
            if not took:
                time.sleep(PAUSE)
    return count, failed


class Patience:
    """A condition that is true after `seconds` without work."""

    def __init__(self, seconds: float):
        self.seconds, self.since = seconds, time.monotonic()

    def __call__(self, busy: bool) -> bool:
        now = time.monotonic()
        self.since = now if busy else self.since
        return now - self.since > self.seconds


# Waiting for results


class Watch:
    """The cells of a grid in a queue, which are enqueued again if they get lost."""

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
        """Return all trials of these cells; Optuna reads finished ones from the database once."""
        every = self.queue.study.get_trials(deepcopy=False)
        return [
            t
            for t in every
            if t.user_attrs.get("key") in self.left and t.user_attrs["folder"] == str(self.folder)
        ]

    def add(self, name: str) -> None:
        """Enqueue the cell with this key."""
        cell = self.left[name]
        asked = {"cell": settings(cell), "run": name_of(self.run), "key": name}
        place = {"folder": str(self.folder), "place": str(Path.cwd())}
        self.queue.study.enqueue_trial({}, user_attrs=asked | place)

    def finished(self) -> Iterator[tuple[Any, float]]:
        """Yield the cells that have got a result since the last call, and their seconds."""
        for name, cell in list(self.left.items()):
            record = read_record(cell, self.folder)
            if record is not None:
                del self.left[name]
                yield cell, float(record.get("seconds", 0.0))

    def look(self) -> None:
        """Raise UserError if a cell has failed, and enqueue lost cells again."""
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
        """Raise UserError if a trial has an error, or if too many workers have died in its cell."""
        attributes, cell = trial.user_attrs, self.left[trial.user_attrs["key"]]
        if "error" in attributes:
            raise UserError(f"{cell}: {attributes['error']} (in {attributes['worker']})")
        if sum(died(t) and t.user_attrs["key"] == attributes["key"] for t in mine) > RETRIES:
            raise UserError(f"{cell}: {RETRIES + 1} workers have died in it (out of memory?)")


def died(trial: "FrozenTrial") -> bool:
    """Tell whether the worker of a trial ended without recording an error."""
    return trial.state.name == "FAIL" and not {"error", "returned"} & set(trial.user_attrs)
