"""The map of the papers is true: all numbers are on it, and what it names exists."""

import importlib
import re
from pathlib import Path

import pytest

from softbeam.experiments.reproduce import TARGETS

ROOT = Path(__file__).resolve().parents[2]
MAP = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in MAP.splitlines()
    if line.startswith("| ") and not line.startswith(("| piece", "| ---"))
]
NUMBERED = {  # everything that has a number in the documents
    "2017": ["Figure 1", "Figure 2", "Table 1", "Table 2"],
    "2018": [f"Algorithm {n}" for n in (1, 2, 3)]
    + [f"Equation {n}" for n in (1, 2, 3)]
    + ["Figure 1", "Table 1", "Table 2"],
    "2019": ["Figure 1", "Figure 2", *(f"Table {n}" for n in range(1, 7))],
    "thesis": [f"Algorithm {n}" for n in (1, 2, 3, 4)]
    + [f"Equation {n}" for n in ("3.1", "3.2", "4.1", "4.2", "4.3")]
    + [f"Table {n}" for n in ("3.1", "3.2", "4.1", "4.2")]
    + [f"Table 5.{n}" for n in range(1, 7)]
    + [f"Table 6.{n}" for n in range(1, 7)]
    + [f"Figure {n}" for n in ("3.1", "3.2", "4.1", "5.1", "6.1", "6.2", "6.3", "6.4")],
}


def named(cell: str) -> list[str]:
    """What stands in backticks in a cell, outside of brackets that explain it."""
    return re.findall(r"`([^`]+)`", re.sub(r" \([^)]*\)", "", cell))


def resolve(name: str) -> object:
    """A module or something in one, by its dotted name below the package.

    Modules are looked up before names: a package may offer a function that is called like the file
    it is in.
    """
    parts = ["softbeam", *name.split(".")]
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    return path.is_file() and (not name or f"\ndef {name}(" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", NUMBERED)
def test_everything_with_a_number_has_a_row(document):
    pieces = [row[0] for row in ROWS]
    for number in NUMBERED[document]:
        own = re.compile(rf"\b{document} {re.escape(number)}(?![\d.]*\d)")
        assert any(own.search(piece) for piece in pieces), f"{document} {number}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_what_a_row_names_exists(row):
    assert len(row) == 4 and all(row), "each row says code, test and recipe"
    _, code, tests, recipe = row
    assert named(code) and named(tests)
    for name in named(code):
        resolve(name)
    for test in named(tests):
        assert is_there(test), test
    for target in re.findall(r"softbeam reproduce ([\w.-]+)", recipe):
        assert target in TARGETS


def test_the_tests_that_the_errata_name_exist():
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    tests = re.findall(r"`([\w/]+\.py(?:::\w+)?)`", text)
    assert len(tests) > 20 and [test for test in tests if not is_there(test)] == []


def test_a_wrong_name_is_seen():
    assert not is_there("test_nothing.py") and not is_there(
        "search/test_relaxations.py::test_nothing"
    )
    for name in ("nothing", "search.nothing", "models.nothing.Nothing"):
        with pytest.raises((ImportError, AttributeError)):
            resolve(name)
