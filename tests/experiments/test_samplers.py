"""Tables 6.2 to 6.6 and Figures 6.2 to 6.4, whole, on chains that take seconds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.experiments.order import Order
from softbeam.experiments.reproduce import SAMPLED
from softbeam.experiments.samplers import cells as sampling_experiments
from softbeam.experiments.samplers.cells import (
    Sampling,
    compute,
    figures_of,
    sample,
    sums_of,
    sums_path,
    texts_of,
    weights_of,
)
from softbeam.experiments.samplers.claims import claims, correlations
from softbeam.experiments.samplers.finished import chains_of, draws
from softbeam.experiments.samplers.models import masked, models
from softbeam.experiments.samplers.results import TARGETS as SHOWN, mode_row, published
from softbeam.experiments.samplers.tables import CELLS, PRINTED
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.sampling.chains import Plan, fill_randomly, run_chains
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.masked_search import mask_predict
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.training.config import to_yaml
from softbeam.training.kinds import KINDS
from softbeam.training.metrics import bleu, error_rates
from softbeam.training.recipes import masked_g2p
from softbeam.training.searches import Greedy
from support.toys import three_tokens

TARGETS = [what for what in CELLS if what in SAMPLED]
pytestmark = pytest.mark.slow  # the models of `out` are trained first


@pytest.fixture(scope="module")
def out(short_corpora, tmp_path_factory):
    """A folder with two barely trained models of letters to phonemes."""
    folder = tmp_path_factory.mktemp("sampling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        patch.setattr("softbeam.experiments.samplers.finished.DRAWS", 100)  # samples of bootstraps
        models(Order(folder=folder, seeds=[1, 2], preset="tiny", quiet=True))
        yield folder


def cell(out: Path, **knobs) -> Sampling:
    model = masked("tiny", 1).folder(out)
    small = {"sweeps": 3, "burn_in": 1, "chains": 2, "sources": 3}
    return Sampling(folder=str(model), weights=weights_of(model), **small | knobs)


def test_the_rows_are_repetitions_of_the_same_sources(out):
    texts = texts_of(cell(out))
    assert texts.owner.tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.equal(texts.real[:3], texts.real[3:])
    likeliest = texts.mlm.length_scores.argmax(-1)
    assert torch.equal(texts.real.sum(-1)[:3], likeliest)


def test_sources_are_spread_over_the_split(out):
    """Words are sorted: the first of them would all begin with an A."""
    words = masked_g2p().data
    split = replace(words, limit=200).load().split("test")
    sources = list(dict.fromkeys(example.source for example in split))
    short = [source for source in sources if len(source) <= 7]
    accepted = {s: [e.target for e in split if e.source == s] for s in short}
    few = texts_of(cell(out, sources=4, longest=7)).references
    places = [0, len(short) // 4, len(short) // 2, 3 * len(short) // 4]
    assert few == [accepted[short[place]] for place in places]
    assert len(texts_of(cell(out, sources=10_000, longest=7)).references) == len(short)


def test_a_cell_is_the_plain_sampler_step_by_step(out):
    """The figures of the last sweep, from the plain kernel with the same seed, by loops."""
    found = sample(cell(out))[0]["sweeps"][-1]
    texts = texts_of(cell(out))
    energy = LocalEnergy(texts.mlm, owner=texts.owner)
    rng = torch.Generator().manual_seed(1)
    empty = torch.zeros(texts.real.shape).long()
    start = fill_randomly(empty, texts.real, texts.mlm.allowed, rng)
    kernel = metropolis_hastings(energy, MaskedConditionals(texts.mlm, owner=texts.owner))
    plan = Plan(sweeps=3, burn_in=1)
    *_, last = run_chains(kernel, start, texts.real, plan=plan, rng=rng)
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
        rates = error_rates(words, texts.references)
        assert found["quality"][chain] == pytest.approx(rates["token_error_rate"])


def test_energies_are_local_whatever_is_sampled_from(out):
    texts = texts_of(cell(out))
    energy = LocalEnergy(texts.mlm, owner=texts.owner)
    for knobs in ({"energy": "raw"}, {"method": "Gibbs"}, {}):
        starts = sample(cell(out, **knobs))[0]["start"]["energy"]
        rng = torch.Generator().manual_seed(1)
        start = fill_randomly(
            torch.zeros(texts.real.shape).long(), texts.real, texts.mlm.allowed, rng
        )
        total = energy(start)[:3].sum() / texts.real[:3].sum()
        assert starts[0] == pytest.approx(total.item(), rel=1e-4)


def test_gibbs_accepts_everything_and_mask_predict_is_itself(out):
    gibbs, *_ = sample(cell(out, method="Gibbs"))
    assert all(line["accept"] == [1.0, 1.0] for line in gibbs["sweeps"])
    found = sample(cell(out, method="mask-predict"))[0]["sweeps"][-1]
    texts = texts_of(cell(out))
    tokens, _ = mask_predict(texts.mlm, texts.real.sum(-1), texts.owner, iterations=10)
    rows = zip(tokens[:3], texts.real[:3], strict=True)
    words = [texts.run.codecs.target.decode(row[real].tolist()) for row, real in rows]
    expected = error_rates(words, texts.references)["token_error_rate"]
    assert found["quality"] == pytest.approx([expected] * 2)


def test_the_mode_is_never_above_the_last_text(out):
    found, *_ = sample(cell(out, sweeps=6, cooling=0.1))
    last = found["sweeps"][-1]["energy"]
    assert all(m <= x + 1e-6 for m, x in zip(found["mode"]["energy"], last, strict=True))


def test_a_nucleus_is_counted_and_cooling_cools(out):
    with_nucleus, *_ = sample(cell(out, nucleus=0.3))
    assert max(max(line["stuck"]) for line in with_nucleus["sweeps"]) > 0
    cooled, *_ = sample(cell(out, cooling=0.4, sweeps=4))
    shown = [round(line["temperature"], 6) for line in cooled["sweeps"]]
    assert shown == [1.0, 0.6, 0.2, 0.05]


@pytest.mark.parametrize("what", TARGETS)
def test_every_table_and_figure_comes_out(what, out, capsys, monkeypatch):
    monkeypatch.setattr(sampling_experiments, "likeliest_lengths", three_tokens)
    words = ["reproduce", what, "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    assert main([*words, "--seeds", "2", "--quiet"]) == 0
    record = json.loads((out / f"{what}.json").read_text())
    text = capsys.readouterr().out
    assert record["text"] in text and "2 models, a chain of each" in text
    settings = {"table-6.2": 10, "table-6.3": 10, "table-6.4": 6}.get(
        what, {"table-6.5": 6, "table-6.6": 5, "figure-6.4": 2}.get(what, 3)
    )
    assert len(record["cells"]) == 2 * settings
    assert len({cell["weights"] for cell in record["cells"]}) == 2, "a model for each seed"
    assert {claim["over"] for claim in record["claims"]} == {"seeds and sentences"}
    assert set(record["published"]) <= set(record["rows"]) and record["claims"]
    assert all(len(v) == 2 for row in record["rows"].values() for v in row.values() if v)
    for file in record["files"]:
        assert (out / file).stat().st_size > 5000
    assert bool(record["files"]) == what.startswith("figure")


def test_a_run_of_ones_own_has_chains_instead_of_models(out, capsys):
    words = ["reproduce", "figure-6.4", "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    words += ["--seeds", "2", "--models", str(masked("tiny", 1).folder(out)), "--quiet"]
    assert main(words) == 0
    record = json.loads((out / "figure-6.4.json").read_text())
    assert record["repeated"] == "chains" and "2 chains each" in capsys.readouterr().out
    assert len(record["cells"]) == 2
    assert all(len(v) == 2 for row in record["rows"].values() for v in row.values())


def test_finished_chains_are_kept_and_shared(out, monkeypatch):
    words = ["reproduce", "figure-6.2", "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    words += ["--seeds", "2", "--quiet"]
    assert main(words) == 0
    monkeypatch.setattr(sampling_experiments, "texts_of", None)  # nothing may be sampled again
    assert main(words) == 0


def test_chains_on_all_sources_are_the_result_and_sums_survive_the_file(out, tmp_path):
    cells = [cell(out), cell(out, seed=2)]
    results = [compute(one, tmp_path) for one in cells]
    found = chains_of(results, [sums_of(one, tmp_path) for one in cells])
    alone = chains_of(results, [None, None])
    for part in ("sweeps", "start", "mode"):
        ours, theirs = getattr(found, part), getattr(alone, part)
        assert set(ours) == set(theirs)
        for name in ours:
            np.testing.assert_allclose(ours[name][..., :1], theirs[name], rtol=1e-5)
    assert alone.sweeps["energy"].shape == (3, 4, 1), "sweeps, repetitions of both cells, one draw"
    assert found.sweeps["energy"].shape == (3, 4, 101)
    assert list(found.kept) == [False, True, True]
    sums_path(cells[1], tmp_path).write_bytes(sums_path(cells[0], tmp_path).read_bytes()[:-40])
    with pytest.raises(UserError, match=r"safetensors is not a file of sums .*; remove it"):
        sums_of(cells[1], tmp_path)
    sums_path(cells[1], tmp_path).unlink()
    lost = chains_of(results, [sums_of(one, tmp_path) for one in cells])
    assert lost.sweeps["energy"].shape == (3, 4, 1), "without sums of all there is nothing to draw"


@pytest.mark.parametrize("kind", ["translation", "transcription"])
def test_drawn_sources_count_as_often_as_they_are_drawn(kind):
    """Against texts that are written down as often, by the libraries' own corpus figures."""
    texts = [["a", "dog", "runs", "home", "."], ["two", "men"], ["no", "one", "is", "here", "now"]]
    golds = [[["a", "dog", "runs", "home", "now"]], [["two", "old", "men"]], [texts[2]]]
    drawn = np.array([[1.0, 1, 1], [0, 2, 1], [3, 0, 0]])
    sums = {
        "energy": np.array([[1.0, 2.0, 4.0]]),
        "tokens": np.array([[5.0, 2.0, 5.0]]),
        "proposals": np.array([[10.0, 4.0, 10.0]]),
        "novel": np.array([[1.0, 4.0, 2.0]]),
        "quality": np.array([KINDS[kind].samples(golds, texts)]),
    }
    found = figures_of(kind, sums, drawn)
    for place, times in enumerate(drawn.astype(int).tolist()):
        rows = [i for i, n in enumerate(times) for _ in range(n)]
        energy, tokens, novel, proposals = (
            sum(sums[name][0, i] for i in rows)
            for name in ("energy", "tokens", "novel", "proposals")
        )
        assert found["energy"][0, place] == pytest.approx(energy / tokens)
        assert found["novel"][0, place] == pytest.approx(novel / proposals)
        predicted, references = [texts[i] for i in rows], [golds[i] for i in rows]
        if kind == "translation":
            joined = [[" ".join(one) for one in each] for each in references]
            expected = bleu([" ".join(one) for one in predicted], joined)["score"]
        else:
            expected = error_rates(predicted, references)["token_error_rate"]
        assert found["quality"][0, place] == pytest.approx(expected)


