"""Tables of figures as records hold them: a value for each repetition, by row and column.

What was published of a row stands beside ours. `softbeam report` and the documentation show the
same records.
"""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

Rows = Mapping[str, Mapping[str, Sequence[float | None]]]  # row -> column -> values
Published = Mapping[str, Sequence[float | None]]  # row -> a figure for each column, or None
Summary = Mapping[str, float | None]
Pair = tuple[str, str]  # a figure of ours, and the published one


def columns_of(rows: Rows) -> list[str]:
    """The columns of all rows, in the order in which they come."""
    return list(dict.fromkeys(column for row in rows.values() for column in row))


def table_text(rows: Rows, published: Published, digits: Mapping[str, int]) -> str:
    """Means and spreads, aligned, the published figures under them in brackets."""
    lines = [["", *columns_of(rows)]]
    for name, row in pairs(rows, published, digits).items():
        ours, printed = zip(*row, strict=True)
        lines.append([name, *(value or "-" for value in ours)])
        if any(printed):
            lines.append(["  printed", *(value and f"({value})" for value in printed)])
    return aligned(lines)


def pairs(rows: Rows, published: Published, digits: Mapping[str, int]) -> dict[str, list[Pair]]:
    """Ours and the published figure, as text, by row and column; empty where there is none."""
    columns = columns_of(rows)
    found = {}
    for name, row in rows.items():
        printed = [*published.get(name, ()), *[None] * len(columns)]
        found[name] = [
            (shown_values(row.get(c, ()), digits.get(c, 2)), "" if p is None else f"{p:g}")
            for c, p in zip(columns, printed, strict=False)
        ]
    return found


def shown_values(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return number(summary(known), digits) if known else ""


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation; one value has no spread."""
    return {"mean": mean(values), "spread": stdev(values) if len(values) > 1 else None}


def number(value: Summary | None, digits: int = 3) -> str:
    """A mean with its spread."""
    if value is None:
        return "-"
    spread = "" if value["spread"] is None else f" ±{value['spread']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{spread}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join(row.rstrip() for row in rows)
