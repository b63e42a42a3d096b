"""Flags: how they are spelled, what is said of typing errors, and what follows from them."""

import os
import sys

import pytest

from softbeam.cli import main
from softbeam.cli.train import parse_run
from softbeam.errors import UserError
from softbeam.training.searches import Beam, Greedy, SoftBeamSearch
from support.small_data import write_conll

FLAGS = [
    ("--checkpoint-every", "7", lambda config: config.checkpoint_every),
    ("--skip-nonfinite", "7", lambda config: config.skip_nonfinite),
    ("--model.label-embedding", "7", lambda config: config.model.label_embedding),
    ("--data.max-length", "7", lambda config: config.data.max_length),
    ("--finetune.objective.diagnose-every", "7", lambda c: c.finetune.objective.diagnose_every),
]


@pytest.mark.slow
@pytest.mark.parametrize("flag, value, field", FLAGS, ids=[flag for flag, _, _ in FLAGS])
def test_a_flag_has_hyphens_or_underscores(flag, value, field):
    words = ["ccg", "--objective", "direct-loss"]
    underscored = "--" + flag[2:].replace("-", "_")
    for given in ([flag, value], [underscored, value], [f"{flag}={value}"]):
        assert field(parse_run("train", [*words, *given])[0]) == 7


DIRECT = "--objective direct-loss"
TYPING_ERRORS = {
    "train tagging --data.trian x": "there is no flag --data.trian; did you mean --data.train?",
    "train ccg --bem 3": "there is no flag --bem; did you mean --beam?",
    "train ccg --pretrain.patiense=3": "no flag --pretrain.patiense; did you mean --pretrain.pat",
    f"train ccg {DIRECT} --finetune.objective.cots x": "mean --finetune.objective.cost",
    f"train ccg {DIRECT} --finetune.objective.alpha.grwoth 2": "objective.alpha.growth?",
    "train ccg --checkpoint_evry 3": "did you mean --checkpoint-every?",
    "compare ccg --try cross-entropy --try direct-loss --seds 3": "did you mean --seeds?",
    "evaluate run --beem 3": "there is no flag --beem; did you mean --beam?",
    "sample --mlm x --swepes 3": "did you mean --sweeps?",
    "data list --xyzzy": "there is no flag --xyzzy; --help lists them",
    "trian": "did you mean train?",
    "train taging": "did you mean tagging?",
}


@pytest.mark.parametrize("line", TYPING_ERRORS)
def test_the_nearest_word_is_named(line, capsys):
    assert main(line.split()) == 2
    assert TYPING_ERRORS[line] in capsys.readouterr().err


def test_a_wrong_value_of_a_flag_that_exists_is_not_a_wrong_flag(capsys):
    assert main(["train", "ccg", "--pretrain.lr", "fast"]) == 2
    assert "no flag" not in capsys.readouterr().err


@pytest.mark.parametrize("word", ["null", "none", "None"])
def test_none_and_null_are_one(word):
    flags = ["--pretrain.patience", word, "--data.max_length", word, "--warm-start", word]
    config = parse_run("train", ["ccg", *flags, "--pretrain.objective", "cross-entropy"])[0]
    values = (config.pretrain.patience, config.data.max_length, config.warm_start)
    assert values == (None, None, None)
    assert parse_run("train", ["ccg", "--objective", word])[0].finetune.objective is None


def test_none_stays_where_it_is_a_choice():
    words = ["ccg", "--objective", "reinforce", "--finetune.objective.baseline", "none"]
    config, parsed = parse_run("train", [*words, "--out", "none"])
    assert config.finetune.objective.baseline == "none" and parsed.out == "none"


IMPLIED = {
    "stress": Greedy(),
    "stress --beam 4": Beam(k=4),
    "stress --beam=4": Beam(k=4),
    "stress --objective=direct-loss": Beam(k=3),
    "stress --objective direct-loss --beam 4": Beam(k=4),
    "stress --objective direct-loss --search greedy": Greedy(),
    "stress --objective beam-crf": Beam(k=4, normalize=False),
    "ccg --objective beam-crf": Beam(k=3, normalize=False),
    "ccg --objective direct-loss --finetune.objective.normalize false": Beam(k=3, normalize=False),
    f"ccg {DIRECT} --finetune.objective.normalize=false --select.normalize true": Beam(k=3),
    "ccg --objective direct-loss --beam 5 --select.k 2": Beam(k=2),
    "ccg --objective direct-loss --beam 5 --select soft-beam": SoftBeamSearch(k=5),
    "ccg --objective cross-entropy --search beam": Beam(k=3),
}


@pytest.mark.parametrize("line", IMPLIED)
def test_dev_is_searched_as_the_objective_says_unless_told_otherwise(line):
    assert parse_run("train", line.split())[0].select == IMPLIED[line]


def test_settings_of_an_objective_need_one():
    with pytest.raises(UserError, match=r"alpha.growth 2: give the objective too, --objective"):
        parse_run("train", ["ccg", "--finetune.objective.alpha.growth", "2"])


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_help_after_a_recipe_is_help(command, capsys):
    assert main([command, "ccg", "--help"]) == 0
    assert f"usage: softbeam {command} RECIPE" in capsys.readouterr().out


def test_a_reader_that_goes_away_ends_training_with_a_code(tmp_path, capsys, monkeypatch):
    write_conll(tmp_path / "a.conll", 2)
    reading, writing = os.pipe()
    os.close(reading)
    words = [
        "train",
        "tagging",
        "--data.train",
        str(tmp_path / "a.conll"),
        "--pretrain.epochs",
        "2",
    ]
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        assert main([*words, "--data.dev_share", "0.4", "--out", str(tmp_path / "run")]) == 141
    assert not (tmp_path / "run" / "summary.json").exists(), "it is not a finished run"