def test_draws_are_of_as_many_sources_and_begin_with_all(monkeypatch):
    monkeypatch.setattr("softbeam.experiments.samplers.finished.DRAWS", 4000)
    drawn = draws(7)
    assert drawn.shape == (4001, 7) and (drawn[0] == 1).all() and (drawn.sum(1) == 7).all()
    assert drawn[1:].mean(0) == pytest.approx(1.0, abs=0.15)


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    sweeps = {name: rng.integers(5, size=(6, 2, 3)).astype(float) for name in ("energy", "quality")}
    base = Sampling(folder="x", weights="y")
    chains = chains_of([result(energy=1.0, quality=1.0)], [None])._replace(sweeps=sweeps)
    found = correlations({base: chains, replace(base, seed=2): chains})
    for i in range(2):
        for j in range(3):
            pair = (np.tile(sweeps[name][:, i, j], 2) for name in ("energy", "quality"))
            assert found[i, j] == pytest.approx(spearmanr(*pair).statistic)


def test_figures_that_never_change_have_no_correlation():
    base = Sampling(folder="x", weights="y")
    same = chains_of([result(energy=1.0, quality=2.0)], [None])
    assert correlations({base: same}).tolist() == [[0.0], [0.0]]


def result(start: float = 0.0, mode: float = 0.0, **figures: float) -> dict:
    """Two chains with the same figures in every sweep."""
    twice = {name: [value] * 2 for name, value in figures.items()}
    ends = {"start": start, "mode": mode}
    other = {name: {"quality": [x] * 2, "energy": [x] * 2} for name, x in ends.items()}
    sweeps = [{"phase": "sample"} | twice] * 4
    return {"kind": "translation", "sources": 3, "sweeps": sweeps} | other


