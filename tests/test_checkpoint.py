"""Stopping and going on: killed anywhere, a run ends with the weights it would have had."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softbeam.checkpoint import load_checkpoint, save_checkpoint
from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.runs import read_metrics


def write_data(folder: Path) -> Path:
    rng = random.Random(1)
    lines = []
    for _ in range(120):
        for _ in range(rng.randint(2, 7)):
            word = rng.randint(0, 7)
            lines.append(f"w{word} T{word % 3}")
        lines.append("")
    (folder / "a.conll").write_text("\n".join(lines) + "\n")
    return folder / "a.conll"


def command(data: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "tagging", "--data.train", str(data), "--out", str(out), "--quiet"]
    words += ["--pretrain.epochs", "3", "--pretrain.tokens", "60", "--model.hidden", "12"]
    words += ["--objective", "direct-loss", "--finetune.epochs", "2", "--finetune.tokens", "60"]
    return [*words, "--checkpoint_every", "3", "--log_every", "4", *more]


def start(words: list[str]) -> subprocess.Popen:
    code = "import sys; from softbeam.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)


def same_weights(a: Path, b: Path) -> bool:
    one, two = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def without_time(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in read_metrics(folder)]


@pytest.mark.slow
def test_killed_runs_go_on_to_the_same_weights(tmp_path):
    """SIGKILL at random moments, with dropout and two stages; logs have no gap and no repeat."""
    data = write_data(tmp_path)
    assert main(command(data, tmp_path / "whole")) == 0
    rng, kills = random.Random(3), 0
    out = tmp_path / "killed"
    while not (out / "summary.json").exists():
        process = start(command(data, out, "--resume"))
        deadline = time.monotonic() + rng.uniform(0.05, 1.2)
        while not (out / "checkpoint.safetensors").exists() and process.poll() is None:
            time.sleep(0.01)  # the imports alone take seconds: kill while it trains
            deadline = max(deadline, time.monotonic() + 0.05)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is None and kills < 5:
            process.kill()
            kills += 1
        process.wait(timeout=120)
    assert kills >= 3
    assert same_weights(tmp_path / "whole", out)
    assert without_time(tmp_path / "whole") == without_time(out)
    assert not (out / "checkpoint.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finish_the_update_and_save(tmp_path, number, code):
    data, out = write_data(tmp_path), tmp_path / "run"
    process = start(command(data, out, "--pretrain.epochs", "200"))
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code and "--resume goes on" in said
    tensors, facts = load_checkpoint(out / "checkpoint.safetensors")
    assert facts["update"] > 0 and "model.bos" in tensors


def test_a_finished_run_is_left_as_it_is_and_other_settings_are_refused(tmp_path, capsys):
    data, out = write_data(tmp_path), tmp_path / "run"
    assert main(command(data, out)) == 0
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert main(command(data, out, "--resume")) == 0
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert main(command(data, out, "--resume", "--seed", "9")) == 2
    assert "other settings" in capsys.readouterr().err


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
