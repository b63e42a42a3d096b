"""Sweeps and restarts: runs as cells, the same in one process and in a cluster."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softbeam.cli import main
from softbeam.cli.train import parse_run, seeds_of
from softbeam.data.tasks import Tagging
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.grid import Workers
from softbeam.training import many
from softbeam.training.config import RunConfig, Stage
from support.small_data import write_tagging

FIRST = ["--model.hidden", "6", "--model.embedding", "6", "--pretrain.epochs", "2"]
FIRST += ["--pretrain.tokens", "40"]
OVER = ["--over", "pretrain.lr=0.03,0.0001", "--over", "model.encoder=uni,bi", "--seeds", "1,2"]


def words(folder: Path, out: Path, *more: str) -> list[str]:
    data = [str(folder / "a.conll"), "--data.dev", str(folder / "b.conll")]
    made = ["sweep", "tagging", "--data.train", *data, *FIRST, *OVER, "--out", str(out)]
    return [*made, "--quiet", "--json", *more]


@pytest.fixture
def folder(tmp_path) -> Path:
    write_tagging(tmp_path / "a.conll", 60, 1)
    write_tagging(tmp_path / "b.conll", 30, 2)
    return tmp_path


@pytest.mark.slow
def test_a_sweep_orders_every_combination_and_keeps_what_is_finished(folder, capsys):
    assert main(words(folder, folder / "out")) == 0
    shown = capsys.readouterr().out.splitlines()
    found = json.loads(shown[-1])
    names = {f"pretrain.lr={lr},model.encoder={e}" for lr in (0.03, 0.0001) for e in ("uni", "bi")}
    assert {row["setting"] for row in found["rows"]} == names
    assert [row["score"] for row in found["rows"]] == sorted(
        (row["score"] for row in found["rows"]), reverse=True
    )
    best = found["rows"][0]
    assert best["mean"] == sum(best["values"].values()) / 2
    assert shown[-2] == f"best: {found['best']}" and (Path(found["best"]) / "summary.json").exists()
    times = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*/summary.json")}
    assert len(times) == 8
    assert main(words(folder, folder / "out", "--over", "pretrain.clip=5.0")) == 0
    capsys.readouterr()
    assert main(words(folder, folder / "out")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert all(path.stat().st_mtime_ns == then for path, then in times.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--over", "pretrain.lr"], "--over pretrain.lr: must be a field and values"),
        (["--over", "pretrain.lr=1,"], "--over pretrain.lr=1,: must be a field and values"),
        (["--over", "pretrain.frob=1"], "frob"),
        (["--jobs", "0"], "--jobs 0: must be at least 1"),
        (["--seeds", "1,1"], "each is given once"),
        (["--over", "seed=1,1"], "two combinations would both be called"),
        (["--over", "seed=1,2,3"], "the runs have different seeds: give --seeds 1,2,3 instead"),
        (["--seed", "3"], "--seeds 1,2 replaces --seed 3: give one of the two"),
        (["--over", "finetune.lr=0.1,0.2"], "train the same run"),
        (["--over", "pretrain.weight-decay=0,0.1"], "train the same run"),
        (["--over", "pretrain.clip=1,1.0"], "train the same run"),
        (["--over", "pretrain.lr=0.5"], "--over: a field is given twice"),
        (["--over", "out=a,b"], "unrecognized arguments: --out a"),
        (["--over", "jobs=1,2"], "unrecognized arguments: --jobs 1"),
    ],
)
def test_bad_sweeps_are_one_sentence(folder, capsys, more, said):
    assert main(words(folder, folder / "out", *more)) == 2
    shown = capsys.readouterr().err.strip()
    assert said in shown and "\n" not in shown and not (folder / "out").exists()


def test_seeds_are_those_of_the_flag_or_the_one_that_all_runs_have(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("seed: 7\n")
    line = ["tagging", "--data.train", "a", "--config", str(other)]
    lines = [line, [*line, "--pretrain.lr", "0.5"]]
    configs = [parse_run("sweep", words)[0] for words in lines]
    assert seeds_of(None, configs, lines) == [7]
    assert seeds_of("1,2", configs, lines) == [1, 2], "a flag replaces what a file says"


@pytest.mark.slow
def test_a_cluster_trains_the_same_weights(folder, pair, capsys):
    assert main(words(folder, folder / "alone", "--seeds", "3")) == 0
    cluster = ["--cluster", pair[0].address]
    assert main(words(folder, folder / "cluster", *cluster, "--seeds", "3")) == 0
    assert len(list((folder / "alone").glob("*/model.safetensors"))) == 4
    for path in (folder / "alone").glob("*/model.safetensors"):
        one, two = load_file(path), load_file(folder / "cluster" / path.parent.name / path.name)
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_restarts_in_a_cluster_keep_the_same_best(folder, pair):
    config = RunConfig(
        data=Tagging(train=str(folder / "a.conll"), dev=str(folder / "b.conll")),
        model=Lstm(embedding=6, hidden=6),
        pretrain=Stage(objective=CrossEntropy(), epochs=2, lr=0.03, tokens=40),
        restarts=3,
    )
    cluster = Workers(cluster=Cluster(address=pair[0].address))
    alone = many.train(config, folder / "alone", quiet=True)
    shared = many.train(config, folder / "cluster", quiet=True, workers=cluster)
    assert {**alone, "seconds": 0} == {**shared, "seconds": 0}
    assert len(set(alone["restart_scores"])) > 1
    one, two = (load_file(folder / name / "model.safetensors") for name in ("alone", "cluster"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    again = many.train(replace(config, seed=2), folder / "alone", quiet=True, overwrite=True)
    assert again["restart_scores"] != alone["restart_scores"], "it begins anew"
