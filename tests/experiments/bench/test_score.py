"""Scores equal minicons'; what is missing is said in a sentence."""

import importlib.util
import json
import sys

import pytest

from softbeam.cli import main
from softbeam.experiments.bench import score
from support.requirements import absent


def need_minicons():
    if importlib.util.find_spec("minicons") is None:
        absent("the package minicons (softbeam[bench]) is not installed")


def test_scores_equal_those_of_minicons(monkeypatch, capsys):
    need_minicons()
    monkeypatch.setattr(score, "VOCAB", 400)
    words = ["--models", "bert-tiny", "--texts", "3", "--tokens", "6", "--repeats", "1"]
    assert main(["bench", "score", *words, "--memory", "false", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert row["largest_difference"] < 1e-4 and row["ratio"] > 0


def test_real_texts_have_the_length_that_is_asked_for():
    assert {len(text) for text in score.texts_of("sapiens-vh", 8, 20)} == {20}
    assert len(set(score.texts_of("sapiens-vh", 7, 20))) == 7
    assert len(score.texts_of("rxnmapper", 8, 20)) == 8


def test_a_long_text_takes_little_more_memory_than_a_short_one(monkeypatch):
    monkeypatch.setattr(
        score, "compare_packages", lambda name, **_: {"model": name} | dict.fromkeys(FIELDS, 0.0)
    )
    peaks = {200: 60.0, 20: 40.0}
    monkeypatch.setattr(score, "peak_mb", lambda name, tokens: peaks[tokens])
    lines = []
    found = score.run(models=["bert-tiny"], progress=lines.append)
    assert found["long"]["peak_mb"] == 60.0
    assert found["long"]["all_logits_mb"] == pytest.approx(200 * 202 * 30522 * 4 / 2**20)
    assert "one text of 200 tokens: 60 MB" in lines[1]


FIELDS = ("ours_s", "minicons_s", "ratio", "largest_difference")


def test_a_missing_package_is_said_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "minicons", None)
    assert main(["bench", "score", "--models", "bert-tiny"]) == 2
    said = capsys.readouterr().err
    assert "pip install" in said and "softbeam[bench]" in said and said.count("\n") == 1
