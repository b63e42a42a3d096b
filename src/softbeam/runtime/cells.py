"""Cells of a grid: each is computed once, and its result is kept in a file.

A cell is a frozen dataclass of everything that its result depends on. A function maps the cell
and the grid's folder to a result that JSON can hold. The file is named by a hash of the cell, and
a cell that has a file is not computed again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.runtime.allowed import is_allowed
from softbeam.runtime.files import write_text

C = TypeVar("C")  # a frozen dataclass
Result = dict[str, Any]
Work = Callable[[C, Path], Result]  # takes a cell and the grid's folder
LATER = {"later": True}  # metadata of a field that earlier versions of a cell did not have


def settings(cell: Any) -> dict[str, Any]:
    """Return the name of the cell's class and its fields, which JSON can hold.

    A field with the metadata `LATER` is left out at its default, so that cells keep their keys when
    fields are added.
    """
    return {"cell": type(cell).__name__} | _fields(cell)


def _fields(cell: Any) -> dict[str, Any]:
    values = ((field, getattr(cell, field.name)) for field in fields(cell))
    return {
        field.name: _fields(value) if is_dataclass(value) else value
        for field, value in values
        if not (field.metadata.get("later") and value == field.default)
    }


def key(cell: Any) -> str:
    """Return a hash of the cell's class and fields."""
    text = json.dumps(settings(cell), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_path(cell: Any, folder: Path) -> Path:
    """Return the path of the cell's file in the grid's folder."""
    return folder / "results" / f"{key(cell)}.json"


def read_result(cell: Any, folder: Path) -> Result | None:
    """Return the result of a cell, or None if it has not been computed."""
    record = read_record(cell, folder)
    return None if record is None else record["result"]


def read_record(cell: Any, folder: Path) -> dict[str, Any] | None:
    """Read the file of a cell: its settings, `seconds` and `result`; None if there is no file.

    Raises UserError if the file is damaged.
    """
    path = result_path(cell, folder)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["result"], dict):
            raise ValueError("its result is not an object")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} is not a result ({error}); remove it to run it again") from None
    return record


def compute(cell: C, run: Work[C], folder: Path) -> float:
    """Compute a cell, write its file, and return the seconds that this took."""
    started = time.monotonic()
    result = run(cell, folder)
    seconds = time.monotonic() - started
    record = settings(cell) | {"seconds": round(seconds, 3), "result": result}
    if ranks.first():
        write_text(result_path(cell, folder), json.dumps(record, indent=1) + "\n")
    ranks.wait()
    return seconds


def records(done: Iterable[tuple[Any, Result]], folder: Path) -> list[dict[str, Any]]:
    """Return the key, settings, seconds and result of each cell, for the record of a table."""
    rows = []
    for cell, result in done:
        seconds = (read_record(cell, folder) or {}).get("seconds")
        rows.append({"key": key(cell)} | settings(cell) | {"seconds": seconds, "result": result})
    return rows


# Names by which another process finds the same function and the same cell

WORK = (  # the functions of softbeam that compute cells: a worker runs no other ones
    "softbeam.training.many:train_planned",
    "softbeam.training.many:train_quietly",
    "softbeam.experiments.energies.cells:run",
    "softbeam.experiments.many_texts:sample_group",
    "softbeam.experiments.many_texts:score_group",
    "softbeam.experiments.many_texts:fill_group",
    "softbeam.experiments.samplers.cells:compute",
    "softbeam.experiments.samplers.models:compute",
    "softbeam.experiments.search_aware.cells:compute",
)


def name_of(run: Work[Any]) -> str:
    """Return `module:function`; raises ValueError if a worker could not import the function."""
    module, name = getattr(run, "__module__", "__main__"), getattr(run, "__qualname__", "")
    if module == "__main__" or "." in name or not name:
        raise ValueError(f"run={run!r}: workers need a function at the top of a module of its own")
    if module.split(".")[0] == "softbeam" and f"{module}:{name}" not in WORK:
        raise ValueError(f"run={run!r}: is not in WORK, the functions that workers accept")
    return f"{module}:{name}"


def work_named(name: str) -> Work[Any]:
    """Import a function by its `module:function` name.

    Raises UserError if it does not exist, or is neither in `WORK` nor of a module that is allowed.
    """
    module, _, function = name.partition(":")
    if name not in WORK and not is_allowed(module):
        hint = "" if module.split(".")[0] == "softbeam" else f"; --allow-module {module} allows it"
        raise UserError(f"{name} is not a function of softbeam that computes cells{hint}")
    try:
        work: Work[Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{name} cannot be imported: {error}") from None
    return work


def cell_of(run: Work[C], given: Mapping[str, Any]) -> C:
    """Build the cell, of the class that `run` takes, from what `settings` returned for it.

    Raises UserError if this version of the class does not give the same settings.
    """
    kind = next(iter(get_type_hints(run).values()))
    cell: C = _build(kind, given)
    here = json.loads(json.dumps(settings(cell)))
    if here != dict(given):
        raise UserError(f"{kind.__name__} differs in this version: {here}, not {dict(given)}")
    return cell


def _build(kind: Any, given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    try:
        stated = [f.name for f in fields(kind) if f.name in given or not f.metadata.get("later")]
        return kind(**{name: _value(hints[name], given[name]) for name in stated})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{kind.__name__} cannot be made from {dict(given)}: {error!r}") from None


def _value(hint: Any, given: Any) -> Any:
    """Convert a field's JSON value to a dataclass or a tuple if the field holds one."""
    if isinstance(given, Mapping):
        return _build(next(h for h in (hint, *get_args(hint)) if is_dataclass(h)), given)
    return tuple(given) if isinstance(given, list) else given
