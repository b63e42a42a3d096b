"""Comparison of ways to train: shared starts, kept runs, paired figures."""

import json
from dataclasses import replace

import pytest

from softbeam.cli import ladder, main
from softbeam.cli.train import parse_run, trial
from softbeam.data import readers, task
from softbeam.data.synthetic import draw, rib_rob
from softbeam.experiments import compare
from softbeam.training.config import from_yaml
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam

SMALL = ["--model.hidden", "8", "--model.embedding", "8", "--threads", "1"]
SHORT = ["--pretrain.epochs", "1", "--finetune.epochs", "1", "--quiet", "--json"]


@pytest.fixture
def words(tmp_path):
    """Flags of a tagging comparison on a small file."""
    blocks = []
    for example in draw(rib_rob(), 40, seed=1):
        rows = zip(example.source, example.target, strict=True)
        blocks.append("".join(f"{a} {b}\n" for a, b in rows))
    file = tmp_path / "train.conll"
    file.write_text("\n".join(blocks))
    data = ["--data.train", str(file), "--data.dev", str(file)]
    return ["compare", "tagging", *data, *SMALL, *SHORT, "--out", str(tmp_path / "out")]


def last_json(text):
    return json.loads(text.splitlines()[-1])


@pytest.mark.slow
def test_trials_share_a_start_unless_their_first_stages_differ(
    words, tmp_path, capsys, monkeypatch
):
    reads, read = [], readers.read_columns
    monkeypatch.setattr(task, "LOADED", {})
    monkeypatch.setattr(
        readers, "read_columns", lambda path, **options: reads.append(path) or read(path, **options)
    )
    other = "other: --pretrain.objective self-normalized --objective cross-entropy"
    trials = ["--try", "cross-entropy", "--try", "direct-loss", "--try", other]
    assert main([*words, *trials, "--seeds", "1,2"]) == 0
    assert len(reads) == 2, "ten runs, their scores and the report read train and dev once"
    found = last_json(capsys.readouterr().out)
    names = [row["trial"] for row in found["rows"]]
    assert names == ["start", "start2", "cross-entropy", "direct-loss", "other"]
    assert all(set(row["values"]) == {"1", "2"} for row in found["rows"])
    assert [("against_first" in row) for row in found["rows"]] == [True, True, False, True, True]
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir() if p.is_dir()) == sorted(
        ["results", *(f"{name}-{seed}" for name in names for seed in (1, 2))]
    )
    started = {n: from_yaml(out / f"{n}-2" / "config.yaml").warm_start for n in names}
    assert started["direct-loss"] == started["cross-entropy"] == str(out / "start-2")
    assert started["other"] == str(out / "start2-2")
    assert (out / "report.html").read_text().count("direct-loss") >= 2


@pytest.mark.slow
def test_what_is_finished_is_not_trained_again(words, tmp_path, capsys):
    trials = ["--try", "cross-entropy", "--try", "beam-crf"]
    assert main([*words, *trials]) == 0
    first = last_json(capsys.readouterr().out)
    out = tmp_path / "out"
    times = {p: p.stat().st_mtime_ns for p in out.glob("*/model.safetensors")}
    (out / "beam-crf-1" / "summary.json").unlink()
    (out / "beam-crf-1" / "model.safetensors").unlink()
    assert main([*words, *trials]) == 0
    assert last_json(capsys.readouterr().out) == first
    now = {p: p.stat().st_mtime_ns for p in out.glob("*/model.safetensors")}
    changed = {p.parent.name for p in times if times[p] != now[p]}
    assert changed == {"beam-crf-1"}


@pytest.mark.slow
def test_a_global_trial_is_scored_with_raw_scores_and_its_start_with_normalized_ones(
    words, tmp_path, capsys
):
    line = "global: --objective direct-loss --finetune.objective.normalize false"
    assert main([*words, "--try", "cross-entropy", "--try", line, "--try", "beam-crf"]) == 0
    result, out = last_json(capsys.readouterr().out), tmp_path / "out"
    selects = {n: from_yaml(out / f"{n}-1" / "config.yaml").select for n in NAMES}
    local, raw = Beam(k=3), Beam(k=3, normalize=False)
    assert [*selects.values()] == [local, local, raw, raw], "one beam for all, the first trial's"
    for row in result["rows"]:
        run = load_run(out / f"{row['trial']}-1")
        figures = run.evaluate("dev", raw).metrics
        assert row["raw"] == figures["accuracy"], "what raw scores gain without training"
        own = run.evaluate("dev").metrics
        assert (row["mean"], row["sequence_accuracy"]) == (*own.values(),)
    assert result["search"] == "beam 3" and result["corpus"].endswith("train.conll")


