"""Charts and pages of runs whose names and numbers are odd."""

import json
import math
import os

import pytest

from softbeam.reports.charts import lines_svg
from softbeam.reports.page import write_report
from support.report_folders import write_run


@pytest.mark.parametrize("name", [b"run\xff", b"$\\frac$", b"_hidden", "Lauf\N{SNOWMAN}".encode()])
def test_a_run_of_any_name_has_a_page(name, tmp_path):
    folder = write_run(tmp_path / os.fsdecode(name))
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<td>{name.decode('utf-8', 'replace')}</td>" in page


@pytest.mark.parametrize("loss", ["0", "NaN", "-Infinity", "1e308", "-1e308", "1e-320", "true"])
def test_a_run_with_any_number_has_a_page(loss, tmp_path):
    folder = write_run(tmp_path / "run")
    row = {"kind": "train", "stage": "pretrain", "update": 1, "gold": 0.5}
    line = json.dumps(row)[:-1] + f', "loss": {loss}}}\n'
    (folder / "metrics.jsonl").write_text(line + line.replace('"update": 1', '"update": 2'))
    assert "Training loss" in write_report([folder], tmp_path / "report.html").read_text()


def test_what_no_axis_can_show_is_a_gap():
    gap = [("a", [1, 2, 3], [0.5, math.inf, 0.75])]
    assert lines_svg("x", "y", gap).count("<use") == lines_svg(
        "x", "y", [("a", [1, 3], [0.5, 0.75])]
    ).count("<use")
