"""Read and write the records of reproduced tables and figures."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

from softbeam.errors import UserError
from softbeam.reports.verdicts import claim_text
from softbeam.runtime.files import Types, check_fields, read_object, write_text

NUMBER = (int, float)
RECORD: Types = {"target": str, "text": str, "claims": list}
CLAIM: Types = {
    "claim": str,
    "source": str,
    "verdict": str,
    "within": (*NUMBER, NoneType),
    "effect": NUMBER,
    "spread": (*NUMBER, NoneType),
    "right": int,
    "repetitions": int,
    "interval": (list, NoneType),
    "p": (*NUMBER, NoneType),
    "over": (str, NoneType),
}


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

    Raises UserError if the record, or one of its claims, is not complete.
    """
    record = read_object(path, what := "the record of a target", RECORD, needed=True)
    for number, claim in enumerate(record["claims"], 1):
        wrong = f"{path} is not {what}: claim {number}"
        check_fields(claim, wrong, CLAIM, needed=True)
        ends = claim["interval"]
        if ends is not None and not (len(ends) == 2 and all(isinstance(x, NUMBER) for x in ends)):
            raise UserError(f"{wrong}: its interval is {ends}")
    return record


def place(path: Path) -> tuple[list[int], bool, int]:
    """A key that sorts records by their number, tables before figures, then by folder."""
    numbers = [int(part) for part in re.findall(r"\d+", path.stem)]
    return numbers, path.stem.startswith("figure"), len(path.parts)


def figures(record: Mapping[str, Any]) -> str:
    """A record's text without the lines of its claims, for pages that show claims as a table."""
    claims = {claim_text(claim) for claim in record["claims"]}
    return "\n".join(line for line in record["text"].splitlines() if line not in claims).strip()
