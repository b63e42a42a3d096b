"""Print tables as aligned text.

This module is in `runtime` because both `sampling.texts` and `reports` print tables, and `sampling`
may not import `reports`.
"""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], alignment: str = "<") -> str:
    """Join rows of cells into lines whose columns are as wide as their widest cell.

    Args:
        rows: rows of equally many cells.
        alignment: a character for each column, "<" for left and ">" for right; the last character
            also holds for all further columns.
    """
    columns = list(zip(*rows, strict=True))
    sides = alignment.ljust(len(columns), alignment[-1])
    formats = [
        f"{side}{max(map(len, column))}" for side, column in zip(sides, columns, strict=False)
    ]
    lines = ["  ".join(map(format, row, formats)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
