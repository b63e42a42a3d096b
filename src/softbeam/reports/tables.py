"""Print tables, above all those of records: a value for each repetition, by row and column.

The published values of a row stand beside ours. `softbeam report` and the documentation show the
same records.
"""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from textwrap import indent
from typing import Any

from softbeam.runtime.text_tables import aligned

Rows = Mapping[str, Mapping[str, Sequence[float | None]]]  # row -> column -> values
Published = Mapping[str, Sequence[float | None]]  # row -> a value for each column, or None
Summary = Mapping[str, float | None]
Pair = tuple[str, str]  # our value and the published one, as text


def columns_of(rows: Rows) -> list[str]:
    """The columns of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows.values() for column in row))


def table_text(rows: Rows, published: Published, digits: Mapping[str, int]) -> str:
    """Means and spreads as aligned text, with the published values under them in brackets."""
    lines = [["", *columns_of(rows)]]
    for name, row in pairs(rows, published, digits).items():
        ours, printed = zip(*row, strict=True)
        lines.append([name, *(value or "-" for value in ours)])
        if any(printed):
            lines.append(["  printed", *(value and f"({value})" for value in printed)])
    return aligned(lines)


def pairs(rows: Rows, published: Published, digits: Mapping[str, int]) -> dict[str, list[Pair]]:
    """Our mean and the published value as text, by row and column; empty where there is none."""
    columns = columns_of(rows)
    by_row = {}
    for name, row in rows.items():
        printed = [*published.get(name, ()), *[None] * len(columns)]
        by_row[name] = [
            (mean_text(row.get(c, ()), digits.get(c, 2)), "" if p is None else f"{p:g}")
            for c, p in zip(columns, printed, strict=False)
        ]
    return by_row


def mean_text(values: Sequence[float | None], digits: int) -> str:
    """Mean and spread of the values that are not None; empty if there are none."""
    numbers = [value for value in values if value is not None]
    return number(summary(numbers), digits) if numbers else ""


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation; one value has no spread."""
    return {"mean": mean(values), "spread": stdev(values) if len(values) > 1 else None}


def number(value: Summary | None, digits: int = 3) -> str:
    """A mean with its spread as text; "-" for None."""
    if value is None:
        return "-"
    spread = "" if value["spread"] is None else f" ±{value['spread']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{spread}"


def with_interval(found: Mapping[str, Any], digits: int) -> str:
    """A `difference` with its `interval` as text: `+4.5 [+3.8, +5.1]`."""
    values = (found["difference"], *found["interval"])
    middle, low, high = (f"{value:+.{digits}f}" for value in values)
    return f"{middle} [{low}, {high}]"


def titled_rows(title: str, rows: Sequence[Mapping[str, Any]], *, left: int = 1) -> str:
    """A table with a line for each row; the rows have the same keys, which head the columns.

    The first `left` columns are aligned at their left, the others at their right; numbers have two
    decimal places.
    """
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows]
    return titled(title, [list(rows[0]), *cells], "<" * left + ">")


def titled_columns(title: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """A table with a column for each name and a line for each label; "-" for a missing cell."""
    labels = list(dict.fromkeys(label for cells in columns.values() for label in cells))
    lines = [[label, *(cells.get(label, "-") for cells in columns.values())] for label in labels]
    return titled(title, [["", *columns], *lines], "<>")


def titled(title: str, lines: Sequence[Sequence[str]], alignment: str) -> str:
    """Lines of cells as an aligned, indented table below its title."""
    return f"{title}\n{indent(aligned(lines, alignment), '  ')}"
