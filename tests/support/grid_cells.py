"""Cells for the tests of grids, which workers in other processes can find."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softbeam.runtime.allowed import allowed_modules
from softbeam.runtime.signals import stopping


@dataclass(frozen=True, kw_only=True)
class Cell:
    x: int
    name: str = "a"


def square(cell: Cell, folder: Path) -> dict[str, Any]:
    """Leaves a line for every time that it was run, and by whom."""
    with (folder / "log").open("a") as file:
        file.write(f"{cell.x} {os.getpid()}\n")
    if cell.x < 0:
        raise ValueError(f"x={cell.x} must not be negative")
    return {"square": cell.x**2}


def allowed(cell: Cell, folder: Path) -> dict[str, Any]:
    """The square, and the modules that are allowed where the cell runs."""
    return square(cell, folder) | {"allowed": list(allowed_modules())}


def hanging(cell: Cell, folder: Path) -> dict[str, Any]:
    """The same; a cell called `hang` never ends."""
    found = square(cell, folder)
    time.sleep(600 if cell.name == "hang" else 0)
    return found


def hanging_once(cell: Cell, folder: Path) -> dict[str, Any]:
    """The same; a cell called `hang` never ends the first time, and the second time it does."""
    second = cell.x in ran(folder)
    found = square(cell, folder)
    time.sleep(600 if cell.name == "hang" and not second else 0.05)
    return found


def deadly(cell: Cell, folder: Path) -> dict[str, Any]:
    """Kills whoever runs it."""
    square(cell, folder)
    os.kill(os.getpid(), 9)
    return {}


def ran(folder: Path) -> list[int]:
    return [x for x, _ in lines(folder)]


def lines(folder: Path) -> list[tuple[int, int]]:
    """The cells that were begun and the processes that did, in order."""
    log = folder / "log"
    text = log.read_text() if log.exists() else ""
    return [(int(x), int(pid)) for x, pid in map(str.split, text.splitlines())]


def patient(cell: Cell, folder: Path) -> dict[str, Any]:
    """Works until it is asked to stop, and then stops as training does."""
    square(cell, folder)
    with stopping() as seen:
        while not seen:
            time.sleep(0.05)
    raise KeyboardInterrupt(seen[0])


def deadly_one(cell: Cell, folder: Path) -> dict[str, Any]:
    """The square; the cell of 2 kills whoever runs it."""
    return deadly(cell, folder) if cell.x == 2 else square(cell, folder)
