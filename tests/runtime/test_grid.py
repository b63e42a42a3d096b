"""A grid runs each cell once, whatever happens between."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from softbeam.errors import UserError
from softbeam.runtime.allowed import allowing
from softbeam.runtime.cells import (
    WORK,
    cell_of,
    key,
    name_of,
    read_result,
    result_path,
    settings,
    work_named,
)
from softbeam.runtime.files import remove
from softbeam.runtime.grid import Workers, run_grid
from support.grid_cells import Cell, allowed, ran, square

CELLS = [Cell(x=x) for x in range(4)]
TWO = Workers(jobs=2)


def test_results_come_in_the_order_of_the_cells_and_are_run_once(tmp_path):
    for _ in range(2):
        found = run_grid(CELLS[::-1], square, tmp_path, quiet=True)
        assert found == [{"square": x**2} for x in (3, 2, 1, 0)]
    assert ran(tmp_path) == [3, 2, 1, 0]


def test_a_cell_whose_file_is_gone_runs_again_and_no_other(tmp_path):
    run_grid(CELLS, square, tmp_path, quiet=True)
    result_path(CELLS[2], tmp_path).unlink()
    run_grid(CELLS, square, tmp_path, quiet=True)
    assert ran(tmp_path) == [0, 1, 2, 3, 2]


def test_a_cell_that_runs_again_keeps_its_file_until_then(tmp_path):
    """A grid that is killed before it gets there has lost nothing."""

    def careful(cell, folder):
        assert cell == CELLS[1] and read_result(cell, folder) == {"square": 1}
        return {"square": -1}

    run_grid(CELLS, square, tmp_path, quiet=True)
    found = run_grid(CELLS, careful, tmp_path, again=[CELLS[1]], quiet=True)
    assert [one["square"] for one in found] == [0, -1, 4, 9]


def test_the_same_cell_twice_is_run_once(tmp_path):
    assert len(run_grid([Cell(x=2), Cell(x=2)], square, tmp_path, quiet=True)) == 2
    assert ran(tmp_path) == [2]


def test_a_key_depends_on_the_settings_alone():
    assert key(Cell(x=1)) == key(Cell(name="a", x=1)) == "e3f5f2335caf7770"
    assert len({key(c) for c in (Cell(x=1), Cell(x=2), Cell(x=1, name="b"))}) == 3

    @dataclass(frozen=True)
    class Other:
        x: int
        name: str = "a"

    assert key(Other(1)) != key(Cell(x=1))


def test_a_file_says_what_it_is_the_result_of(tmp_path):
    run_grid([Cell(x=3)], square, tmp_path, quiet=True)
    record = json.loads(result_path(Cell(x=3), tmp_path).read_text())
    assert record.pop("seconds") >= 0
    assert record == {"cell": "Cell", "x": 3, "name": "a", "result": {"square": 9}}


def test_an_error_keeps_what_was_finished(tmp_path):
    with pytest.raises(ValueError, match="x=-1"):
        run_grid([Cell(x=1), Cell(x=-1), Cell(x=2)], square, tmp_path, quiet=True)
    assert read_result(Cell(x=1), tmp_path) == {"square": 1}
    assert read_result(Cell(x=-1), tmp_path) is None


def test_a_damaged_file_is_named(tmp_path):
    path = result_path(Cell(x=1), tmp_path)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UserError, match=f"{path.name} is not a result"):
        run_grid([Cell(x=1)], square, tmp_path, quiet=True)


def test_no_jobs_is_an_error(tmp_path):
    with pytest.raises(UserError, match="--jobs 0: must be at least 1"):
        Workers(jobs=0)


def test_progress_says_what_was_done_before(tmp_path, capsys, monkeypatch):
    run_grid(CELLS[:2], square, tmp_path, quiet=True)
    monkeypatch.setattr("softbeam.runtime.progress.printed", -math.inf)
    run_grid(CELLS[:3], square, tmp_path, title="squares")
    assert "squares  3/3" in capsys.readouterr().err


# Names


@dataclass(frozen=True, kw_only=True)
class Nested:
    inner: Cell | None
    pair: tuple[int, ...] = ()


def of_nested(cell: Nested, folder: Path) -> dict:
    return {}


def test_a_cell_and_its_function_are_found_by_what_json_knows():
    for cell in (Nested(inner=Cell(x=1), pair=(1, 2)), Nested(inner=None)):
        known = json.loads(json.dumps(settings(cell)))
        assert cell_of(of_nested, known) == cell
    with allowing(["support"]):
        assert work_named(name_of(square)) is square
    for other in (name_of(square), "os:system", "softbeam.runtime.files:remove", "softbeam.no:x"):
        with pytest.raises(UserError, match=f"{other} is not a function of softbeam that computes"):
            work_named(other)
    assert all(callable(work_named(name)) for name in WORK)
    with pytest.raises(ValueError, match="is not in WORK"):
        name_of(remove)
    for bad in (lambda cell, folder: {}, partial(square, folder=Path())):
        with pytest.raises(ValueError, match="workers need a function"):
            name_of(bad)


def test_another_version_of_a_cell_is_not_taken_for_it():
    known = settings(Cell(x=1))
    for other in (known | {"y": 2}, {"cell": "Cell", "x": 1}, known | {"cell": "Other"}):
        with pytest.raises(UserError, match="Cell (differs in this version|cannot be made)"):
            cell_of(square, other)


@pytest.mark.slow
def test_two_processes_give_the_same(tmp_path):
    with allowing(["mine"]):
        assert run_grid(CELLS, allowed, tmp_path, workers=TWO, quiet=True) == [
            {"square": x**2, "allowed": ["mine"]} for x in range(4)
        ]
    assert sorted(ran(tmp_path)) == [0, 1, 2, 3]
    assert str(os.getpid()) not in (tmp_path / "log").read_text()
    with pytest.raises(ValueError, match="x=-1"):
        run_grid([Cell(x=-1)], square, tmp_path, workers=TWO, quiet=True)


SLOW_GRID = """
import sys
from pathlib import Path
from softbeam.runtime.signals import ending
sys.path.insert(0, {tests!r})
from support.grid_cells import Cell, {work}
from softbeam.runtime.files import remove
from softbeam.runtime.grid import Workers, run_grid

