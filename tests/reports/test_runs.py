"""Runs on a page: seeds of a trial together, one axis of updates, results with their facts."""

import json
import shlex
from dataclasses import replace

import pytest

from softbeam.cli import main
from softbeam.data.tasks import Tagging
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.curves import beginning, learning_curves, line_of, second_stage
from softbeam.reports.runs import commands, corpus_text, describe, run_table, trials_of
from softbeam.training.config import RunConfig, to_yaml
from softbeam.training.searches import Beam
from support.report_folders import write_run
from support.small_data import write_conll


def run_with(folder, rows=None, /, **settings):
    """A run with these settings, and with these rows of its log if they are given."""
    write_run(folder)
    (folder / "config.yaml").write_text(to_yaml(replace(RunConfig(), **settings)))
    if rows is not None:
        text = "".join(json.dumps({"stage": "pretrain", "epoch": 0} | row) + "\n" for row in rows)
        (folder / "metrics.jsonl").write_text(text)
    return describe(folder)


def losses(*updates):
    return [{"kind": "train", "update": u, "loss": 1.0 / u} for u in updates]


def test_a_second_stage_goes_on_where_the_first_ended(tmp_path):
    rows = [row | {"stage": "finetune"} for row in losses(2)]
    run = run_with(tmp_path / "run", [*losses(5, 9), *rows])
    assert line_of(run, 0, "train", "loss", {}) == ([5, 9, 11], [0.2, 1 / 9, 0.5])
    assert second_stage(run) == 9


@pytest.mark.slow
@pytest.mark.parametrize("where", ["given", "moved"])
def test_a_run_that_starts_from_another_is_drawn_after_it(tmp_path, where):
    start = run_with(tmp_path / "start", losses(10, 70))
    place = start.folder if where == "given" else "/elsewhere/start"
    stage = replace(RunConfig().finetune, objective=DirectLoss(), epochs=1)
    rows = [row | {"stage": "finetune"} for row in losses(10, 40)]
    more = run_with(tmp_path / "more", rows, warm_start=str(place), finetune=stage)
    panels = learning_curves(trials_of([more, start]))
    titles = [panel["title"] for panel in panels]
    assert titles == ["Training loss, cross-entropy", "Training loss, direct-loss"]
    assert beginning(more, [more, start]) == 70 and beginning(start, [more, start]) == 0
    assert beginning(more, [more]) == 0, "a start that is not shown"


@pytest.mark.slow
def test_seeds_are_one_trial_and_starts_come_first(tmp_path):
    named = [("a-1", 1), ("a-2", 2), ("b-7", 1), ("c-3", 3)]
    runs = [run_with(tmp_path / name, seed=seed) for name, seed in named]
    runs.insert(0, run_with(tmp_path / "first", warm_start="c-3"))
    trials = trials_of(runs)
    assert [(name, len(group)) for name, group in trials.items()] == [
        ("a", 2),
        ("b-7", 1),
        ("c-3", 1),
        ("first", 1),
    ]
    other = run_with(tmp_path / "other" / "b-7", seed=1)
    assert list(trials_of([runs[3], other])) == ["b-7", "other/b-7"]


def test_a_result_has_split_search_corpus_date_and_interval(tmp_path):
    row = {"kind": "dev", "update": 80, "metric": "accuracy", "value": 61.04}
    rows = [row | {"interval": [58.5, 63.25]}, row | {"value": 60.0, "interval": [57.0, 62.0]}]
    data = Tagging(train="da.train.conll")
    run = run_with(tmp_path / "a-1", rows, select=Beam(k=3, normalize=False), data=data)
    summary = json.loads((run.folder / "summary.json").read_text())
    (run.folder / "summary.json").write_text(json.dumps(summary | {"metric": "accuracy"}))
    facts = {"started": "2026-11-18T02:09:49Z", "files": {"train": "/data/da.train.conll"}}
    facts |= {"examples": {"dev": 1234}}
    (run.folder / "environment.json").write_text(json.dumps(facts))
    run = describe(run.folder)
    (shown,) = run_table(trials_of([run])).rows
    assert shown["value"] == "61.04" and shown["95 % interval"] == "58.50 to 63.25"
    assert (shown["split"], shown["search"]) == ("dev", "beam 3, raw scores")
    assert (shown["corpus"], shown["date"]) == ("da.train.conll, 1,234 examples", "2026-11-18")
    assert corpus_text({"dev": "/a/b.de + /a/b.en"}, "dev", None) == "b.de + b.en"


def test_what_all_trials_share_is_said_once(tmp_path):
    runs = [run_with(tmp_path / name, select=Beam(k=k)) for name, k in (("a", 2), ("b", 3))]
    table = run_table(trials_of(runs))
    assert "split dev" in table.note and "split" not in table.rows[0]
    assert [row["search"] for row in table.rows] == [
        "beam 2, normalized scores",
        "beam 3, normalized scores",
    ]


@pytest.mark.slow
def test_commands_work_when_they_are_pasted(tmp_path, monkeypatch, capsys):
    """Also from a folder whose name has a space, with paths relative to it."""
    folder = tmp_path / "my data"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_conll(folder / "train", 1)
    words = ["train", "tagging", "--data.train", "train", "--data.dev", "train", "--quiet"]
    words += ["--model.hidden", "4", "--model.embedding", "4", "--pretrain.epochs", "1"]
    assert main([*words, "--out", "run"]) == 0
    monkeypatch.chdir(tmp_path)
    given = commands(describe(folder / "run"))
    assert list(given) == ["score dev", "train anew"]
    for command in given.values():
        cd, place, also, program, *more = shlex.split(command)
        assert (cd, also, program) == ("cd", "&&", "softbeam")
        monkeypatch.chdir(place)
        assert main([*more, "--quiet"]) == 0, command
    anew, first = ((tmp_path / "my data" / n / "model.safetensors") for n in ("run-again", "run"))
    assert anew.read_bytes() == first.read_bytes()
