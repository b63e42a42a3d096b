"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4, whole, on chains that take seconds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softbeam import sampling_experiments
from softbeam.chains import Plan, fill_randomly, run
from softbeam.cli import main
from softbeam.config import Lstm, Search, to_yaml
from softbeam.energy import LocalEnergy
from softbeam.kernels import metropolis_hastings
from softbeam.mask_predict import mask_predict
from softbeam.objectives import CrossEntropy
from softbeam.proposals import MaskedConditionals
from softbeam.recipes import masked_g2p
from softbeam.sampling_claims import claims, sampled
from softbeam.sampling_experiments import Sampling, quality, sample, texts_of, weights_of
from softbeam.sampling_tables import CELLS, PRINTED, default_run, described, figures, published

TARGETS = list(CELLS)


@pytest.fixture(scope="module")
def out(data_dir, tmp_path_factory):
    """A folder with a barely trained model of letters to phonemes."""
    folder = tmp_path_factory.mktemp("sampling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(data_dir))
        default_run("tiny", folder, quiet=True)
        yield folder


def cell(out: Path, **knobs) -> Sampling:
    model = out / "masked-g2p"
    small = {"sweeps": 3, "burn_in": 1, "chains": 2, "sources": 3}
    return Sampling(folder=str(model), weights=weights_of(model), **small | knobs)


def test_the_rows_are_repetitions_of_the_same_sources(out):
    texts = texts_of(cell(out))
    assert texts.owner.tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.equal(texts.real[:3], texts.real[3:])
    likeliest = texts.mlm.length_scores.argmax(-1)
    assert torch.equal(texts.real.sum(-1)[:3], likeliest)


def test_a_cell_is_the_plain_sampler_step_by_step(out):
    """The figures of the last sweep, from the plain kernel with the same seed, by loops."""
    found = sample(cell(out))["sweeps"][-1]
    texts = texts_of(cell(out))
    energy = LocalEnergy(texts.mlm, owner=texts.owner)
    rng = torch.Generator().manual_seed(1)
    empty = torch.zeros(texts.real.shape).long()
    start = fill_randomly(empty, texts.real, texts.mlm.allowed, rng)
    kernel = metropolis_hastings(energy, MaskedConditionals(texts.mlm, owner=texts.owner))
    plan = Plan(sweeps=3, burn_in=1)
    *_, last = run(kernel, start, texts.real, plan=plan, rng=rng)
    lengths = texts.real.sum(-1)
    for chain in range(2):
        rows = range(3 * chain, 3 * chain + 3)
        total = sum(last.state.energy[row].item() for row in rows)
        tokens = sum(int(lengths[row]) for row in rows)
        assert found["energy"][chain] == pytest.approx(total / tokens, rel=1e-4)
        novel = sum(int(last.counts.novel[row]) for row in rows)
        assert found["novel"][chain] == pytest.approx(novel / tokens)
        words = [
            texts.run.codecs.target.decode(last.state.tokens[row, : lengths[row]].tolist())
            for row in rows
        ]
        assert found["quality"][chain] == quality("transcription", words, texts.references)


def test_energies_are_local_whatever_is_sampled_from(out):
    texts = texts_of(cell(out))
    energy = LocalEnergy(texts.mlm, owner=texts.owner)
    for knobs in ({"energy": "raw"}, {"method": "Gibbs"}, {}):
        starts = sample(cell(out, **knobs))["start"]["energy"]
        rng = torch.Generator().manual_seed(1)
        start = fill_randomly(
            torch.zeros(texts.real.shape).long(), texts.real, texts.mlm.allowed, rng
        )
        total = energy(start)[:3].sum() / texts.real[:3].sum()
        assert starts[0] == pytest.approx(total.item(), rel=1e-4)


def test_gibbs_accepts_everything_and_mask_predict_is_itself(out):
    gibbs = sample(cell(out, method="Gibbs"))
    assert all(line["accept"] == [1.0, 1.0] for line in gibbs["sweeps"])
    found = sample(cell(out, method="mask-predict"))["sweeps"][-1]
    texts = texts_of(cell(out))
    tokens, _ = mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=10)
    assert found["quality"] == texts.quality(tokens)
    assert found["quality"][0] == found["quality"][1]


def test_the_mode_is_never_above_the_last_text(out):
    found = sample(cell(out, sweeps=6, cooling=0.1))
    last = found["sweeps"][-1]["energy"]
    assert all(m <= x + 1e-6 for m, x in zip(found["mode"]["energy"], last, strict=True))


def test_a_nucleus_is_counted_and_cooling_cools(out):
    with_nucleus = sample(cell(out, nucleus=0.3))
    assert max(max(line["stuck"]) for line in with_nucleus["sweeps"]) > 0
    cooled = sample(cell(out, cooling=0.4, sweeps=4))
    shown = [round(line["temperature"], 6) for line in cooled["sweeps"]]
    assert shown == [1.0, 0.6, 0.2, 0.05]