if __name__ == "__main__":
    cells = [Cell(x=x, name="hang" if x == 2 else "a") for x in range(4)]
    with ending():
        run_grid(cells, {work}, Path({folder!r}), workers=Workers(jobs=2))
"""


def slow_grid(folder: Path, work: str) -> "subprocess.Popen[bytes]":
    script = folder / "slow_grid.py"
    tests = str(Path(__file__).parents[1])
    script.write_text(SLOW_GRID.format(tests=tests, folder=str(folder), work=work))
    return subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_grid_goes_on_and_leaves_no_process(tmp_path, number):
    """Cell 2 hangs; the parent gets a signal; then only what has no file is run."""
    parent = slow_grid(tmp_path, "hanging")
    wait(lambda: sorted(ran(tmp_path)) == [0, 1, 2, 3])
    wait(lambda: read_result(Cell(x=3), tmp_path) is not None)
    parent.send_signal(number)
    parent.wait(timeout=120)
    workers = {int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()}
    wait(lambda: not any(alive(pid) for pid in workers))
    run_grid([Cell(x=x, name="hang" if x == 2 else "a") for x in range(4)], square, tmp_path)
    assert sorted(ran(tmp_path)) == [0, 1, 2, 2, 3]


@pytest.mark.slow
def test_a_process_that_stops_its_cell_takes_no_other(tmp_path):
    """Training ends its update when it is asked to stop: the pool has the next cell ready."""
    parent = slow_grid(tmp_path, "patient")
    wait(lambda: len(ran(tmp_path)) == 2)
    parent.send_signal(signal.SIGTERM)
    parent.wait(timeout=60)
    assert sorted(ran(tmp_path)) == [0, 1]


def wait(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Running, and not a dead child that nobody has asked after."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
