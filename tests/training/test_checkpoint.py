"""Checkpoints: whole or not there, and only for the run that wrote them."""

import os

import pytest
import torch

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.runtime.files import load_checkpoint, save_checkpoint
from support.small_data import write_data
from support.small_runs import train_words


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is_and_other_settings_are_refused(tmp_path, capsys):
    data, out = write_data(tmp_path), tmp_path / "run"
    assert main(train_words(data, out)) == 0
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert main(train_words(data, out, "--resume")) == 0
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert main(train_words(data, out, "--resume", "--seed", "9")) == 2
    assert "other settings: --seed 9 (1 in the run); give" in capsys.readouterr().err


def test_a_failed_write_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.ones(2)}, {"update": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        save_checkpoint(path, {"a": torch.zeros(2)}, {"update": 2})
    tensors, facts = load_checkpoint(path)
    assert facts == {"update": 1} and tensors["a"].tolist() == [1.0, 1.0]
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("content", [b"", b"rubbish", b"\x00" * 100])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a checkpoint"):
        load_checkpoint(path)
