"""The number of threads: the environment's, or that of a short trial."""

import os
from dataclasses import replace

import pytest

from softbeam.data.tasks import Tagging
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.training import loop, threads
from softbeam.training.config import RunConfig, Stage, from_yaml
from softbeam.training.loop import train
from support.small_data import write_tagging


class Machine:
    """A clock, and a step whose time depends on the number of threads and of rows."""

    def __init__(self, seconds_of_a_row: dict[int, float]):
        self.seconds_of_a_row = seconds_of_a_row
        self.now, self.threads, self.calls = 0.0, 0, []

    def set_threads(self, number: int) -> None:
        self.threads = number

    def step(self, rows: int) -> None:
        self.calls.append((self.threads, rows))
        self.now += rows * self.seconds_of_a_row[self.threads]

    def faster(self, rows: int, most: int) -> int:
        return threads.faster(
            self.step, rows=rows, most=most, clock=lambda: self.now, set_threads=self.set_threads
        )


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 0.01, 4: 0.004}, 4),
        ({1: 0.01, 4: 0.0095}, 1),  # not clearly faster
        ({1: 0.01, 4: 0.2}, 1),  # a loaded machine
        ({1: 0.5, 4: 0.2}, 4),
    ],
)
def test_the_faster_number_is_chosen_within_two_seconds(seconds, chosen):
    machine = Machine(seconds)
    assert machine.faster(rows=64, most=4) == chosen
    # the last call may end later only if it was slower than the calls before it
    slowest = max(seconds[t] * rows for t, rows in machine.calls)
    assert machine.now <= threads.LONGEST + slowest
    assert {t for t, _ in machine.calls} == {1, 4}


def test_the_whole_batch_is_tried_if_it_is_quick():
    machine = Machine({1: 1e-5, 2: 1e-6})
    assert machine.faster(rows=50, most=2) == 2
    assert (2, 50) in machine.calls and (1, 50) in machine.calls


def test_one_core_needs_no_trial():
    machine = Machine({1: 1.0})
    assert machine.faster(rows=50, most=1) == 1 and not machine.calls


@pytest.mark.parametrize(
    ("value", "number"), [("3", 3), ("4,2", 4), ("", None), ("many", None), ("0", None)]
)
def test_the_environment(monkeypatch, value, number):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads.from_environment() == number
    assert threads.checked_threads(None) == (number or 1) and threads.checked_threads(2) == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads.from_environment() is None
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(
        data=Tagging(
            train=write_tagging(tmp_path / "a.conll", 30, 1),
            dev=write_tagging(tmp_path / "b.conll", 5, 2),
        ),
        model=Lstm(embedding=4, hidden=4, dropout=0.3),
        pretrain=Stage(objective=CrossEntropy(), epochs=1, lr=0.02, tokens=40),
    )


@pytest.fixture
def used(monkeypatch) -> list[int]:
    """The numbers of threads that training has set."""
    numbers: list[int] = []
    monkeypatch.setattr(loop.torch, "set_num_threads", numbers.append)
    return numbers


@pytest.mark.slow
def test_the_environment_is_never_overruled(config, used, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(loop, "faster", lambda *_, **__: pytest.fail("a trial"))
    train(config, tmp_path / "run")
    assert used == [3] and from_yaml(tmp_path / "run" / "config.yaml").threads == 3
    assert "threads 3" in capsys.readouterr().err


def test_a_given_number_is_taken(config, used, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    train(replace(config, threads=2), tmp_path / "run", quiet=True)
    assert used == [2]


@pytest.mark.slow
def test_the_trial_is_recorded_and_a_run_that_goes_on_takes_it(config, used, tmp_path, monkeypatch):
    """To the same bits, which another number would not give."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(loop, "faster", lambda *_, **__: 7)
    out = tmp_path / "run"
    assert train(config, out)["chosen"]["threads"] == 7
    assert from_yaml(out / "config.yaml").threads == 7
    (out / "summary.json").unlink()
    monkeypatch.setattr(loop, "faster", lambda *_, **__: pytest.fail("a second trial"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert train(config, out, resume=True)["chosen"]["threads"] == 7
    assert used == [7, 7]


@pytest.mark.slow
def test_a_trial_changes_no_weight_and_no_random_number(config, tmp_path, monkeypatch):
    """A run whose threads are found by a real trial ends with the bytes of one without."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train(config, tmp_path / "a", quiet=True)
    monkeypatch.delenv("OMP_NUM_THREADS")
    calls = []

    def trial(step, *, rows, most):
        calls.append(rows)
        step(rows)
        return 1

    monkeypatch.setattr(loop, "faster", trial)
    train(config, tmp_path / "b", quiet=True)
    assert calls and calls[0] > 1
    a, b = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
    assert a == b