def verdicts(what: str, done, kind: str = "translation") -> dict[str, str]:
    chains = {cell: chains_of([found], [None]) for cell, found in done.items()}
    found = claims(what, chains, kind)  # chains without spread: their direction alone
    return {c["claim"]: "reproduced" if c["effect"] > 0 else "not reproduced" for c in found}


def test_sources_that_disagree_leave_a_claim_undecided():
    """Chains that agree about the mean are not sure of it if it hangs on one source."""
    base = Sampling(folder="x", weights="y")
    raw = replace(base, energy="raw")

    def chains(energies: list[float]):
        rates = {name: np.ones((4, 2, 4)) for name in ("accept", "novel", "repeated", "stuck")}
        sums = rates | {
            "energy": np.tile(energies, (4, 2, 1)),
            "tokens": np.ones((4, 2, 4)),
            "proposals": np.ones((4, 2, 4)),
            "quality": np.ones((4, 2, 4, 2)),
        }
        ends = {name: x[0] for name, x in sums.items()}
        told = result(energy=1.0) | {"kind": "transcription", "sources": 4}
        return chains_of([told], [{"sweeps": sums, "start": ends, "mode": ends}])

    def told(energies: list[float]) -> dict:
        falls = chains(energies)
        first = {name: x.copy() for name, x in falls.sweeps.items()}
        first["energy"][0] = 0.0
        done = {base: falls._replace(sweeps=first), raw: falls}
        found = claims("figure-6.4", done, "transcription")
        return next(c for c in found if c["claim"] == "local: annealing lowers the energy")

    agreed, alone = told([-1.1, -0.9, -1.1, -0.9]), told([-5.0, 0.4, 0.3, 0.3])
    assert agreed["effect"] == pytest.approx(1.0) and alone["effect"] == pytest.approx(1.0)
    assert agreed["right"] == alone["right"] == 2, "both chains say so either way"
    assert (agreed["verdict"], alone["verdict"]) == ("reproduced", "undecided")
    assert alone["over"] == "seeds and sentences" and alone["interval"][0] < 0


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
        none = {cell: chains_of([empty(blank)], [None])}
        row = next(iter(SHOWN[what].rows(none, "translation")))
        if what == "table-6.6":
            row = mode_row(cell)
        printed = PRINTED[what].get(row, PRINTED[what].get(ONE_LENGTH, {}))
        values = {names.get(c, c): v for c, v in printed.items()}
        done[cell] = result(**values, start=20.27, mode=values["quality"])
    found = verdicts(what, done)
    assert set(found.values()) == {"reproduced"}, found
    assert len(found) >= {"table-6.2": 19, "table-6.3": 16}.get(what, 6)


