"""Workers share the cells of a grid: each is run once, by whoever lives, with the same results."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from softbeam.cli import main
from softbeam.errors import MissingExtra, UserError
from softbeam.runtime import job_queue
from softbeam.runtime.cells import compute, read_result, result_path
from softbeam.runtime.grid import Workers, run_grid
from softbeam.runtime.job_queue import Patience, Queue, Watch, asking, opened, serve, take
from softbeam.runtime.locks import Held
from support.databases import free_port, postgres, postgres_program
from support.grid_cells import Cell, deadly, hanging_once, lines, ran, square
from support.requirements import absent

CELLS = [Cell(x=x) for x in range(5)]
TESTS = str(Path(__file__).parents[1])


def lite(folder: Path, **knobs) -> Queue:
    return Queue(storage=f"sqlite:///{folder}/queue.db", **knobs)


def states(queue: Queue) -> list[str]:
    with asking(queue) as found:
        return [t.state.name for t in found.study.get_trials(deepcopy=False)]


# One process


def test_a_queue_gives_what_the_grid_gives(tmp_path):
    queue = lite(tmp_path)
    for _ in range(2):
        found = run_grid(CELLS, square, tmp_path, workers=Workers(queue=queue), quiet=True)
        assert found == [{"square": x**2} for x in range(5)]
    assert ran(tmp_path) == list(range(5)), "once each"
    assert states(queue) == ["COMPLETE"] * 5


def test_finished_cells_are_not_even_queued(tmp_path):
    run_grid(CELLS[:3], square, tmp_path, quiet=True)
    run_grid(CELLS, square, tmp_path, workers=Workers(queue=lite(tmp_path)), quiet=True)
    assert ran(tmp_path) == list(range(5)) and len(states(lite(tmp_path))) == 2


def test_a_cell_that_got_its_result_while_it_waited_is_not_run(tmp_path):
    queue = lite(tmp_path)
    with asking(queue) as found:
        Watch(found, CELLS, square, tmp_path)
        run_grid(CELLS[:2], square, tmp_path, quiet=True)
        while take(found, modules=["support.grid_cells"], taken=lambda cell: None):
            pass
    assert ran(tmp_path) == list(range(5))


def test_a_cell_that_another_process_still_has_is_tried_again(tmp_path, monkeypatch):
    """It was taken for dead; its result, or its end, is waited for."""
    attempts = []

    def held_once(cell, run, folder):
        attempts.append(cell)
        if len(attempts) == 1:
            raise Held("another process has it")
        return compute(cell, run, folder)

    monkeypatch.setattr(job_queue, "compute", held_once)
    monkeypatch.setattr(job_queue, "WAIT", 0.0)
    queue = lite(tmp_path)
    found = run_grid(CELLS[:2], square, tmp_path, workers=Workers(queue=queue), quiet=True)
    assert found == [{"square": 0}, {"square": 1}] and len(attempts) == 3
    assert sorted(states(queue)) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_cells_that_wait_already_are_not_queued_again(tmp_path):
    with asking(lite(tmp_path)) as found:
        Watch(found, CELLS[:3], square, tmp_path)
        Watch(found, CELLS, square, tmp_path)
        Watch(found, CELLS[:1], square, tmp_path / "other")  # another grid's
    assert states(lite(tmp_path)) == ["WAITING"] * 6


def test_an_error_is_raised_here_and_told_elsewhere(tmp_path):
    bad, queue = [Cell(x=1), Cell(x=-1)], lite(tmp_path)
    with pytest.raises(ValueError, match="x=-1 must not be negative"):
        run_grid(bad, square, tmp_path, workers=Workers(queue=queue), quiet=True)
    assert read_result(Cell(x=1), tmp_path) == {"square": 1}
    with asking(queue) as found:
        watch = Watch(found, bad[1:], square, tmp_path)
        watch.look()  # the old error is not this command's
    said: list[str] = []
    until = Patience(0.0)
    assert serve(queue, modules=["support.grid_cells"], until=until, say=said.append) == (1, 1)
    assert "ValueError: x=-1 must not be negative" in said[-1]
    with asking(queue) as found, pytest.raises(UserError, match="negative.*in process"):
        watch.queue = found
        watch.look()


def test_a_worker_runs_only_what_it_may_and_gives_the_cell_back(tmp_path):
    queue = lite(tmp_path)
    with asking(queue) as found:
        Watch(found, CELLS[:1], square, tmp_path)
    with pytest.raises(
        UserError, match="square is not .* computes cells; --allow-module support.grid_cells"
    ):
        serve(queue, until=Patience(0.0))
    assert sorted(states(queue)) == ["FAIL", "WAITING"] and not ran(tmp_path)
    assert serve(queue, modules=["support.grid_cells"], until=Patience(0.0)) == (1, 0)
    assert ran(tmp_path) == [0]


def test_a_cell_whose_folder_is_not_here_is_given_back(tmp_path, monkeypatch):
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    queue = lite(tmp_path)
    with asking(queue) as found:
        Watch(found, CELLS[:1], square, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").rmdir()
    with pytest.raises(UserError, match="is not on this machine"):
        serve(queue, modules=["support.grid_cells"], until=Patience(0.0))
    assert sorted(states(queue)) == ["FAIL", "WAITING"]


def test_what_died_before_its_first_sign_of_life_is_queued_again(tmp_path, monkeypatch):
    monkeypatch.setattr(job_queue, "PAUSE", 0.01)
    queue = lite(tmp_path, heartbeat=1)
    with asking(queue) as found:
        watch = Watch(found, CELLS[:1], square, tmp_path)
        with pytest.warns(UserWarning, match="Heartbeat"):
            found.study.ask()  # and never anything again
        end = time.monotonic() + 30
        while states(queue) != ["FAIL", "WAITING"]:
            assert time.monotonic() < end, states(queue)
            watch.look()
            time.sleep(0.2)


BAD = {
    "nonsense": "no-address",
    "unknown": "frobdb://x/y",
    "no folder": "sqlite:////no/such/folder/q.db",
    "no server": "postgresql://me:secret@127.0.0.1:{port}/x",
    "no mysql": "mysql://me:secret@127.0.0.1:{port}/x",
}


@pytest.mark.parametrize("case", BAD)
def test_a_storage_that_cannot_be_used_is_one_sentence(case, monkeypatch, capsys):
    monkeypatch.setattr(job_queue, "PAUSE", 0.0)
    address = BAD[case].format(port=free_port())
    assert main(["worker", "--storage", address, "--idle", "0"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"softbeam worker: --storage {address[:4]}") and "\n" not in said
    assert "secret" not in said


def test_without_the_extra_a_sentence_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("softbeam.errors.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"optuna is not installed: pip install 'softbeam\[cluster"
    ):
        opened(lite(tmp_path))


def test_a_worker_needs_an_address(capsys):
    assert main(["worker"]) == 2
    assert "--storage is missing" in capsys.readouterr().err


# Several processes


def test_no_cell_is_taken_by_two_workers(tmp_path, monkeypatch):
    """SQLite alone would let both read that it waits before one of them says that it runs."""
    queue = lite(tmp_path)
    with asking(queue) as found:
        Watch(found, CELLS[:1], square, tmp_path)
        number = found.study.get_trials(deepcopy=False)[0]._trial_id
    check = RDBStorage.check_trial_is_updatable

    def slowly(*args) -> None:
        check(*args)  # after reading, before writing
        time.sleep(0.5)

    monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", slowly)

    def pop(_: int) -> bool:
        with asking(queue) as found:
            return found.storage.set_trial_state_values(number, state=TrialState.RUNNING)

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(pop, range(3))) == [False, False, True]


@pytest.mark.slow
def test_processes_of_the_grid_serve_its_queue(tmp_path):
    workers = Workers(jobs=2, queue=lite(tmp_path))
    found = run_grid(CELLS, square, tmp_path, workers=workers, quiet=True)
    assert found == [{"square": x**2} for x in range(5)]
    assert os.getpid() not in {pid for _, pid in lines(tmp_path)}
    with pytest.raises(UserError, match="ValueError: x=-1 must not be negative"):
        run_grid([Cell(x=-1)], square, tmp_path, workers=workers, quiet=True)


@contextmanager
def workers(queue: Queue, number: int, *more: str):
    """Commands that run cells; they are ended with the test."""
    words = ["worker", "--storage", queue.storage, "--heartbeat", str(queue.heartbeat)]
    command = [
        sys.executable,
        "-m",
        "softbeam",
        *words,
        "--allow-module",
        "support.grid_cells",
        *more,
    ]
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    options = {"env": os.environ | {"PYTHONPATH": path}, "stderr": subprocess.DEVNULL}
    made = [subprocess.Popen(command, stdout=subprocess.PIPE, **options) for _ in range(number)]
    try:
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request, tmp_path):
    """The address of a database: a file, or a server of its own."""
    if request.param == "sqlite":
        yield lite(tmp_path).storage
        return
    if postgres_program("pg_ctl") is None:
        absent("no PostgreSQL server (pg_ctl) is installed")
    with postgres() as address:
        yield address


def kill_in(x: int, folder: Path, processes: list[subprocess.Popen]) -> int:
    """Kill the worker that has begun a cell; returns its number."""
    end = time.monotonic() + 200
    while x not in ran(folder):
        assert time.monotonic() < end
        time.sleep(0.1)
    killed = dict(lines(folder))[x]
    next(process for process in processes if process.pid == killed).kill()
    return killed


@pytest.mark.slow
def test_a_killed_workers_cell_is_run_by_the_other(storage, tmp_path):
    """Cell 2 hangs in the worker that takes it first, which is killed there."""
    cells = [Cell(x=x, name="hang" if x == 2 else "a") for x in range(8)]
    queue = Queue(storage=storage, heartbeat=1)
    one_by_one = tmp_path / "alone"
    one_by_one.mkdir()
    (one_by_one / "log").write_text("2 0\n")  # there it need not hang
    expected = run_grid(cells, hanging_once, one_by_one, quiet=True)
    folder = tmp_path / "shared"
    folder.mkdir()
    with workers(queue, 2) as processes, ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_in, 2, folder, processes)
        nobody_here = Workers(jobs=0, queue=queue)
        assert run_grid(cells, hanging_once, folder, workers=nobody_here, quiet=True) == expected
    by = lines(folder)
    assert sorted(x for x, _ in by) == [0, 1, 2, 2, *range(3, 8)], "nothing else was run twice"
    first, second = (pid for x, pid in by if x == 2)
    assert first == killed.result() != second


@pytest.mark.slow
def test_a_cell_that_kills_its_workers_is_not_tried_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(job_queue, "RETRIES", 0)
    queue = lite(tmp_path, heartbeat=1)
    with asking(queue) as found, workers(queue, 1):
        watch = Watch(found, [Cell(x=1)], deadly, tmp_path)
        end = time.monotonic() + 120
        with pytest.raises(UserError, match="1 workers have died in it"):
            while time.monotonic() < end:
                watch.look()
                time.sleep(0.2)


@pytest.mark.slow
def test_jobs_of_submitit_serve_a_queue(tmp_path, capsys):
    queue = lite(tmp_path)
    with asking(queue) as found:
        Watch(found, CELLS, square, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]))
        words = [
            "worker",
            "--storage",
            queue.storage,
            "--allow-module",
            "support.grid_cells",
            "--idle",
            "2",
        ]
        words += ["--submit", "2", "--logs", str(tmp_path / "jobs"), "--set", "timeout_min=5"]
        assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"cells": 5, "failed": 0}
    assert sorted(ran(tmp_path)) == list(range(5))


def test_jobs_are_handed_to_slurm(tmp_path, monkeypatch, capsys):
    """To an sbatch that only keeps what it is given."""
    kept = tmp_path / "kept.sh"
    for name, text in (
        ("srun", "exit 0"),
        ("sbatch", f'cp "$1" {kept}; echo Submitted batch job 12'),
    ):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    words = ["worker", "--storage", "sqlite:///q.db", "--submit", "3", "--cluster", "slurm"]
    words += ["--logs", str(tmp_path / "jobs"), "--set", "timeout_min=90,slurm_partition=night"]
    assert main(words) == 0
    assert "jobs 12_0, 12_1, 12_2" in capsys.readouterr().out
    text = kept.read_text()
    assert "--partition=night" in text and "--time=90" in text and "--array=0-2" in text


BAD_JOBS = {
    "unknown": (["--set", "frob=1"], "--cluster local: Parameter 'frob'"),
    "no value": (["--set", "timeout_min"], "--set timeout_min: must be as timeout_min=600"),
    "no slurm": (["--cluster", "slurm"], "--cluster slurm"),
}


@pytest.mark.parametrize("case", BAD_JOBS)
def test_jobs_that_cannot_be_started_are_one_sentence(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, expected = BAD_JOBS[case]
    assert main(["worker", "--storage", "sqlite:///q.db", "--submit", "1", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert expected in said and "\n" not in said


def test_results_are_where_the_grid_keeps_them(tmp_path):
    run_grid([Cell(x=3)], square, tmp_path, workers=Workers(queue=lite(tmp_path)), quiet=True)
    record = json.loads(result_path(Cell(x=3), tmp_path).read_text())
    assert record.pop("seconds") >= 0
    assert record == {"cell": "Cell", "x": 3, "name": "a", "result": {"square": 9}}
