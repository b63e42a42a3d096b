"""Tables of figures: ours and the published ones, cell by cell."""

import pytest

from softbeam.reports.tables import aligned, columns_of, number, pairs, summary, table_text

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
    assert aligned([["a", "bb"], ["ccc", ""]]) == "a    bb\nccc"
