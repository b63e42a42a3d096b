"""A record is checked as a whole before anything shows it."""

import json

import pytest

from softbeam.errors import UserError
from softbeam.reports.page import write_report
from softbeam.reports.records import read_record
from support.report_folders import write_table_record

WRONG = {
    "no title": ({"title": None}, "its title is None"),
    "files that are a number": ({"files": 7}, "its files is 7"),
    "a file that is a number": ({"files": [7]}, r"its files is \[7\]"),
    "an environment of text": ({"environment": "x"}, "its environment is 'x'"),
    "a command of text": ({"environment": {"command": "x"}}, "its environment: its command is 'x'"),
    "a start that is no date": ({"environment": {"started": None}}, "its started is None"),
    "a number that has no square": ({"rows": {"a": {"b": [10**400]}}}, "its rows is {'a'"),
    "not a number": ({"rows": {"a": {"b": [float("nan")]}}}, "its rows is {'a'"),
    "true for a number": ({"seeds": [True]}, r"its seeds is \[True\]"),
    "too many digits": ({"digits": {"dev": 10}}, "its digits is {'dev': 10}"),
    "published text": ({"published": {"start": ["x"]}}, "its published is"),
    "no rows": ({"rows": {}}, "its rows do not have the same columns"),
    "half of a character": ({"target": "\ud800"}, "surrogates not allowed"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_record_with_another_shape_is_refused(change, message, tmp_path):
    path = tmp_path / "table-5.3.json"
    write_table_record(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for read in (read_record, lambda path: write_report([path.parent], tmp_path / "page.html")):
        with pytest.raises(UserError, match=message):
            read(path)
    assert not (tmp_path / "page.html").exists()


CLAIMS = {
    "verdict": "proven",
    "effect": 1e300,
    "interval": [0.0, None],
    "right": -1,
    "p": "x",
    "over": 1,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_with_another_shape_is_refused(name, tmp_path):
    path = tmp_path / "table-5.3.json"
    write_table_record(path)
    record = json.loads(path.read_text())
    record["claims"][0][name] = CLAIMS[name]
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"claim 1: its {name} is"):
        read_record(path)
