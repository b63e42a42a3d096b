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

from safetensors import SafetensorError, safe_open
from torch import nn

from softbeam.data.tasks import Corpus, Translation
from softbeam.data.vocabulary import PAD, SOURCE, Subwords, Vocabulary, load_codec, save_codec
from softbeam.errors import UserError
from softbeam.runtime.files import (
    Types,
    read_object,
    read_rows,
    remove,
    remove_parts,
    replacing,
    write_text,
)
from softbeam.training.checkpoint import NAME as CHECKPOINT
from softbeam.training.config import RunConfig, from_yaml, to_yaml
from softbeam.training.evaluation import Codecs

CONFIG, WEIGHTS, METRICS = "config.yaml", "model.safetensors", "metrics.jsonl"
SUMMARY = "summary.json"
NUMBER = (int, float)
SUMMARY_TYPES: Types = {"metrics": dict, "epoch": int, "parameters": int, "seconds": NUMBER}
ROW_TYPES: Types = {"kind": str, "stage": str, "update": int, "loss": NUMBER, "value": NUMBER}
ROW_FIELDS = {"train": ["stage", "update", "loss"], "dev": ["stage", "update", "metric", "value"]}
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
    """Everything that is known of a run before its first update.

    The configuration of an earlier run in the folder goes first, and the new one comes last, so
    that a folder with one is whole.
    """
    remove(*(out / left for left in (CONFIG, SUMMARY, CHECKPOINT, WEIGHTS)))
    remove_parts(out)
    sizes = {name: len(split) for name, split in corpus.splits.items()}
    facts = environment() | {"files": corpus.files, "examples": sizes}
    write_text(out / "environment.json", json.dumps(facts, indent=1) + "\n")
    write_text(out / METRICS, "")
    save_codec(codecs.source, out / "source.json")
    save_codec(codecs.target, out / "target.json")
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

    try:
        with replacing(path) as part:
            save_model(model, str(part))
    except SafetensorError as error:
        raise UserError(f"{path} cannot be written: {error}") from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Put a file's weights into a model of the same shape, or say what does not fit.

    Weights that are not finite numbers are refused: every output would be nonsense.
    """
    from safetensors.torch import load_model

    if not path.is_file():
        raise UserError(
            f"{path.parent} has no weights ({path.name}): its training has not finished"
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        load_model(model, str(path))
    except (RuntimeError, OSError, SafetensorError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"the weights in {path} do not fit the model: {text[:300]}") from None
    for name, parameter in model.named_parameters():
        if "F" not in types.get(name, "F32"):
            raise UserError(f"the weights in {path} do not fit the model: {name} is {types[name]}")
        if not bool(parameter.isfinite().all()):
            raise UserError(f"the weights in {path} are not all finite: {name}")


def load_codecs(folder: Path, config: RunConfig) -> Codecs:
    """The vocabularies of a run; their special tokens are those that its model needs."""
    source, target = (load_codec(folder / f"{side}.json") for side in ("source", "target"))
    needed = () if config.data.kind == "tagging" else config.model.specials
    if tuple(target.specials) != needed:
        raise UserError(
            f"{folder / 'target.json'} has the special tokens {list(target.specials)}, but "
            f"{list(needed)} are needed"
        )
    if source.id(PAD) != 0:
        raise UserError(f"{folder / 'source.json'}: {PAD} must be its first special token")
    return Codecs(source, target)


def load_run(folder: Path) -> Run:
    """A finished run from its folder, ready to decode."""
    config = from_yaml(folder / CONFIG)
    codecs = load_codecs(folder, config)
    model = config.model.build(len(codecs.source), len(codecs.target))
    load_weights(model, folder / WEIGHTS)
    return Run(config, codecs, model.eval(), read_summary(folder))


def read_summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    return read_object(path, "a run's summary", SUMMARY_TYPES) if path.exists() else {}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, each with what its kind has."""
    path = folder / METRICS
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: it has no {METRICS}")
    rows = list(read_rows(path, what := "a row of a run's metrics", ROW_TYPES))
    for number, row in enumerate(rows, 1):
        lacking = [
            name for name in ROW_FIELDS.get(row.get("kind", ""), ["kind"]) if name not in row
        ]
        if lacking:
            raise UserError(f"{path}, line {number}, is not {what}: it has no {lacking[0]}")
    return rows
