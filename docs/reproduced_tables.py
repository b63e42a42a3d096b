"""Reproduced tables: the records of `softbeam reproduce` below `results`, as they are."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softbeam.reproduce import TARGETS


def page(results: Path) -> str:
    """A section for each record, in the order of the thesis; those of a folder come after."""
    paths = sorted(results.rglob("*.json"), key=place)
    return "\n".join(section(path, results) for path in paths)


def place(path: Path) -> tuple[list[int], bool, int]:
    """Where a record belongs: by its number, tables before figures, then by its folder."""
    numbers = [int(part) for part in re.findall(r"\d+", path.stem)]
    return numbers, path.stem.startswith("figure"), len(path.parts)


def section(path: Path, results: Path) -> str:
    """A record as Markdown: what it is of, where it comes from, its text and its picture."""
    record = json.loads(path.read_text(encoding="utf-8"))
    folder = path.parent.relative_to(results).as_posix()
    what = TARGETS[record["target"]]
    kind, _, number = record["target"].partition("-")
    of = "" if folder == "." else f" ({folder})"
    parts = [
        f"## {kind.capitalize()} {number}{of}",
        f"{what[0].upper()}{what[1:]}. {origin(record)}",
        f"```{{code-block}} text\n{record['text']}\n```",
    ]
    if (picture := path.with_suffix(".svg")).is_file():
        away = Path("..") / results.name / picture.relative_to(results)
        parts.append(f"![{kind} {number}{of}]({away.as_posix()})")
    return "\n\n".join(parts) + "\n"


def origin(record: Mapping[str, Any]) -> str:
    facts = record["environment"]
    commit = (facts["commit"] or "unknown")[:10]
    command = " ".join(facts["command"])
    return f"`{command}`, {facts['started'][:10]}, commit `{commit}`, {facts['cores']} cores."
