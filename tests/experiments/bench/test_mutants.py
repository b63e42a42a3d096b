"""Scores of variants equal those that can be had from minicons."""

import importlib.util
import json

import pytest

from softbeam.cli import main
from softbeam.experiments.bench import mutants
from support.requirements import absent
from support.tiny_bert import write_letter_mlm


@pytest.mark.slow
def test_scores_equal_those_of_minicons(tmp_path, monkeypatch, capsys):
    if importlib.util.find_spec("minicons") is None:
        absent("the package minicons (softbeam[bench]) is not installed")
    write_letter_mlm(tmp_path / "mlm")
    monkeypatch.setattr(mutants, "HEAVY", "ACDEFGHI")
    monkeypatch.setattr(mutants, "LETTERS", "ACDEFGHIKL")
    words = ["--models", str(tmp_path / "mlm"), "--part", "3", "--repeats", "1", "--json"]
    assert main(["bench", "mutants", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert row["variants"] == 72 and row["masked_difference"] < 1e-4 > row["pll_difference"]
    assert row["masked_ratio"] > 0 < row["pll_ratio"]


def test_the_chain_has_125_residues():
    assert len(mutants.HEAVY) == 125 and set(mutants.HEAVY) <= set(mutants.LETTERS)
