"""Read and write the records of reproduced tables and figures."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from softbeam.errors import UserError
from softbeam.reports.verdicts import Verdict, is_claim_text
from softbeam.runtime.files import read_object, write_text

Shape = Callable[[Any], bool]  # whether a value of JSON has the form that its readers expect
LARGEST = 1e100  # of a number: its square is finite


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and value >= 0


def optional(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def many(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def by_name(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


RECORD: Mapping[str, Shape] = {"target": is_text, "text": is_text, "claims": many(lambda _: True)}
EXTRAS: Mapping[str, Shape] = {
    "title": is_text,
    "about": is_text,
    "files": optional(many(is_text)),
    "environment": optional(by_name(lambda _: True)),
}
ENVIRONMENT: Mapping[str, Shape] = {
    "command": many(is_text),
    "commit": optional(is_text),
    "started": is_text,
}
TABLE: Mapping[str, Shape] = {
    "rows": by_name(by_name(many(optional(is_number)))),
    "published": by_name(many(optional(is_number))),
    "digits": by_name(lambda value: is_count(value) and value <= 9),
    "seeds": many(is_count),
    "preset": is_text,
    "repeated": is_text,
}
CLAIM: Mapping[str, Shape] = {
    "claim": is_text,
    "source": is_text,
    "verdict": lambda value: value in get_args(Verdict),
    "within": optional(is_number),
    "effect": is_number,
    "spread": optional(is_number),
    "right": is_count,
    "repetitions": is_count,
    "interval": optional(lambda value: many(is_number)(value) and len(value) == 2),
    "p": optional(is_number),
    "over": optional(is_text),
}
LATER: Mapping[str, Shape] = {"published": optional(is_number), "p_holm": optional(is_number)}


def check(value: Any, shapes: Mapping[str, Shape], wrong: str, *, needed: bool = True) -> None:
    """Raises UserError, whose message begins with `wrong`, if a field has another shape.

    With `needed`, it also raises UserError if a field is missing.
    """
    if not isinstance(value, dict):
        raise UserError(f"{wrong}: expected a JSON object, found a {type(value).__name__}")
    for name, shape in shapes.items():
        if needed and name not in value:
            raise UserError(f"{wrong}: it has no {name}")
        if name in value and not shape(value[name]):
            raise UserError(f"{wrong}: its {name} is {repr(value[name])[:60]}")


def rounded(value: Any) -> Any:
    """A value with its numbers rounded to six digits; repetitions agree on fewer."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with a line for each cell, claim and row, so that differences can be read."""

    def lines(value: Any) -> str:
        dump = partial(json.dumps, ensure_ascii=False)
        if not isinstance(value, list) or not any(isinstance(part, dict) for part in value):
            return dump(value)
        return "[\n" + ",\n".join(f"  {dump(part)}" for part in value) + "\n ]"

    parts = [f" {json.dumps(name)}: {lines(part)}" for name, part in record.items()]
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def read_record(path: Path) -> dict[str, Any]:
    """Read the record that `reproduce` wrote of a table or figure.

    Raises UserError if the record, its table or one of its claims is not complete.
    """
    record = read_object(path, "the record of a target")
    wrong = f"{path} is not the record of a target"
    check(record, RECORD, wrong)
    check(record, EXTRAS, wrong, needed=False)
    check(record.get("environment") or {}, ENVIRONMENT, f"{wrong}: its environment", needed=False)
    for number, claim in enumerate(record["claims"], 1):
        check(claim, CLAIM, f"{wrong}: claim {number}")
        check(claim, LATER, f"{wrong}: claim {number}", needed=False)
    if "published" in record:
        wrong = f"{path} is not the record of a table"
        check(record, TABLE, wrong)
        columns = {tuple(row) for row in record["rows"].values()}
        if len(columns) != 1 or not columns.pop():
            raise UserError(f"{wrong}: its rows do not have the same columns")
    return record


def place(path: Path) -> tuple[list[int], bool, int]:
    """A key that sorts records by their number, tables before figures, then by folder."""
    numbers = [int(part) for part in re.findall(r"\d+", path.stem)]
    return numbers, path.stem.startswith("figure"), len(path.parts)


def figures(record: Mapping[str, Any]) -> str:
    """A record's text without the lines of its claims, for pages that show claims as a table."""
    lines = record["text"].splitlines()
    return "\n".join(line for line in lines if not is_claim_text(line)).strip()
