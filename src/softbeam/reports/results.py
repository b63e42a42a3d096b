"""Tables of results that a page shows first; the folder of a comparison or a demo keeps its own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.errors import UserError
from softbeam.reports.records import by_name, check, is_number, is_text, many
from softbeam.runtime.files import read_object, write_text

TABLES = "tables.json"  # in a folder


class ResultTable(NamedTuple):
    """Rows of results under a title, with a note that explains the columns."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


TABLE = {
    "title": is_text,
    "note": is_text,
    "rows": many(by_name(lambda value: is_text(value) or is_number(value))),
}


def save_tables(folder: Path, title: str, tables: Sequence[ResultTable]) -> None:
    """Write tables of texts and numbers, and the title of their page, for `read_tables`."""
    value = {"title": title, "tables": [table._asdict() for table in tables]}
    write_text(folder / TABLES, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_tables(folder: Path) -> tuple[str, list[ResultTable]]:
    """Read the page's title and the tables of a folder; no title and no tables if it has none.

    Raises UserError if the file is not one that `save_tables` wrote.
    """
    path = folder / TABLES
    if not path.is_file():
        return "", []
    types = {"title": str, "tables": list}
    value = read_object(path, what := "a file of tables", types, needed=True)
    for number, table in enumerate(value["tables"], 1):
        wrong = f"{path} is not {what}: table {number}"
        check(table, TABLE, wrong)
        if len({tuple(row) for row in table["rows"]}) != 1:
            raise UserError(f"{wrong}: its rows do not have the same columns")
    return value["title"], [ResultTable(**{k: t[k] for k in TABLE}) for t in value["tables"]]