@pytest.mark.slow
@pytest.mark.parametrize("what", TARGETS)
def test_every_table_and_figure_comes_out(what, out, capsys):
    words = ["reproduce", what, "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    assert main([*words, "--seeds", "2", "--run", str(out / "masked-g2p"), "--quiet"]) == 0
    record = json.loads((out / f"{what}.json").read_text())
    text = capsys.readouterr().out
    assert record["text"] in text and "2 chains each" in text
    assert len(record["cells"]) == {"table-6.2": 10, "table-6.3": 10, "table-6.4": 6}.get(
        what, {"table-6.5": 6, "table-6.6": 4, "figure-6.4": 2}.get(what, 3)
    )
    assert set(record["published"]) <= set(record["rows"]) and record["claims"]
    assert all(len(v) == 2 for row in record["rows"].values() for v in row.values() if v)
    for file in record["files"]:
        assert (out / file).stat().st_size > 5000
    assert bool(record["files"]) == what.startswith("figure")


@pytest.mark.slow
def test_finished_chains_are_kept_and_shared(out, monkeypatch):
    words = ["reproduce", "figure-6.2", "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    words += ["--seeds", "2", "--quiet"]
    assert main(words) == 0
    monkeypatch.setattr(sampling_experiments, "texts_of", None)  # nothing may be sampled again
    assert main(words) == 0


def result(start: float = 0.0, mode: float = 0.0, **figures: float) -> dict:
    """Two chains with the same figures in every sweep."""
    twice = {name: [value] * 2 for name, value in figures.items()}
    other = {"start": {"quality": [start] * 2}, "mode": {"quality": [mode] * 2}}
    return {"sweeps": [{"phase": "sample"} | twice] * 4} | other


def verdicts(what: str, done, kind: str = "translation") -> dict[str, str]:
    return {claim["claim"]: claim["verdict"] for claim in claims(what, done, kind)}


def test_claims_can_fail():
    base = Sampling(folder="x", weights="y")
    raw, gibbs = replace(base, energy="raw"), replace(base, method="Gibbs")
    low = result(energy=0.5, quality=10.0, novel=0.1, accept=0.9, start=50.0)
    high = result(energy=1.5, quality=60.0, novel=0.4, accept=1.0, start=50.0)
    better, lower = (f"MH, raw, has a {what} than degenerate Gibbs" for what in MEASURES)
    found = verdicts("figure-6.2", {base: low, raw: low, gibbs: high}, "transcription")
    assert set(found.values()) == {"reproduced"} and {better, lower} <= set(found)
    found = verdicts("figure-6.2", {base: low, raw: low, gibbs: high})
    by_bleu = [text for text in found if "BLEU" in text]
    assert [found[text] for text in by_bleu] == ["not reproduced"] * 2, "more is better there"
    assert found["degenerate Gibbs is worse after the burn-in than at its start"] == (
        "not reproduced"
    )
    found = verdicts("figure-6.2", {base: high, raw: high, gibbs: low}, "transcription")
    assert [found[text] for text in (better, lower)] == ["not reproduced"] * 2


MEASURES = ("better token error rate", "lower energy")


@pytest.mark.parametrize("what", ["table-6.2", "table-6.3", "table-6.5", "table-6.6"])
def test_published_figures_bear_out_what_is_claimed(what):
    """Chains with the printed figures: a claim that fails on them is a misreading of ours."""
    base = Sampling(folder="x", weights="y")
    done = {cell: {} for cell in CELLS[what](base)}
    names = {"BLEU": "quality", "BLEU, best": "quality", "energy, best": "energy"}
    blank = {"energy": [0.0], "novel": [0.0], "repeated": [0.0], "accept": [0.0], "stuck": [0.0]}
    for cell in done:
        row = next(iter(figures(what, {cell: empty(blank)}, "translation").items()))[0]
        if what == "table-6.6":
            row = described(cell)
        values = {names.get(c, c): v for c, v in PRINTED[what][row].items()}
        done[cell] = result(**values, start=20.27, mode=values["quality"])
    found = verdicts(what, done)
    assert set(found.values()) == {"reproduced"}, found
    assert len(found) >= {"table-6.2": 19, "table-6.3": 16}.get(what, 6)


def empty(blank: dict) -> dict:
    line = {"phase": "sample", "quality": [0.0]} | blank
    return {"sweeps": [line], "start": line, "mode": line}


def test_published_figures_stand_under_the_same_columns():
    rows = {"T=2, local": {"energy": [1.0], "self": [0.5], "token error rate": [9.0]}}
    assert published("table-6.2", rows) == {"T=2, local": [12.87, None, None]}
    rows = {"T=2, local": {"novel": [1.0], "BLEU": [9.0]}, "other": {"novel": [1.0]}}
    assert published("table-6.2", rows) == {"T=2, local": [0.03, 25.91]}


def test_only_sweeps_after_the_burn_in_are_averaged():
    lines = [{"phase": p, "novel": [v, 2 * v]} for p, v in [("burn-in", 9.0), ("sample", 1.0)]]
    lines.append({"phase": "sample", "novel": [3.0, 6.0]})
    assert sampled({"sweeps": lines}, "novel") == [2.0, 4.0]


def test_a_folder_without_such_a_model_is_refused(tmp_path, capsys):
    words = ["reproduce", "table-6.2", "--run", str(tmp_path), "--out", str(tmp_path)]
    assert main(words) == 2
    assert "is not a run folder" in capsys.readouterr().err
    stage = replace(masked_g2p().pretrain, objective=CrossEntropy())
    left_to_right = replace(masked_g2p(), model=Lstm(), select=Search(), pretrain=stage)
    (tmp_path / "config.yaml").write_text(to_yaml(left_to_right))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main([*words, "--quiet"]) == 2
    assert "is no conditional masked language model" in capsys.readouterr().err
