"""Small commands that train and sample, and what comes out of them, for the tests of crashes."""

import json
from pathlib import Path

from softbeam.training.runs import read_metrics


def train_words(data: Path, out: Path, *more: str) -> list[str]:
    """Two stages with dropout, whose dev score rises."""
    words = ["train", "tagging", "--data.train", str(data), "--out", str(out), "--quiet"]
    words += ["--model.hidden", "12", "--model.embedding", "8", "--model.dropout", "0.2"]
    words += ["--pretrain.epochs", "3", "--pretrain.tokens", "60", "--pretrain.lr", "0.02"]
    words += ["--pretrain.schedule", "constant", "--finetune.schedule", "constant"]
    words += ["--model.label_noise", "0", "--model.shortcut", "false", "--objective", "direct-loss"]
    words += ["--finetune.epochs", "2", "--finetune.tokens", "60"]
    return [*words, "--checkpoint_every", "2", "--log_every", "3", *more]


def result(out: Path) -> tuple[bytes, list[dict], dict]:
    """Weights, log and summary of a finished run, without what is of the clock."""
    rows = [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in read_metrics(out)]
    summary = json.loads((out / "summary.json").read_text())
    del summary["seconds"]
    return (out / "model.safetensors").read_bytes(), rows, summary


def files_of(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


def sample_words(mlm: Path, out: Path, *more: str) -> list[str]:
    """Two groups of texts."""
    (out.parent / "texts").write_text("AC[MASK]D[MASK]E\n[MASK]KL\nA[MASK]\n")
    words = ["sample", "--mlm", str(mlm), "--input", str(out.parent / "texts"), "--chains", "2"]
    words += ["--sweeps", "30", "--burn-in", "3", "--at-once", "4", "--checkpoint-every", "0.02"]
    return [*words, "--out", str(out), "--quiet", *more]
