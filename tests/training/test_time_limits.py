"""A limit of time: divided among stages, kept by training, and resumable."""

import json
import math
from dataclasses import replace

import pytest

from softbeam.data.tasks import Tagging
from softbeam.errors import Interrupted
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.training import loop
from softbeam.training.config import RunConfig, Stage, from_yaml
from softbeam.training.loop import train
from softbeam.training.optimization import lr_shape
from softbeam.training.runs import load_run, read_metrics
from softbeam.training.time_limits import TimeLimit
from support.small_data import write_tagging


def test_stages_divide_what_is_left():
    assert TimeLimit.of(10, 0.0, 2) == (0.0, 300.0)
    assert TimeLimit.of(10, 100.0, 1) == (100.0, 600.0)  # the first stage ended early
    assert TimeLimit.of(10, 700.0, 1) == (700.0, 700.0)
    assert TimeLimit.of(None, 50.0, 2) == (50.0, math.inf)


def test_shares_of_the_time():
    limit = TimeLimit(100.0, 300.0)
    assert [limit.share(s) for s in (100.0, 150.0, 300.0, 999.0)] == [0.0, 0.25, 1.0, 1.0]
    assert TimeLimit(100.0).share(1e9) == 0.0
    assert TimeLimit(100.0, 100.0).share(100.0) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_falls_with_the_time(schedule):
    """With half of the time gone it is that of half of the updates, whatever their number."""
    stage = Stage(schedule=schedule, warmup=0)
    half = lr_shape(stage, 500, 1000)
    assert lr_shape(stage, 3, 1000, timed=0.5) == pytest.approx(half)
    assert lr_shape(stage, 500, 1000, timed=0.1) == half
    assert lr_shape(stage, 3, 1000, timed=1.0) == pytest.approx(0.0)
    assert lr_shape(Stage(schedule=schedule, warmup=9), 0, 1000, timed=0.5) == pytest.approx(0.1)


class Clock:
    """Time that passes by one second with each update of a training."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(loop.time, "monotonic", lambda: self.now)
        self.inner, self.updates, self.stop_at = loop.run_update, 0, None
        monkeypatch.setattr(loop, "run_update", self.run_update)

    def run_update(self, *args, **options):
        self.now += 1.0
        self.updates += 1
        if self.updates == self.stop_at:
            raise Interrupted(2, "stopped")
        return self.inner(*args, **options)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def config(tmp_path) -> RunConfig:
    stage = Stage(objective=CrossEntropy(), lr=0.01, tokens=40, patience=None, score_every=1)
    return RunConfig(
        data=Tagging(
            train=write_tagging(tmp_path / "a.conll", 40, 1),
            dev=write_tagging(tmp_path / "b.conll", 8, 2),
        ),
        model=Lstm(embedding=4, hidden=4),
        pretrain=stage,
        finetune=replace(stage, lr=0.001),
        minutes=1.0,
        threads=1,
        checkpoint_every=7,
    )


def ends(summary: dict) -> list[tuple[int, str]]:
    return [(end["updates"], end["ended"]) for end in summary["stages"].values()]


@pytest.mark.slow
def test_training_ends_at_the_limit_with_the_best_weights_on_dev(config, clock, tmp_path):
    out = tmp_path / "run"
    summary = train(config, out, quiet=True)
    assert ends(summary) == [(30, "the time of 1 minutes"), (30, "the time of 1 minutes")]
    rows = [r for r in read_metrics(out) if r["kind"] == "dev"]
    assert [r["update"] for r in rows if r["stage"] == "finetune"][-1] == 30, "also inside an epoch"
    best = max(r["value"] for r in rows if r["stage"] == "finetune")
    assert load_run(out).evaluate("dev").metrics["accuracy"] == best == summary["score"]
    assert from_yaml(out / "config.yaml").minutes == 1.0


@pytest.mark.slow
def test_a_stage_gets_what_the_one_before_it_leaves(config, clock, tmp_path):
    short = replace(config.pretrain, epochs=1)
    summary = train(replace(config, pretrain=short), tmp_path / "run", quiet=True)
    (first, why), (second, _) = ends(summary)
    assert why == "all 1 epochs" and first + second == 60


def test_every_stage_is_scored_even_without_time(config, clock, tmp_path):
    summary = train(replace(config, minutes=0.001), tmp_path / "run", quiet=True)
    assert [updates for updates, _ in ends(summary)] == [1, 1] and summary["metric"] == "accuracy"


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [10, 31, 45])
def test_a_stopped_run_goes_on_with_the_time_that_is_left(config, clock, tmp_path, stop_at):
    out = tmp_path / "run"
    clock.stop_at = stop_at
    with pytest.raises(Interrupted):
        train(config, out, quiet=True)
    clock.now += 1000.0  # between the two commands
    summary = train(config, out, quiet=True, resume=True)
    assert ends(summary) == [(30, "the time of 1 minutes"), (30, "the time of 1 minutes")]
    assert json.loads((out / "summary.json").read_text())["stages"] == summary["stages"]


@pytest.mark.slow
def test_a_stopped_run_can_be_given_more_time(config, clock, tmp_path):
    out = tmp_path / "run"
    clock.stop_at = 10
    with pytest.raises(Interrupted):
        train(config, out, quiet=True)
    summary = train(replace(config, minutes=2.0), out, quiet=True, resume=True)
    assert [updates for updates, _ in ends(summary)] == [60, 60]
    assert from_yaml(out / "config.yaml").minutes == 2.0
