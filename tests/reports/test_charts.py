"""Charts and pages of runs whose names and numbers are odd."""

import json
import math
import os

import pytest

from softbeam.reports.charts import Curve, apart, lines_svg, mean_line
from softbeam.reports.page import write_report
from support.report_folders import write_run


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"run\xff", b"$\\frac$", b"_hidden", "Lauf\N{SNOWMAN}".encode()])
def test_a_run_of_any_name_has_a_page(name, tmp_path):
    folder = write_run(tmp_path / os.fsdecode(name))
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert f">{name.decode('utf-8', 'replace')}</td>" in page


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["0", "NaN", "-Infinity", "1e308", "-1e308", "1e-320", "true"])
def test_a_run_with_any_number_has_a_page(loss, tmp_path):
    folder = write_run(tmp_path / "run")
    row = {"kind": "train", "stage": "pretrain", "update": 1, "gold": 0.5}
    line = json.dumps(row)[:-1] + f', "loss": {loss}}}\n'
    (folder / "metrics.jsonl").write_text(line + line.replace('"update": 1', '"update": 2'))
    assert "Training loss" in write_report([folder], tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_what_no_axis_can_show_is_a_gap():
    gap, plain = ([1, 2, 3], [0.5, math.inf, 0.75]), ([1, 3], [0.5, 0.75])
    marks = [
        lines_svg("x", "y", [Curve("a", [line], "#123456")]).count("<use") for line in (gap, plain)
    ]
    assert marks[0] == marks[1] > 0


@pytest.mark.slow
def test_the_lines_of_a_curve_share_its_colour_and_have_a_mean():
    lines = [([1, 2, 3], [0.0, 2.0, 5.0]), ([1, 3], [2.0, 6.0])]
    assert mean_line(lines) == ([1, 3], [1.0, 5.5])
    one, two = (lines_svg("x", "y", [Curve("a", lines[:n], "#123456")]) for n in (1, 2))
    assert two.count('stroke="#123456"') > one.count('stroke="#123456"') > 0
    assert 'stroke-width="0.7"' in two and 'stroke-width="0.7"' not in one


@pytest.mark.parametrize(
    "heights",
    [[], [0.5], [0.1, 0.9], [0.5, 0.5, 0.5], [0.98, 0.99, 1.0], [0.0, 0.01, 0.5, 0.52, 0.53, 1.0]],
)
def test_names_beside_a_chart_do_not_overlap(heights):
    moved = apart(heights, 0.1)
    assert len(moved) == len(heights) and all(y <= 1 + 1e-9 for y in moved)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(moved, moved[1:], strict=False))
    if all(b - a >= 0.1 for a, b in zip(heights, heights[1:], strict=False)):
        assert moved == pytest.approx(heights)
