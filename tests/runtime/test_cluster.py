"""Cells in a Dask cluster: each is computed once, by whoever lives, with the results of one."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from safetensors.torch import load_file

from softbeam.data.tasks import Tagging
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime import cluster as clusters
from softbeam.runtime.cells import read_result
from softbeam.runtime.cluster import Cluster, kept_open
from softbeam.runtime.grid import Workers, run_grid
from softbeam.training.config import RunConfig, Stage
from softbeam.training.many import train_all
from support.dask_processes import Server
from support.grid_cells import Cell, deadly_one, hanging_once, lines, ran, square
from support.small_data import write_tagging

pytestmark = pytest.mark.slow
CELLS = [Cell(x=x) for x in range(5)]


def at(scheduler: Server) -> Workers:
    return Workers(cluster=Cluster(address=scheduler.address))


def wait(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_cluster_gives_what_one_process_gives(pair, tmp_path, capsys):
    run_grid(CELLS[:2], square, tmp_path, quiet=True)
    with kept_open():
        for _ in range(2):
            results = run_grid(CELLS, square, tmp_path, workers=at(pair[0]), title="squares")
            assert results == [{"square": x**2} for x in range(5)]
    assert sorted(ran(tmp_path)) == list(range(5)), "once each, wherever"
    pids = {process.pid for worker in pair[1] for process in worker.cell_processes()}
    assert {pid for _, pid in lines(tmp_path)} == pids | {os.getpid()}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    line = r"squares  \d/5  Cell\(x=\d, name='a'\)  by worker \d+ on \S+ in 0:00  \S+/(s|min)  "
    assert all(re.fullmatch(line + r"\d:\d\d left", each) for each in said), said


def test_a_thousand_small_cells(pair, tmp_path):
    cells = [Cell(x=x) for x in range(1000)]
    results = run_grid(cells, square, tmp_path, workers=at(pair[0]), quiet=True)
    assert results == [{"square": x**2} for x in range(1000)]
    assert sorted(ran(tmp_path)) == list(range(1000))


def test_an_error_ends_the_command_and_says_where(pair, tmp_path):
    expected = r"Cell\(x=-1, .*ValueError: x=-1 must not be negative \(in worker \d+ on"
    with pytest.raises(UserError, match=expected):
        run_grid([Cell(x=-1)], square, tmp_path, workers=at(pair[0]), quiet=True)


def test_a_cell_that_dies_three_times_is_reported_and_the_rest_goes_on(pair, tmp_path):
    with pytest.raises(UserError, match=r"1 of 5 cells failed, .* died 3 times") as caught:
        run_grid(CELLS, deadly_one, tmp_path, workers=at(pair[0]), quiet=True)
    assert "\n" not in str(caught.value) and "Cell(x=2," in str(caught.value)
    assert sorted(ran(tmp_path)) == [0, 1, 2, 2, 2, 3, 4]
    assert [read_result(cell, tmp_path) is None for cell in CELLS] == [c.x == 2 for c in CELLS]
    assert all(psutil.pid_exists(worker.pid) for worker in pair[1]), "workers are not harmed"


def test_a_killed_workers_cell_is_run_by_the_other(farm, tmp_path):
    scheduler = farm.scheduler()
    workers = [farm.worker(scheduler) for _ in range(2)]
    cells = [Cell(x=x, name="hang" if x == 2 else "a") for x in range(5)]
    with ThreadPoolExecutor(1) as pool:
        grid = pool.submit(run_grid, cells, hanging_once, tmp_path, workers=at(scheduler))
        wait(lambda: 2 in ran(tmp_path))
        process = dict(lines(tmp_path))[2]
        worker = next(w for w in workers if process in [p.pid for p in w.cell_processes()])
        worker.kill()
        assert grid.result(60) == [{"square": x**2} for x in range(5)]
    assert sorted(ran(tmp_path)) == [0, 1, 2, 2, 3, 4], "nothing else was run twice"
    wait(lambda: not psutil.pid_exists(process))


def test_a_scheduler_that_was_killed_is_waited_for(farm, tmp_path, capsys, monkeypatch):
    """The same command goes on; and if nobody starts the scheduler again, it says so."""
    cells = [Cell(x=x, name="hang" if x == 2 else "a") for x in range(5)]
    scheduler = farm.scheduler()
    farm.worker(scheduler)
    with ThreadPoolExecutor(1) as pool:
        grid = pool.submit(run_grid, cells, hanging_once, tmp_path, workers=at(scheduler))
        wait(lambda: 2 in ran(tmp_path))
        scheduler.kill()
        again = farm.scheduler(port=int(scheduler.address.rpartition(":")[2]))
        farm.worker(again)
        assert grid.result(60) == [{"square": x**2} for x in range(5)]
    assert again.address == scheduler.address
    assert len([x for x in ran(tmp_path) if x == 2]) == 2 and len(ran(tmp_path)) == 6
    assert f"the connection to {scheduler.address} is lost: waiting" in capsys.readouterr().err
    again.kill()
    monkeypatch.setattr(clusters, "CONNECT", 0.2)
    with pytest.raises(UserError, match=f"--cluster {again.address}: .*") as caught:
        run_grid([Cell(x=9)], square, tmp_path, workers=at(again), quiet=True)
    assert "\n" not in str(caught.value)


def test_a_worker_of_another_version_is_refused_by_name(farm, tmp_path, capsys):
    scheduler = farm.scheduler()
    other = farm.worker(scheduler, version="0.0.9")
    expected = (
        f"no worker can be used: worker {other.pid} on .*{other.address}.* has softbeam 0.0.9"
    )
    with pytest.raises(UserError, match=expected):
        run_grid(CELLS, square, tmp_path, workers=at(scheduler), quiet=True)
    assert not ran(tmp_path)
    farm.worker(scheduler)
    run_grid(CELLS, square, tmp_path, workers=at(scheduler))
    assert sorted(ran(tmp_path)) == list(range(5))
    said = capsys.readouterr().err
    assert said.count(f"warning: worker {other.pid} on") <= 1


def test_a_training_goes_on_elsewhere_to_the_same_weights(farm, tmp_path):
    """The worker is killed after the first checkpoint; dropout goes on as if it had not been."""
    data = Tagging(
        train=write_tagging(tmp_path / "a.conll", 60, 1),
        dev=write_tagging(tmp_path / "b.conll", 20, 2),
    )
    stage = Stage(objective=CrossEntropy(), epochs=8, lr=0.01, tokens=40)
    model = Lstm(embedding=8, hidden=8, dropout=0.3)
    config = RunConfig(data=data, model=model, pretrain=stage, checkpoint_every=2)
    scheduler = farm.scheduler()
    worker = farm.worker(scheduler, warm=True)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "alone").mkdir()
    with ThreadPoolExecutor(1) as pool:
        options = {"workers": at(scheduler), "quiet": True}
        runs = pool.submit(train_all, {"run": config}, tmp_path / "cluster", **options)
        wait(lambda: (tmp_path / "cluster" / "run" / "checkpoint.safetensors").exists())
        worker.kill()
        assert not (tmp_path / "cluster" / "run" / "summary.json").exists()
        farm.worker(scheduler, warm=True)
        (summary,) = runs.result(60)
    (expected,) = train_all({"run": config}, tmp_path / "alone", quiet=True)
    assert summary | {"seconds": 0} == expected | {"seconds": 0}
    one, two = (
        load_file(tmp_path / name / "run/model.safetensors") for name in ("alone", "cluster")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
