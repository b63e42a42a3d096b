"""A folder that goes while a run is trained: noticed, and what is in memory is kept beside it."""

import shutil
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.training import api, loop
from softbeam.training.runs import load_run, read_metrics
from support.small_data import write_data
from support.small_runs import files_of, train_words


def deleted(out: Path) -> None:
    shutil.rmtree(out)


def renamed(out: Path) -> None:
    out.rename(out.with_name("elsewhere"))


def replaced(out: Path) -> None:
    """Another folder takes its place."""
    renamed(out)
    out.mkdir()


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "run"


def lose(monkeypatch, name: str, call: int, how, out: Path) -> None:
    """Let the folder go before the n-th call of a function of the loop."""
    owner, last = (loop.Trainer, name[8:]) if name.startswith("Trainer.") else (loop, name)
    plain, calls = getattr(owner, last), []

    def then(*args, **options):
        calls.append(1)
        if len(calls) == call:
            how(out)
        return plain(*args, **options)

    monkeypatch.setattr(owner, last, then)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "name", "call"),
    [
        (deleted, "Trainer.one_update", 1),
        (renamed, "Trainer.one_update", 7),
        (deleted, "Trainer.on_dev", 1),
        (replaced, "Trainer.on_dev", 5),  # the last epoch
        (renamed, "save_checkpoint", 2),
        (renamed, "Trainer.load_best", 1),
        (deleted, "Trainer.load_best", 2),
        (deleted, "finish", 1),
    ],
)
def test_the_state_is_kept_beside_and_goes_on(tmp_path, out, monkeypatch, capsys, how, name, call):
    data, beside = write_data(tmp_path), tmp_path / "run.rescued"
    with monkeypatch.context() as patch:
        lose(patch, name, call, how, out)
        assert main(train_words(data, out)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        f"softbeam train: {out} was deleted or renamed during training; the present state is in "
        f"{beside}, and --out {beside} --resume goes on from it\n"
    )
    assert not list(out.glob("*")) or name in ("save_checkpoint", "finish"), "half a folder"
    assert main(train_words(data, beside, "--resume")) == 0
    run = load_run(beside)
    assert run.summary["metrics"] == run.evaluate().metrics, "weights and summary are of one moment"
    assert "checkpoint.safetensors" not in files_of(beside)
    updates = [(r["stage"], r["update"]) for r in read_metrics(beside) if r["kind"] == "train"]
    assert len({*updates}) == len(updates) == len({*map(str, updates)}) and updates


@pytest.mark.slow
def test_examples_in_memory_are_kept_as_well(out, monkeypatch):
    examples = [("a b c", "X Y Z"), ("b c", "Y Z"), ("c a", "Z X")] * 4
    lose(monkeypatch, "Trainer.one_update", 2, deleted, out)
    settings = {"examples": examples, "dev": examples[:3], "quiet": True}
    with pytest.raises(UserError, match="was deleted or renamed during training"):
        api.train("tagging", out, checkpoint_every=1, **settings)
    run = load_run(out.with_name("run.rescued"))
    assert run.config.data.load().splits["dev"] and run.decode(["a b"])[0][0].tokens


@pytest.mark.slow
def test_a_second_loss_takes_another_name(tmp_path, out, monkeypatch, capsys):
    data = write_data(tmp_path)
    (tmp_path / "run.rescued").mkdir()
    lose(monkeypatch, "Trainer.one_update", 3, deleted, out)
    assert main(train_words(data, out)) == 2
    assert "run.rescued-2, and --out" in capsys.readouterr().err
    assert not list((tmp_path / "run.rescued").iterdir())