ONE_LENGTH = "mask-predict, one length, 10 iterations"  # five are not printed


def empty(blank: dict) -> dict:
    line = {"quality": [0.0]} | blank
    parts = {"sweeps": [line], "start": line, "mode": line}
    return {"kind": "translation", "sources": 1} | parts


def test_published_figures_stand_under_the_same_columns():
    rows = {"T=2, local": {"energy": [1.0], "self": [0.5], "token error rate": [9.0]}}
    assert published("table-6.2", rows) == {"T=2, local": [12.87, None, None]}
    rows = {"T=2, local": {"novel": [1.0], "BLEU": [9.0]}, "other": {"novel": [1.0]}}
    assert published("table-6.2", rows) == {"T=2, local": [0.03, 25.91]}


def test_only_sweeps_after_the_burn_in_are_averaged():
    lines = [{"phase": p, "novel": [v, 2 * v]} for p, v in [("burn-in", 9.0), ("sample", 1.0)]]
    lines.append({"phase": "sample", "novel": [3.0, 6.0]})
    told = {"kind": "translation", "sources": 1, "sweeps": lines}
    assert chains_of([told], [None]).mean("novel").tolist() == [[2.0], [4.0]]


def test_a_folder_without_such_a_model_is_refused(tmp_path, capsys):
    out = str(tmp_path / "out")
    words = ["reproduce", "table-6.2", "--models", str(tmp_path), "--out", out]
    assert main(words) == 2
    assert "is not a run folder" in capsys.readouterr().err
    stage = replace(masked_g2p().pretrain, objective=CrossEntropy())
    left_to_right = replace(masked_g2p(), model=Lstm(), select=Greedy(), pretrain=stage)
    (tmp_path / "config.yaml").write_text(to_yaml(left_to_right))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main([*words, "--quiet"]) == 2
    assert "is no conditional masked language model" in capsys.readouterr().err
