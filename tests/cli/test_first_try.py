"""What a first training says: what was chosen, what counting gives, and whether it was worth it."""

import json

import pytest

from softbeam.cli import main
from support.small_data import write_tagging


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    train = write_tagging(folder / "a.conll", 60, 1)
    return ["--data.train", train, "--data.dev", write_tagging(folder / "b.conll", 20, 2)]


SMALL = ["--model.hidden", "8", "--model.embedding", "8", "--model.characters", "0"]


@pytest.mark.slow
def test_a_model_that_has_learnt_nothing_says_so_loudly(data, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["train", "tagging", *data, *SMALL, "--epochs", "1", "--lr", "1e-9", "--out", run]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "chosen for 60 examples: pretrain.tokens 200" in said.err
    assert "WARNING: THIS MODEL IS NO BETTER THAN THE MOST FREQUENT LABEL" in said.err
    assert "\nwithout a model: dev most frequent label " in said.out
    assert main(["evaluate", run, "--quiet", "--json"]) == 0
    said = capsys.readouterr()
    assert "WARNING: THIS MODEL IS NO BETTER" in said.err
    record = json.loads(said.out.splitlines()[-1])
    best = max(record["baselines"].values())
    assert record["metrics"]["accuracy"] <= best and f"{best:.2f}" in said.out


@pytest.mark.slow
def test_a_model_that_has_learnt_says_nothing(data, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["train", "tagging", *data, *SMALL, "--epochs", "20", "--lr", "0.02", "--quiet"]
    assert main([*words, "--batch-tokens", "50", "--model.label_noise", "0", "--out", run]) == 0
    said = capsys.readouterr()
    assert "WARNING" not in said.err and "without a model" in said.out


@pytest.mark.slow
def test_a_run_with_a_limit_of_time_ends(data, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "tagging", *data, *SMALL, "--minutes", "0.01", "--quiet", "--out", str(run)]
    assert main([*words, "--objective", "cross-entropy"]) == 0
    stages = json.loads((run / "summary.json").read_text())["stages"]
    assert [stage["ended"] for stage in stages.values()] == ["the time of 0.01 minutes"] * 2
