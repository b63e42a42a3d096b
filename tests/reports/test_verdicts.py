"""Verdicts on numbers whose answer is plain."""

from statistics import mean, stdev

import pytest
from scipy.stats import t

from softbeam.reports.records import read_record, rounded, write_record
from softbeam.reports.verdicts import claim_text, judged, over_repetitions


def verdict(*gaps: float, **options) -> str:
    return judged("a > b", gaps, **options)["verdict"]


def test_verdicts_by_hand():
    assert verdict(1.0, 1.1, 0.9) == "reproduced"
    assert verdict(-1.0, -1.1, -0.9) == "not reproduced"
    assert verdict(1.0, -1.1, 0.2) == "undecided"
    assert verdict(1.0) == "undecided", "one repetition says nothing of the next"
    assert verdict(0.1, 0.0, 0.0) == "undecided"


def test_a_small_difference_can_be_claimed():
    """Of either sign; the interval has to be inside, not only the mean."""
    assert verdict(0.1, -0.1, 0.0, within=1.0) == "reproduced"
    assert verdict(-2.0, -2.1, -1.9, within=1.0) == "not reproduced"
    assert verdict(2.0, 2.1, 1.9, within=1.0) == "not reproduced"
    assert verdict(0.9, 1.1, 1.0, within=1.0) == "undecided"
    assert judged("a = b", [0.5, -3.0], within=1.0)["right"] == 1


def test_a_test_over_seeds_and_sentences_decides_where_there_is_one():
    sure = {"interval": (0.2, 0.9), "p_value": 0.001}
    found = judged("a > b", [0.1, 0.9, 0.6], tested=sure, source="Table 1")
    assert found["verdict"] == "reproduced" and found["p"] == 0.001
    assert found["over"] == "seeds and sentences" and found["interval"] == [0.2, 0.9]
    wrong = {"interval": (-0.9, -0.2), "p_value": 0.001}
    assert verdict(-0.1, -0.9, -0.6, tested=wrong) == "not reproduced"
    assert verdict(1.0, 1.1, 0.9, tested={"interval": (-0.1, 2.0), "p_value": 0.1}) == "undecided"


def test_students_interval():
    for gaps in ([1.0, 2.0, 3.0], [-0.3, 0.2, 0.1, -0.7], [5.0, 5.0 + 1e-9]):
        interval, p = over_repetitions(gaps)
        middle, error, freedom = mean(gaps), stdev(gaps) / len(gaps) ** 0.5, len(gaps) - 1
        half = t.ppf(0.975, freedom) * error
        assert interval == pytest.approx([middle - half, middle + half])
        assert p == pytest.approx(2 * t.sf(abs(middle) / error, freedom), rel=1e-3)
    assert over_repetitions([0.5, 0.5]) == ([0.5, 0.5], 0.0)
    assert over_repetitions([0.0, 0.0]) == ([0.0, 0.0], 1.0)


def test_a_line_says_everything():
    text = claim_text(judged("a > b", [1.0, 1.2, 1.1]))
    assert text.startswith("REPRODUCED") and "a > b: by 1.100 ±0.100" in text
    assert "over repetitions, p = 0.0027" in text and text.endswith("right in 3 of 3")


def test_a_record_is_read_as_it_was_written_and_has_a_line_for_each_claim(tmp_path):
    claims = [judged(f"α {name} > β", [1.0, 4 / 3, 0.1 * n]) for n, name in enumerate("abc")]
    record = {"target": "table-4.1", "text": "two\nlines", "claims": claims, "rows": {"a": [1]}}
    write_record(path := tmp_path / "table-4.1.json", record)
    assert read_record(path) == record
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum("α" in line for line in lines) == 3 and len(lines) == 10


def test_numbers_of_records_have_six_digits():
    value = {"a": [1234.56789, (-1e-9 / 3, 7)], "b": {"c": 0.1, "d": None, "e": "1.23456789"}}
    assert rounded(value) == {
        "a": [1234.57, [-3.33333e-10, 7]],
        "b": {"c": 0.1, "d": None, "e": "1.23456789"},
    }
