"""The files of a run's folder: their names, weights, summary and log."""

import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from softbeam.errors import LARGEST_NUMBER, UserError
from softbeam.runtime.files import Types, read_object, read_rows, replacing
from softbeam.training.config import METRICS, SUMMARY

WEIGHTS = "model.safetensors"
SOURCE, TARGET, ENVIRONMENT = "source.json", "target.json", "environment.json"
BEGINNING = (
    ENVIRONMENT,
    METRICS,
    SOURCE,
    TARGET,
)  # written in this order, before the configuration
EARLIER = re.compile(r"\..*|examples\.jsonl|inputs\.json|tensorboard|wandb|results|restart-\d+")
NUMBER = (int, float)
SUMMARY_TYPES: Types = {"metrics": dict, "epoch": int, "parameters": int, "seconds": NUMBER}
ROW_TYPES: Types = {"kind": str, "stage": str, "update": int, "metric": str}
ROW_NUMBERS = ("update", "loss", "value", "alpha", "gold")
ROW_FIELDS = {"train": ["stage", "update", "loss"], "dev": ["stage", "update", "metric", "value"]}


def choices_of(out: Path) -> dict[str, Any]:
    """Return the settings of a run that were chosen when it began; none if no file says so."""
    chosen: dict[str, Any] = read_environment(out).get("chosen", {})
    return chosen


def read_environment(out: Path) -> dict[str, Any]:
    """Read what a run wrote of its machine, packages and data; empty if there is no such file."""
    path = out / ENVIRONMENT
    return read_object(path, "a run's environment") if path.is_file() else {}


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
        for name, value in ((name, row[name]) for name in ROW_NUMBERS if name in row):
            if not isinstance(value, NUMBER) or (type(value) is int and value > LARGEST_NUMBER):
                wrong = f"{path}, line {number}, is not {what}"
                raise UserError(f"{wrong}: its {name} is {str(value)[:60]!r}")
        lacking = [
            name for name in ROW_FIELDS.get(row.get("kind", ""), ["kind"]) if name not in row
        ]
        if lacking:
            raise UserError(f"{path}, line {number}, is not {what}: it has no {lacking[0]}")
    return rows
