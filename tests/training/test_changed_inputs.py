"""A run goes on only with the data, weights and checkpoint that it was begun with."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from softbeam.cli import main
from support.bad_input.things import SHORT, TAGS
from support.small_data import write_conll

RESUME = [*TAGS, *SHORT, "--out", "stopped", "--resume"]
WARM = [*TAGS, *SHORT, "--warm_start", "run", "--out", "second"]
GRID = ["--try", "a: --pretrain.lr 0.01", "--try", "b: --pretrain.lr 0.02", "--quiet"]
COMPARE = ["compare", *TAGS[1:], *SHORT, *GRID, "--out", "grid"]
SWEEP = ["sweep", *TAGS[1:], *SHORT, "--over", "pretrain.lr=0.01", "--out", "grid"]
ACCEPT = "--accept-changed-inputs"


def change_data() -> None:
    """Other sentences of the same words and labels."""
    write_conll(Path("dev.conll"), 2)


def change_weights(path: str) -> None:
    """Weights of the same shapes, slightly off."""
    save_file({name: w * 1.01 for name, w in load_file(path).items()}, path)


def refused(words: list[str], capsys) -> str:
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ACCEPT in said
    return said


def accepted(folder: str) -> list[str]:
    """What the record of a run says that was accepted."""
    record = json.loads(Path(folder, "inputs.json").read_text())
    return [name for each in record["accepted"] for name in each["changed"]]


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(here, capsys):
    change_data()
    said = refused(RESUME, capsys)
    assert "stopped was begun with other content of data.dev (dev.conll); restore it" in said
    assert main([*RESUME, ACCEPT]) == 0
    assert accepted("stopped") == ["data.dev"]
    assert main(RESUME) == 0  # finished, with the data that was accepted


def test_restored_data_are_no_change(here):
    before = Path("dev.conll").read_bytes()
    change_data()
    Path("dev.conll").write_bytes(before)
    assert main(RESUME) == 0


def test_a_finished_run_is_not_shown_as_that_of_other_data(here, capsys):
    change_data()
    words = [*TAGS, *SHORT, "--out", "run", "--resume"]
    assert "run was begun with other content of data.dev" in refused(words, capsys)


def test_other_weights_of_a_finished_run_are_named(here, capsys):
    change_weights("run/model.safetensors")
    words = [*TAGS, *SHORT, "--out", "run", "--resume"]
    assert "run was begun with other content of model.safetensors;" in refused(words, capsys)
    assert main([*words, ACCEPT]) == 0 and accepted("run") == ["model.safetensors"]


@pytest.mark.slow
def test_other_weights_of_the_start_are_named(here, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("softbeam.training.loop.finish", interrupted)
        assert main(WARM) == 130
    change_weights("run/model.safetensors")
    name = "warm_start model.safetensors (run/model.safetensors)"
    assert name in refused([*WARM, "--resume"], capsys)
    assert main([*WARM, "--resume", ACCEPT]) == 0
    assert accepted("second") == ["warm_start model.safetensors"]


@pytest.mark.slow
def test_other_weights_of_a_teacher_are_named(here, capsys):
    teach = "--objective distillation --finetune.objective.teacher run --finetune.epochs 1".split()
    words = [*TAGS, *SHORT, *teach, "--out", "second"]
    assert main(words) == 0
    assert main([*words[:-1], "run", "--overwrite"]) == 2
    assert "run is an input of this command" in capsys.readouterr().err
    change_weights("run/model.safetensors")
    name = "finetune.objective model.safetensors (run/model.safetensors)"
    assert name in refused([*words, "--resume"], capsys)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_teacher_of_other_words_is_refused(here, side, capsys):
    """Of the same size too: its numbers would mean something else."""
    path = Path(f"run/{side}.json")
    body = json.loads(path.read_text())
    body["tokens"] = body["tokens"][::-1]
    path.write_text(json.dumps(body))
    teach = "--objective distillation --finetune.objective.teacher run --out second".split()
    capsys.readouterr()
    assert main([*TAGS, *SHORT, *teach]) == 2
    assert f"run/{side}.json is another vocabulary" in capsys.readouterr().err
    assert not Path("second").exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_another_vocabulary_of_the_same_size_is_named(here, capsys):
    path = Path("stopped/target.json")
    text = path.read_text()
    path.write_text(text.replace('"N"', '"M"'))
    assert path.read_text() != text
    assert "other content of target.json;" in refused(RESUME, capsys)
    path.write_text(text)
    assert main(RESUME) == 0


@pytest.mark.slow
def test_the_checkpoint_of_another_seed_is_named(here, monkeypatch, capsys):
    other = [*TAGS, *SHORT, "--seed", "2", "--out", "other"]
    with monkeypatch.context() as patch:
        patch.setattr("softbeam.training.loop.finish", interrupted)
        assert main(other) == 130
    shutil.copy("other/checkpoint.safetensors", "stopped")
    said = refused(RESUME, capsys)
    assert "stopped was begun with other content of checkpoint.safetensors" in said
    assert main([*RESUME, ACCEPT]) == 0
    assert accepted("stopped") == ["checkpoint.safetensors"]


def test_best_weights_that_were_replaced_do_not_become_the_run(here, capsys):
    change_weights("stopped/model.safetensors")
    assert "other content of model.safetensors" in refused(RESUME, capsys)
    assert not Path("stopped/summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [COMPARE, SWEEP], ids=["compare", "sweep"])
def test_a_grid_does_not_mix_runs_of_different_data_or_weights(here, words, capsys):
    assert main(words) == 0
    run = next(path.parent for path in sorted(Path("grid").glob("*/config.yaml")))
    before = {path: path.read_bytes() for path in Path("grid").rglob("*") if path.is_file()}
    change_data()
    assert f"{run} was begun with other content of data.dev (dev.conll)" in refused(words, capsys)
    write_conll(Path("dev.conll"), 1)
    weights = (run / "model.safetensors").read_bytes()
    change_weights(str(run / "model.safetensors"))
    assert f"{run} was begun with other content of model.safetensors" in refused(words, capsys)
    (run / "model.safetensors").write_bytes(weights)
    assert {path: path.read_bytes() for path in before} == before, "nothing was written"
    change_data()
    assert main([*words, ACCEPT]) == 0 and accepted(str(run)) == ["data.dev"]
    assert main(words) == 0


@pytest.mark.slow
def test_restarts_are_checked_as_well(here, capsys):
    words = [*TAGS, *SHORT, "--restarts", "2", "--out", "many"]
    assert main(words) == 0
    change_data()
    assert "many/restart-0 was begun with other" in refused([*words, "--resume"], capsys)
    assert main([*words, "--resume", ACCEPT]) == 0
    assert accepted("many/restart-1") == ["data.dev"]
