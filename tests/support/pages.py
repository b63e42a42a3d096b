"""Fenced blocks of Markdown pages, and whether what they show is what is printed."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match) for match in FENCE.findall(page.read_text(encoding="utf-8"))]


def run_python(page: Path) -> tuple[dict[str, Any], int]:
    """Run the Python blocks of a page as one session, and compare each output that it shows.

    Returns the names that the session defines, and the number of outputs compared: a `text` block
    right after a `python` block has to be exactly what that block prints.
    """
    names: dict[str, Any] = {}
    compared = 0
    every = blocks(page)
    for block, after in zip(every, [*every[1:], Block("", "")], strict=True):
        if block.kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, str(page), "exec"), names)
            if after.kind == "text":
                assert printed.getvalue() == after.text, printed.getvalue()
                compared += 1
    return names, compared


def unlike(shown: str, printed: str) -> list[str]:
    """The shown lines that no printed line is like."""
    known = {shape(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line.strip() and shape(line) not in known]


def shape(line: str) -> str:
    """A line without what a seed or a machine may change: numbers, labels, sequences."""
    line = re.sub(r"[-+]?\d[\d.,]*(e[-+]\d+)?", "#", line)
    return " ".join(re.sub(r"\b[A-Z]+\b", "A", line).split())
