"""A run is a folder: its configuration, vocabularies, metrics, weights and birth certificate."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from softbeam.data.encoding import Codecs
from softbeam.data.tasks import Corpus
from softbeam.data.vocabulary import save_codec
from softbeam.errors import UserError
from softbeam.runtime.environment import environment
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
from softbeam.training.config import CONFIG, RunConfig, from_yaml, to_yaml
from softbeam.training.vocabularies import load_codecs

WEIGHTS, METRICS = "model.safetensors", "metrics.jsonl"
SUMMARY = "summary.json"
NUMBER = (int, float)
SUMMARY_TYPES: Types = {"metrics": dict, "epoch": int, "parameters": int, "seconds": NUMBER}
ROW_TYPES: Types = {"kind": str, "stage": str, "update": int, "loss": NUMBER, "value": NUMBER}
ROW_FIELDS = {"train": ["stage", "update", "loss"], "dev": ["stage", "update", "metric", "value"]}


class Run(NamedTuple):
    """A trained run, loaded."""

    config: RunConfig
    codecs: Codecs
    model: nn.Module
    summary: dict[str, Any]


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


def load(folder: Path, *, threads: int) -> Run:
    """The run on the best device there is."""
    torch.set_num_threads(threads)
    run = load_run(folder)
    found = torch.accelerator.current_accelerator()
    run.model.to(found if found is not None and torch.accelerator.is_available() else "cpu")
    return run