NAMES = ("start", "cross-entropy", "global", "beam-crf")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--try", "direct-loss"], "--try was given 1 times"),
        (["--try", "a: --seed 1", "--try", "a: --seed 2"], "seeds: give --seeds 1,2"),
        (["--try", "cross-entropy", "--try", "cross-entropy"], "two trials are called 'cross-ent"),
        (["--try", "a: --jobs 2", "--try", "cross-entropy"], "unrecognized arguments: --jobs 2"),
        (["--try", "a: --no.such 1", "--try", "cross-entropy"], "no.such"),
        (["--try", "direct-loss", "--try", "cross-entropy", "--seeds", "1;2"], "--seeds 1;2"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(words, more, sentence, capsys, tmp_path):
    assert main([*words, *more]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_figures_are_means_spreads_and_paired_differences():
    gold = [[("a", "b")], [("a", "a")]]
    trial = compare.Trial("one", from_recipe())
    right, wrong = [["a", "b"], ["a", "a"]], [["a", "b"], ["b", "b"]]
    scored = {
        "one": [compare.Scored("accuracy", 50.0, wrong), compare.Scored("accuracy", 50.0, wrong)],
        "two": [compare.Scored("accuracy", 100.0, right), compare.Scored("accuracy", 50.0, wrong)],
    }
    rows = compare.table_rows(scored, trial, gold, [1, 2])
    assert [row["mean"] for row in rows] == [50.0, 75.0]
    assert rows[1]["spread"] == pytest.approx(35.355339)
    against = rows[1]["against_first"]
    assert against["difference"] == pytest.approx(25.0) and against["p_value"] > 0.3
    assert against["p_holm"] == against["p_value"] and against["over"] == "seeds and sentences"
    assert "against_first" not in rows[0]
    assert not {"with raw scores", "whole sentences"} & set(compare.readable(rows)[0])
    some = [rows[0] | {"raw": 1.0}, rows[1]]
    assert [row["with raw scores"] for row in compare.readable(some)] == [1.0, "-"]


def row(trial, mean, *, raw=None, whole=None, metric="accuracy", first=False):
    own = {"trial": trial, "metric": metric, "mean": mean, "raw": raw, "sequence_accuracy": whole}
    return own if first else own | {"against_first": {}}


def test_a_table_says_what_is_free_and_what_is_lost():
    rows = [
        row("start", 50.0, raw=53.0, whole=19.0),
        row("ce", 51.0, raw=54.0, whole=20.0, first=True),
        row("direct", 53.5, raw=53.5, whole=15.0),
        row("mixed", 55.0, raw=55.0, whole=19.5),
        row("worse", 50.0, raw=55.0, whole=10.0),
    ]
    best, free, lost = compare.remarks(rows)
    assert best == "best: mixed, 4.00 points better than ce (not tested: not sure)"
    assert (
        free
        == "ce has 54.00 with raw scores, untrained; not better than that: start, direct, worse"
    )
    assert (
        lost.startswith("direct has 5.00 fewer whole sentences right") and "cross_entropy" in lost
    )
    assert compare.remarks([row("a", 5.0, raw=4.0, first=True), row("b", 6.0)]) == []
    errors = [row("a", 5.0, raw=4.0, metric="sequence_error_rate", first=True)]
    assert compare.remarks(errors) == ["a has 4.00 with raw scores, untrained"]


def test_the_best_is_named_with_its_test():
    tested = {"difference": 4.0, "interval": (1.0, 7.0), "p_value": 0.01, "p_holm": 0.02}
    rows = [row("ce", 51.0, first=True), row("a", 50.0), row("b", 55.0)]
    rows[2]["against_first"] = tested
    (best,) = compare.remarks(rows)
    expected = "best: b, 4.00 points better than ce (+4.00 [+1.00, +7.00], Holm 0.020: sure)"
    assert best == expected
    (none,) = compare.remarks([*rows[:2], row("b", 40.0)])
    assert none == "best: ce, which nothing beats (51.00)"
    less = [dict(r, metric="sequence_error_rate") for r in rows]
    assert compare.remarks(less)[0].startswith("best: a, 1.00 points better")


@pytest.mark.parametrize("recipe", ["tagging", "ccg", "ner", "g2p", "translation"])
def test_the_standard_trials_are_equally_long(recipe):
    """They differ in objective and search alone, and every one is trained for its own search."""
    trials = dict(map(trial, ladder.standard("standard", recipe)))
    assert list(trials) == list(ladder.STANDARD) and len(trials) == 7
    shared = ["--finetune.epochs", "3"]
    configs = {n: parse_run("compare", [recipe, *shared, *more])[0] for n, more in trials.items()}
    stages = {replace(c.finetune, objective=None) for c in configs.values()}
    assert len(stages) == 1 and len({c.pretrain for c in configs.values()}) == 1
    ends = recipe in ("g2p", "translation")
    for name, config in configs.items():
        objective = config.finetune.objective
        raw = name in ("direct-global", "beam-crf", "bso")
        assert config.select.normalize is not raw, name
        if name in ladder.SEARCHING:
            assert objective.finish is ends, name
        assert getattr(objective, "search_dropout", "none") == "none"


def test_no_other_ladder(words, capsys):
    assert main([*words, "--preset", "long"]) == 2
    assert "--preset long: there is standard" in capsys.readouterr().err


@pytest.mark.slow
def test_one_command_tries_everything(words, capsys):
    assert main([*words, "--preset", "standard", "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    found = last_json(said)
    assert [row["trial"] for row in found["rows"]] == ["start", *ladder.STANDARD]
    assert "best: " in said


def from_recipe():
    from softbeam.training.recipes import tagging

    return tagging()
