"""Killed at any moment, a command goes on to the bytes it would have written."""

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.runtime import files
from softbeam.runtime.files import load_checkpoint
from softbeam.sampling.texts.files import checkpoint_of, read_samples
from softbeam.training.runs import read_metrics
from support.forked_commands import (
    OF_A_GRID,
    OF_SAMPLING,
    OF_TRAINING,
    Aim,
)
from support.kills import finished_cells, grid_words, kill_a_grid, kill_sampling, kill_training
from support.small_data import write_data
from support.small_runs import files_of, result, sample_words, train_words

STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


# Training


@pytest.mark.slow
def test_killed_training_ends_with_the_same_weights_log_and_summary(nursery, whole_run, tmp_path):
    """The short form; `make soak` kills 20 times."""
    assert set(kill_training(nursery, whole_run, tmp_path, kills=6, seed=1)) >= set(OF_TRAINING)


@pytest.mark.slow
def test_every_state_that_a_kill_can_leave_goes_on(tmp_path, monkeypatch):
    """A copy of the folder after each change to it; from each copy the run ends the same.

    Kills in time seldom fall between two changes that are a millisecond apart.
    """
    data, out, copies = write_data(tmp_path), tmp_path / "run", []

    def then_copied(plain):
        def changed(*args):
            plain(*args)
            if out.exists():
                copies.append(shutil.copytree(out, tmp_path / f"copy-{len(copies)}"))

        return changed

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (os, "unlink"), (files.Growing, "append")):
            patch.setattr(owner, name, then_copied(getattr(owner, name)))
        assert main(train_words(data, out, *SHORT)) == 0
    stages = Counter(row["stage"] for row in read_metrics(out) if row["kind"] == "dev")
    assert stages == {"pretrain": 2, "finetune": 1}, "patience ended the first stage"
    changed = [one for one, two in zip(copies, copies[1:], strict=False) if differ(one, two)]
    assert len(changed) > 15
    wanted = result(out)
    for copy in [*changed, copies[-1]]:
        assert main(train_words(data, copy, "--resume", *SHORT)) == 0
        assert result(copy) == wanted, copy
        assert files_of(copy) == files_of(out)


# The second epoch is worse than the first and ends the stage; the third would be better than both.
SHORT = ["--pretrain.epochs", "4", "--pretrain.patience", "1", "--pretrain.tokens", "100"]
SHORT += ["--pretrain.lr", "0.1", "--finetune.epochs", "1", "--checkpoint_every", "100"]


def differ(one: Path, two: Path) -> bool:
    return {p.name: p.read_bytes() for p in one.iterdir()} != {
        p.name: p.read_bytes() for p in two.iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), STOPS)
def test_a_signal_lets_training_finish_its_update(nursery, whole_run, tmp_path, signum, code):
    data, out = whole_run.parent / "a.conll", tmp_path / "run"
    end = nursery.life(train_words(data, out), Aim("update", 4, signum=signum))
    assert (end.code, end.hit) == (code, "update")
    assert end.said == (
        f"softbeam train: stopped after a whole update; --resume goes on with {out}\n"
    )
    assert load_checkpoint(out / "checkpoint.safetensors")[1]["update"] == 4
    assert nursery.life(train_words(data, out, "--resume")).code == 0
    assert result(out) == result(whole_run)


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), STOPS)
def test_a_signal_at_the_start_ends_at_once_with_a_sentence(nursery, tmp_path, signum, code):
    words = train_words(write_data(tmp_path), tmp_path / "run")
    end = nursery.life(words, Aim("loading", signum=signum))
    assert (end.code, end.said) == (code, "softbeam train: interrupted\n")
    assert not (tmp_path / "run").exists()


# Sampling


@pytest.mark.slow
def test_killed_sampling_ends_with_the_same_file(nursery, letters_mlm, whole_samples, tmp_path):
    hits = kill_sampling(nursery, letters_mlm, whole_samples, tmp_path, kills=6, seed=1)
    assert set(hits) >= set(OF_SAMPLING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "phase", "entry", "sweeps"), [(STOPS[1], "lines", 4, 4), (STOPS[0], "step", 8, 3)]
)
def test_a_signal_ends_sampling_at_once(
    nursery, letters_mlm, whole_samples, tmp_path, stop, phase, entry, sweeps
):
    """Lines are written whole; a sweep, here of two steps, is left within its second step."""
    (signum, code), out = stop, tmp_path / "s.jsonl"
    end = nursery.life(sample_words(letters_mlm, out), Aim(phase, entry, signum=signum))
    assert (end.code, end.hit) == (code, phase)
    assert end.said == (
        f"softbeam sample: stopped; --resume continues {out} after its last complete sweep\n"
    )
    assert out.read_bytes().endswith(b"\n") and checkpoint_of(out).exists()
    assert len(list(read_samples(out))) == sweeps * 4
    assert nursery.life(sample_words(letters_mlm, out, "--resume")).code == 0
    assert out.read_bytes() == whole_samples.read_bytes()


@pytest.mark.slow
def test_an_old_summary_is_not_taken_for_that_of_new_samples(nursery, letters_mlm, tmp_path):
    """The file is begun anew, and killed before its first checkpoint; the old one stays so long."""
    out, again = tmp_path / "s.jsonl", ("--seed", "2", "--overwrite")
    assert nursery.life(sample_words(letters_mlm, out)).code == 0
    old, summary = out.read_bytes(), out.with_suffix(".json").read_bytes()
    assert nursery.life(sample_words(letters_mlm, out, *again), Aim("lines", 1)).hit == "lines"
    assert (out.read_bytes(), out.with_suffix(".json").read_bytes()) == (old, summary)
    assert nursery.life(sample_words(letters_mlm, out, *again, "--resume")).code == 0
    assert out.read_bytes() != old and b'"seed": 2' in out.with_suffix(".json").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "s.jsonl", "s.json", "s.png"}


# Grids


@pytest.mark.slow
def test_a_killed_grid_ends_with_the_same_figures(nursery, short_corpora, tmp_path):
    assert set(kill_a_grid(nursery, short_corpora, tmp_path, kills=3, seed=1)) >= set(OF_A_GRID)


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), STOPS)
def test_a_signal_ends_a_grid_and_keeps_what_is_finished(nursery, tmp_path, signum, code):
    out = tmp_path / "grid"
    end = nursery.life(grid_words(out), Aim("cell", 3, signum=signum))
    assert (end.code, end.hit) == (code, "cell")
    assert end.said == (
        "softbeam reproduce: stopped; the same command continues after what is finished\n"
    )
    assert len(finished_cells(out)) == 2
