"""Tables of figures: ours and the published ones, cell by cell."""

import pytest

from softbeam.reports.tables import (
    columns_of,
    number,
    pairs,
    summary,
    table_text,
    titled_columns,
    titled_rows,
)
from softbeam.runtime.text_tables import aligned

ROWS = {"a": {"x": [1.0, 3.0], "y": [0.5, None]}, "b": {"x": [], "y": [2.0]}}


def test_ours_stand_beside_what_was_published():
    assert columns_of(ROWS) == ["x", "y"]
    found = pairs(ROWS, {"a": [9.5, None]}, {"y": 3})
    assert found == {
        "a": [("2.00 ±1.41", "9.5"), ("0.500", "")],
        "b": [("", ""), ("2.000", "")],
    }


def test_the_text_has_a_line_of_published_figures_only_where_there_are_some():
    assert table_text(ROWS, {"a": [9.5, None], "b": [None, None]}, {"y": 1}).splitlines() == [
        "           x           y",
        "a          2.00 ±1.41  0.5",
        "  printed  (9.5)",
        "b          -           2.0",
    ]


def test_a_single_value_has_no_spread():
    assert summary([2.0]) == {"mean": 2.0, "spread": None}
    assert number(summary([2.0]), 1) == "2.0" and number(None) == "-"
    assert summary([1.0, 2.0])["spread"] == pytest.approx(0.5**0.5)


def test_columns_are_aligned_at_either_side():
    rows = [["a", "bb", "c"], ["ccc", "", "dd"]]
    assert aligned(rows) == "a    bb  c\nccc      dd"
    assert aligned(rows, "<>") == "a    bb   c\nccc      dd"
    assert aligned(rows, ">><") == "  a  bb  c\nccc      dd"


def test_tables_of_rows_and_of_columns():
    rows = [{"trial": "one", "mean": 2.0, "p": ""}, {"trial": "three", "mean": 10.5, "p": "0.05"}]
    assert titled_rows("title", rows).splitlines() == [
        "title",
        "  trial   mean     p",
        "  one     2.00",
        "  three  10.50  0.05",
    ]
    columns = {"a": {"row": "1.00", "long row": "10.00"}, "bbbbbbb": {"row": "2"}}
    assert titled_columns("title", columns).splitlines() == [
        "title",
        "                a  bbbbbbb",
        "  row        1.00        2",
        "  long row  10.00        -",
    ]
