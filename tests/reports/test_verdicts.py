"""Verdicts on numbers whose answer is plain."""

import numpy as np
import pytest

from softbeam.reports.records import read_record, rounded, write_record
from softbeam.reports.verdicts import claim_text, is_claim_text, judged, reason, with_holm
from softbeam.training.significance import sentence_gaps


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


def test_the_published_size_makes_two_verdicts_more():
    small, none = (1.0, 1.1, 0.9), (0.1, -0.1, 0.05)
    assert verdict(*small, published=1.2) == "reproduced", "the interval is 0.75 to 1.25"
    assert verdict(*small, published=3.0) == "reproduced smaller"
    assert verdict(*none, published=0.2) == "undecided"
    assert verdict(*none, published=3.0) == "published size excluded"
    assert verdict(-1.0, -1.1, -0.9, published=3.0) == "not reproduced"
    assert verdict(0.1, -0.1, 0.0, published=3.0, within=1.0) == "reproduced"


def test_every_verdict_but_one_has_a_reason():
    def why(*gaps: float, **options) -> str:
        return reason(judged("a > b", gaps, **options))

    small, none = (1.0, 1.1, 0.9), (0.1, -0.1, 0.05)
    assert why(*small) == why(*small, published=1.2) == ""
    assert why(*small, published=3.0) == "the interval is between 0 and the published 3"
    assert why(*none) == why(*none, published=-9.0) == "the interval contains 0"
    assert why(*none, published=0.2) == "the interval contains 0 and the published 0.2"
    assert why(*none, published=3.0) == "the interval contains 0, and ends below the published 3"
    assert why(-1.0, -1.1, -0.9) == "the interval is below 0"
    assert why(0.9, 1.1, 1.0, within=1.0) == "the interval crosses the margin of 1"
    assert why(2.0, 2.1, 1.9, within=1.0) == "the interval is beyond the margin"
    assert why(1.0) == "a single repetition" and why(0.5, 0.5) == "no spread"
    text = claim_text(judged("a > b", none))
    assert text.endswith("right in 2 of 3, the interval contains 0")


def test_what_has_no_spread_decides_nothing():
    """Three copies of one number are no three repetitions: p is that of a sign test."""
    found = judged("a > b", [0.5, 0.5, 0.5])
    assert (found["verdict"], found["p"]) == ("undecided", 0.25)
    assert judged("a > b", [0.0, 0.0])["p"] == 1.0


def test_sentences_are_part_of_the_interval():
    """The same three seeds: surely better if all sentences agree, not if a few make it up."""
    scores = np.random.default_rng(0).normal(size=50)
    scores -= scores.mean()
    a = [scores * 0.1 + gap for gap in (1.0, 1.1, 0.9)]
    found = judged("a > b", sentence_gaps(a, np.zeros((3, 50))))
    assert (found["verdict"], found["over"]) == ("reproduced", "seeds and sentences")
    unsure = judged("a > b", sentence_gaps([row + 9 * scores for row in a], np.zeros((3, 50))))
    assert unsure["verdict"] == "undecided" and unsure["effect"] == pytest.approx(1.0)
    one = judged("a > b", sentence_gaps(a[:1], np.zeros((1, 50))))
    assert (one["verdict"], one["over"]) == ("undecided", "sentences") and one["p"] < 0.01


def test_claims_of_a_table_share_their_error():
    """Holm by hand: the least p times three, the next times two, none below one before."""
    claims = [judged("a > b", gaps) for gaps in ([1.0, 1.2, 1.1], [0.1, 0.4, 0.2], [1.0])]
    p = [claim["p"] for claim in claims]
    found = [claim["p_holm"] for claim in with_holm(claims)]
    assert found == [2 * p[0], max(2 * p[0], p[1]), None] and p[0] < p[1]
    assert claims[0]["p_holm"] is None, "the argument is not changed"


def test_a_line_says_everything():
    text = claim_text(judged("a > b", [1.0, 1.2, 1.1]))
    assert text.startswith("REPRODUCED") and "a > b: by 1.100 ±0.100" in text
    assert "over repetitions, p = 0.0027" in text and text.endswith("right in 3 of 3")
    (last,) = with_holm([judged("a > b", [1.0, 1.2, 1.1], published=3.0)])
    assert "(published 3)" in claim_text(last) and "p = 0.0027 (Holm 0.0027)" in claim_text(last)
    assert is_claim_text(claim_text(last)) and is_claim_text("UNDECIDED       a > b: by 1")
    assert not is_claim_text("cross-entropy  67.35")


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
