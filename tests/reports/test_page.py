"""The page: complete, self-contained, escaped."""

import re
from html.parser import HTMLParser

import pytest

from softbeam.errors import UserError
from softbeam.reports.page import write_report
from softbeam.reports.records import write_record
from softbeam.reports.results import TABLES, ResultTable, save_tables
from softbeam.reports.verdicts import claim_text, judged
from support.report_folders import ALERT, write_run


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))


@pytest.mark.slow
def test_the_page_shows_runs_and_loads_nothing(tmp_path):
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b")
    rows = [{"task": ALERT, "greedy": 61.04}]
    save_tables(tmp_path / "runs", ALERT, [ResultTable("A table", rows, ALERT)])
    page = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    tags = Tags()
    tags.feed(page)
    names = [tag for tag, _ in tags.seen]
    assert names.count("svg") == 3 and names.count("details") == 2
    assert names.count("script") == 2, "the page's data, and its own script"
    assert ALERT not in page and "&lt;script&gt;" in page
    results = page.index("A table"), page.index("Training runs"), page.index("Learning curves")
    assert results == tuple(sorted(results)), "results come first"
    loaded = [
        a for _, a in tags.seen for key in ("src", "href") if str(a.get(key, "")).startswith("http")
    ]
    assert not loaded
    assert "61.04" in page and "1,234" in page
    assert not re.search(r"\b(None|Undefined)\b", page)


@pytest.mark.slow
def test_an_unfinished_run_is_shown_as_such(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "summary.json").unlink()
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "not finished" in page


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"title": "x", "tables": [1]}',
        '{"title": "x", "tables": [{"title": "t", "note": "", "rows": [{"a": []}]}]}',
        '{"title": "x", "tables": [{"title": "t", "note": "", "rows": []}]}',
        '{"title": "x", "tables": [{"title": "t", "note": "", "rows": [{"a": 1}, {"b": 1}]}]}',
    ],
)
def test_tables_that_are_not_ours_are_refused(tmp_path, content):
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / TABLES).write_text(content)
    with pytest.raises(UserError, match="is not a file of tables"):
        write_report([tmp_path / "runs"], tmp_path / "report.html")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        write_report([tmp_path], tmp_path / "report.html")


def test_tables_come_before_figures_and_claims_stand_in_one_place(tmp_path):
    claim = judged("a beats b", [1.0, 1.1, 0.9])
    for target in ("figure-6.1", "table-6.1", "table-5.2"):
        text = f"the rows of {target}\n\n{claim_text(claim)}"
        write_record(
            tmp_path / f"{target}.json", {"target": target, "text": text, "claims": [claim]}
        )
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    places = [page.index(f"the rows of {t}") for t in ("table-5.2", "table-6.1", "figure-6.1")]
    assert places == sorted(places)
    assert page.count("a beats b") == 3 and claim_text(claim) not in page
