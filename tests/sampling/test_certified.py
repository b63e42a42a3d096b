"""The certify command: right kernels pass, wrong ones fail, one's own can be given."""

import json
import sys
import warnings

import pytest

from softbeam.cli import main
from softbeam.sampling.certified_kernels import KERNELS
from softbeam.sampling.proposals import ReducibleWarning

SMALL = ["--words", "2", "--time", "2"]
WRONG = {"nucleus": "irreducible", "degenerate-gibbs": "invariant", "cgmh": "invariant"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "energy"),
    [*((name, "local") for name in sorted(KERNELS)), ("block", "raw"), ("degenerate-gibbs", "raw")]
    + [("fast-block", "raw")],
)
def test_right_kernels_pass_and_wrong_ones_fail(name, energy, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReducibleWarning)
        code = main(["certify", name, "--energy", energy, *SMALL, "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if name in WRONG else 0)
    assert found["holds"] == (code == 0)
    failed = [row["name"] for row in found["certificates"] if not row["holds"]]
    assert failed == [] if code == 0 else WRONG[name] in failed


@pytest.mark.slow
def test_a_kernel_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from softbeam.sampling.energies import Tempered\n"
        "from softbeam.sampling.kernels import metropolis_hastings\n"
        "from softbeam.sampling.proposals import MaskedConditionals\n\n"
        "def right(mlm, energy):\n"
        "    return metropolis_hastings(energy, MaskedConditionals(mlm))\n\n"
        "def wrong(mlm, energy):\n"
        "    return metropolis_hastings(Tempered(energy, 2.0), MaskedConditionals(mlm))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["certify", "mine:right", *SMALL]) == 0
    assert main(["certify", "mine:wrong", *SMALL]) == 1
    sys.modules.pop("mine")
    assert "FAILS  invariant" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none"], "no kernel 'none'"),
        (["no.such:thing"], "cannot be loaded"),
        (["fast-early-rejection", "--energy", "raw"], "the terms of RawEnergy"),
        (["block", "--words", "50"], "--words 50: must be at least 2 and at most 6"),
    ],
)
def test_what_cannot_be_certified_is_said_in_a_sentence(words, sentence, capsys):
    assert main(["certify", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
