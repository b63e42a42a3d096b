"""The public functions: the same samples, scores and fillings as those of the commands."""

import json

import pytest
import torch

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.models.catalogue import load_mlm
from softbeam.sampling.diagnostics import bulk_ess, split_rhat
from softbeam.sampling.texts.api import infill, sample, score
from softbeam.sampling.texts.files import read_samples
from softbeam.sampling.texts.settings import SamplingConfig
from support.tiny_bert import letter_mlm, write_letter_mlm

TEXTS = ["AC[MASK]DE", "[MASK][MASK]KLA", "<mask>"]
SETTINGS = {"chains": 2, "sweeps": 7, "burn_in": 2, "at_once": 4, "seed": 3}  # two groups of texts


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_letter_mlm(tmp_path_factory.mktemp("letters"))


@pytest.mark.slow
def test_samples_are_those_that_the_command_writes(folder, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["sample", "--mlm", str(folder), "--input", str(tmp_path / "in.txt"), "--quiet"]
    words += [w for k, v in SETTINGS.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    assert main([*words, "--out", str(tmp_path / "s.jsonl"), "--json"]) == 0
    rows = list(read_samples(tmp_path / "s.jsonl"))
    drawn = sample(load_mlm(str(folder)), TEXTS, **SETTINGS)
    for i, texts in enumerate(drawn.texts):
        own = [row for row in rows if row["index"] == i]
        kept = [row for row in own if row["phase"] == "sample"]
        assert texts == [row["text"] for row in kept] and len(texts) == 2 * 5
        assert drawn.energy[i].flatten().tolist() == [row["energy"] for row in kept]
        columns = drawn.trace.energy[:, 2 * i : 2 * i + 2]
        assert columns.flatten().tolist() == [row["energy"] for row in own]
        rates = drawn.trace.accept[:, 2 * i : 2 * i + 2].flatten().tolist()
        assert rates == pytest.approx([row["accepted"] / row["proposals"] for row in own])
    assert drawn.trace.phase == ("burn-in",) * 2 + ("sample",) * 5
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["texts"]
    for mixed, row in zip(drawn.summary(), found, strict=True):
        assert (mixed.mean, mixed.rhat, mixed.ess) == (row["energy"], row["rhat"], row["ess"])


@pytest.mark.slow
def test_a_single_text_needs_no_list(mlm):
    settings = SamplingConfig(**SETTINGS)
    drawn = sample(mlm, TEXTS[0], settings)
    again = sample(mlm, [TEXTS[0]], **SETTINGS)
    assert drawn.texts == again.texts and drawn.energy.shape == (1, 5, 2)
    assert sample(mlm, TEXTS[0], settings, seed=4).texts != drawn.texts, "an override counts"
    (mixed,) = drawn.summary()
    assert mixed.energy_rhat == split_rhat(drawn.energy[0]) <= mixed.rhat
    assert mixed.energy_ess == bulk_ess(drawn.energy[0]) >= mixed.ess


def test_scores_are_those_of_the_command(folder, capsys):
    assert main(["score", "--mlm", str(folder), "--text", "ACDE", "--format", "jsonl"]) == 0
    row = json.loads(capsys.readouterr().out)
    mlm = load_mlm(str(folder))
    (scored,) = score(mlm, "ACDE")
    assert scored.score == row["score"] and scored.tokens == list("ACDE")
    assert score(mlm, ["ACDE"], energy="raw", rows=2)[0].score != scored.score


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mh", "in-turn", "greedy"])
def test_fillings_are_those_of_the_command(folder, capsys, method):
    words = ["infill", "--mlm", str(folder), "--text", "A[MASK]C[MASK]", "--samples", "30"]
    assert main([*words, "--method", method, "--burn-in", "60", "--seed", "5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["fillings"]
    mlm = load_mlm(str(folder))
    found = infill(mlm, "A[MASK]C[MASK]", samples=30, method=method, burn_in=60, seed=5)
    assert [filling._asdict() for filling in found] == rows


def test_a_model_is_loaded_in_the_format_asked_for(folder):
    assert load_mlm(str(folder)).model.dtype == torch.float32
    assert load_mlm(str(folder), dtype="float64").model.dtype == torch.float64
    with pytest.raises(UserError, match="dtype int8: must be one of float32"):
        load_mlm(str(folder), dtype="int8")


def test_an_unknown_setting_is_a_type_error_that_lists_the_settings(mlm):
    with pytest.raises(TypeError, match=r"'chain' is not a setting; there are chains, sweeps"):
        sample(mlm, "[MASK]", chain=4)
    with pytest.raises(TypeError, match=r"'sweeps' is not a setting; there are chains, burn_in"):
        infill(mlm, "[MASK]", sweeps=4)


BAD = {
    "kernel": (
        lambda mlm: sample(mlm, "[MASK]", kernel="frob"),
        "--kernel frob: must be one of mh",
    ),
    "block": (lambda mlm: sample(mlm, "[MASK]", block="frob"), "--block frob: must be one of lin"),
    "chains": (lambda mlm: sample(mlm, "[MASK]", chains=0), "--chains 0: must be at least 1"),
    "no text": (lambda mlm: sample(mlm, []), "there is no text to sample"),
    "energy": (lambda mlm: score(mlm, "A", energy="frob"), "--energy frob: must be one of local"),
    "rows": (lambda mlm: score(mlm, "A", rows=0), "--rows 0: must be at least 1"),
    "method": (lambda mlm: infill(mlm, "[MASK]", method="frob"), "--method frob: must be one of"),
    "samples": (lambda mlm: infill(mlm, "[MASK]", samples=0), "--samples 0: must be at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_name_the_setting_and_what_is_allowed(mlm, case):
    call, expected = BAD[case]
    with pytest.raises(UserError, match=expected):
        call(mlm)
