"""Scoring and comparing outputs of each kind of task."""

import pytest

from softbeam.data.readers import Example
from softbeam.training.kinds import KINDS


def test_pronunciations_of_a_word_are_one_problem():
    examples = [
        Example(("a",), ("AH",)),
        Example(("b",), ("B",)),
        Example(("a",), ("EY",)),
    ]
    found = KINDS["transcription"].problems(examples)
    assert found.sources == [("a",), ("b",)] and found.references[0] == [("AH",), ("EY",)]
    assert len(KINDS["translation"].problems(examples).sources) == 3


def test_scores_of_each_kind():
    tags = KINDS["tagging"].score([["B-X", "O"]], [[("B-X", "B-X")]], [2])
    assert tags["accuracy"] == 50.0 and "f1" in tags
    assert "f1" not in KINDS["tagging"].score([["NP", "N"]], [[("NP", "N")]], [2])
    words = KINDS["transcription"].score([["A", "B"]], [[("A", "C"), ("A", "B")]], [2])
    assert words == {"token_error_rate": 0.0, "sequence_error_rate": 0.0}
    text = ["the", "cat", "sat", "down"]
    mt = KINDS["translation"].score([text], [[tuple(text)]], [4])
    assert mt["bleu"] == pytest.approx(100.0) and mt["length_ratio"] == 1.0
    assert mt["signature"] and mt["bleu_by_source_length"]


def test_more_is_better_by_sign():
    assert KINDS["tagging"].main_metric({"accuracy": 3.0}) == ("accuracy", 3.0)
    assert KINDS["tagging"].main_metric({"accuracy": 3.0, "f1": 2.0}) == ("f1", 2.0)
    assert KINDS["transcription"].main_metric({"sequence_error_rate": 3.0}) == (
        "sequence_error_rate",
        -3.0,
    )


@pytest.mark.parametrize("kind", ["tagging", "transcription", "translation"])
def test_a_clearly_better_system_is_found_better(kind):
    gold = [("a", "b", "c", "d", f"e{i}") for i in range(60)]
    good = [list(g) for g in gold]
    bad = [[*g[:3], "x", "y"] for g in gold]
    found = KINDS[kind].compare([[g] for g in gold], [good], [bad])
    assert found.difference > 30 and found.p_value < 0.05
    same = KINDS[kind].compare([[g] for g in gold], [good], [good])
    assert same.difference == 0.0 and same.p_value == 1.0
