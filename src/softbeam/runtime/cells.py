"""Cells of a grid: each is computed once, its result kept in a file.

A cell is a frozen dataclass of all that its result depends on. `run` maps it and the grid's folder
to a result that JSON can hold; the result's file is named by a hash of the cell, and a cell with a
file is never run again. Whoever runs cells runs them by `compute`.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from softbeam.errors import UserError
from softbeam.runtime import ranks
from softbeam.runtime.files import write_text

C = TypeVar("C")  # a frozen dataclass
Result = dict[str, Any]
Work = Callable[[C, Path], Result]  # of a cell and the grid's folder


def settings(cell: Any) -> dict[str, Any]:
    """The cell as JSON knows it, with its class."""
    return {"cell": type(cell).__name__} | asdict(cell)


def key(cell: Any) -> str:
    """A name that depends on the cell's class and settings alone."""
    text = json.dumps(settings(cell), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_path(cell: Any, folder: Path) -> Path:
    return folder / "results" / f"{key(cell)}.json"


def read_result(cell: Any, folder: Path) -> Result | None:
    """The result of a finished cell, or None."""
    record = read_record(cell, folder)
    return None if record is None else record["result"]


def read_record(cell: Any, folder: Path) -> dict[str, Any] | None:
    """What a finished cell's file holds: its settings, `seconds` and `result`; or None."""
    path = result_path(cell, folder)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["result"], dict):
            raise ValueError("its result is no object")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} is not a result ({error}); remove it to run it again") from None
    return found


def compute(cell: C, run: Work[C], folder: Path) -> float:
    """Run one cell and write its file; returns the seconds it took."""
    started = time.monotonic()
    result = run(cell, folder)
    seconds = time.monotonic() - started
    record = settings(cell) | {"seconds": round(seconds, 3), "result": result}
    if ranks.first():
        write_text(result_path(cell, folder), json.dumps(record, indent=1) + "\n")
    ranks.wait()
    return seconds


def records(done: Iterable[tuple[Any, Result]], folder: Path) -> list[dict[str, Any]]:
    """Every cell with its key, settings, time and result, as the record of a table holds them."""
    found = []
    for cell, result in done:
        seconds = (read_record(cell, folder) or {}).get("seconds")
        found.append({"key": key(cell)} | settings(cell) | {"seconds": seconds, "result": result})
    return found


# Names, by which another process finds the same function and the same cell


def name_of(run: Work[Any]) -> str:
    """`module:function` of a function that a worker can find."""
    module, name = getattr(run, "__module__", "__main__"), getattr(run, "__qualname__", "")
    if module == "__main__" or "." in name or not name:
        raise ValueError(f"run={run!r}: workers need a function at the top of a module of its own")
    return f"{module}:{name}"


def work_named(name: str, modules: Sequence[str] = ()) -> Work[Any]:
    """The function of softbeam, or of one of the other packages or modules, with this name."""
    module, _, function = name.partition(":")
    allowed = ("softbeam", *modules)
    if not any(module == one or module.startswith(f"{one}.") for one in allowed):
        raise UserError(f"{name} is not of {', '.join(allowed)}; --module {module} allows it")
    try:
        found: Work[Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{name} is not here: {error}") from None
    return found


def cell_of(run: Work[C], known: Mapping[str, Any]) -> C:
    """The cell that `settings` gave this of: an instance of what `run` takes."""
    first = next(iter(get_type_hints(run).values()))
    made: C = _built(first, known)
    here = json.loads(json.dumps(settings(made)))
    if here != dict(known):
        raise UserError(f"{first.__name__} is another one here: {here}, not {dict(known)}")
    return made


def _built(kind: Any, known: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    try:
        return kind(**{f.name: _value(hints[f.name], known[f.name]) for f in fields(kind)})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{kind.__name__} cannot be made of {dict(known)}: {error!r}") from None


def _value(hint: Any, known: Any) -> Any:
    """A field as the class has it: JSON knows neither dataclasses nor tuples."""
    if isinstance(known, Mapping):
        return _built(next(h for h in (hint, *get_args(hint)) if is_dataclass(h)), known)
    return tuple(known) if isinstance(known, list) else known
