"""A run is a folder: its configuration, vocabularies, metrics, weights and birth certificate."""

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import nn

from softbeam.checkpoint import NAME as CHECKPOINT
from softbeam.config import RunConfig, from_yaml, to_yaml
from softbeam.data.tasks import Corpus, Translation
from softbeam.data.vocabulary import (
    SOURCE,
    Subwords,
    Vocabulary,
    load_codec,
    save_codec,
)
from softbeam.errors import UserError
from softbeam.evaluate import Codecs
from softbeam.files import write_text

CONFIG, WEIGHTS, METRICS = "config.yaml", "model.safetensors", "metrics.jsonl"
SUMMARY = "summary.json"
PACKAGES = ("softbeam", "torch", "numpy", "transformers", "accelerate", "tokenizers", "sacrebleu")


class Run(NamedTuple):
    """A trained run, loaded."""

    config: RunConfig
    codecs: Codecs
    model: nn.Module
    summary: dict[str, Any]


def make_codecs(config: RunConfig, corpus: Corpus) -> Codecs:
    """Vocabularies of the training split: closed label sets, words, or subwords."""
    train = corpus.split("train")
    sources, targets = [e.source for e in train], [e.target for e in train]
    if config.data.kind == "tagging":
        source = Vocabulary.build(sources, specials=SOURCE, min_count=min_count(sources))
        return Codecs(source, Vocabulary.build(targets))
    task = config.data
    if isinstance(task, Translation) and task.subwords > 0:
        return Codecs(
            Subwords.train(sources, size=task.subwords, specials=SOURCE),
            Subwords.train(targets, size=task.subwords, specials=config.model.specials),
        )
    count = task.min_count if isinstance(task, Translation) else 1
    return Codecs(
        Vocabulary.build(sources, specials=SOURCE, min_count=count),
        Vocabulary.build(targets, specials=config.model.specials, min_count=count),
    )


def min_count(sources: list[tuple[str, ...]]) -> int:
    """2 for words, so that <unk> is trained on the words seen once; 1 for closed alphabets."""
    kinds = {token for source in sources for token in source}
    return 2 if len(kinds) > 1000 else 1


def write_start(out: Path, config: RunConfig, codecs: Codecs, corpus: Corpus) -> None:
    """Everything that is known of a run before its first update; its configuration comes last."""
    sizes = {name: len(split) for name, split in corpus.splits.items()}
    facts = environment() | {"files": corpus.files, "examples": sizes}
    write_text(out / "environment.json", json.dumps(facts, indent=1) + "\n")
    write_text(out / METRICS, "")
    save_codec(codecs.source, out / "source.json")
    save_codec(codecs.target, out / "target.json")
    for left in (SUMMARY, CHECKPOINT, WEIGHTS):  # of an earlier run in the same folder
        (out / left).unlink(missing_ok=True)
    write_text(out / CONFIG, to_yaml(config))


def environment() -> dict[str, Any]:
    """Versions, machine, commit and command: enough to know what produced a number."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: installed(name) for name in PACKAGES},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The source tree's commit, marked where the tree has changes; None outside a checkout."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return (head + ("+changes" if git("status", "--porcelain", "-uno") else "")) or None
    except (OSError, subprocess.SubprocessError):
        return None


def save_weights(model: nn.Module, path: Path) -> None:
    """The weights in safetensors; a matrix that two layers share is stored once."""
    from safetensors.torch import save_model

    beside = path.with_name(path.name + ".tmp")
    try:
        save_model(model, str(beside))
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {error}") from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Put a file's weights into a model of the same shape, or say what does not fit."""
    from safetensors.torch import load_model

    if not path.is_file():
        raise UserError(
            f"{path.parent} has no weights ({path.name}): its training has not finished"
        )
    try:
        load_model(model, str(path))
    except (RuntimeError, SafetensorError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"the weights in {path} do not fit the model: {text[:300]}") from None


def load_codecs(folder: Path) -> Codecs:
    return Codecs(load_codec(folder / "source.json"), load_codec(folder / "target.json"))


def load_run(folder: Path) -> Run:
    """A finished run from its folder, ready to decode."""
    config = from_yaml(folder / CONFIG)
    codecs = load_codecs(folder)
    model = config.model.build(len(codecs.source), len(codecs.target))
    load_weights(model, folder / WEIGHTS)
    return Run(config, codecs, model.eval(), read_summary(folder))


def read_summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    path = folder / METRICS
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: it has no {METRICS}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
