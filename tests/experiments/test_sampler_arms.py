"""Models of chapter 6 as arms, what their chains are compared by, and the plan's own targets."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from softbeam.cli import main
from softbeam.experiments import reproduce
from softbeam.experiments.order import Order
from softbeam.experiments.samplers import arms, finished, tables
from softbeam.experiments.samplers.cells import Sampling, compute, sums_of, texts_of, words_path
from softbeam.experiments.samplers.claims import Statements, claims
from softbeam.experiments.samplers.comparisons import log_probability
from softbeam.experiments.samplers.finished import (
    Chains,
    chains_of,
    energies_together,
    length_law,
    rhat_of,
)
from softbeam.experiments.samplers.models import masked, models, trained, written_by
from softbeam.runtime.cells import cell_of, key, settings
from softbeam.sampling.chains import LinearBlocks, partition
from softbeam.sampling.masked_search import mask_predict_decode
from softbeam.training.config import check
from softbeam.training.runs import load_run
from support.toys import three_tokens

BASE = Sampling(folder="x", weights="y")


# Arms and cells


def test_arms_are_those_that_the_command_names():
    assert tuple(reproduce.ARMS) == arms.SAMPLED
    for name, recipe in arms.ARMS.items():
        check(recipe())
        assert arms.recipe("full", name).threads == 1
    smooth = {name: arms.recipe("full", name).pretrain.objective.smoothing for name in arms.SAMPLED}
    assert {name for name, value in smooth.items() if value} == {
        "words-smoothed",
        "distilled-smoothed",
    }
    assert masked("full", 1, "distilled").settings != masked("full", 1, "translation").settings
    assert masked("cpu", 1) == masked("cpu", 1, arms.SMOOTHED)


def test_cells_keep_their_keys_when_fields_are_added():
    """The key of a cell of before: a hash of its fields of then, and the same cell comes back."""
    old = settings(BASE)
    assert not {"order", "candidates", "unsmooth", "every"} & set(old)
    assert key(BASE) == key(replace(BASE, order="random")) != key(replace(BASE, order="sequential"))
    for cell in (BASE, replace(BASE, candidates=5)):
        assert cell_of(compute, json.loads(json.dumps(settings(cell)))) == cell
    assert "arm" not in settings(masked("cpu", 1))


# Figures of chains


def chains(novel=(), proposals=(), tokens=(), kept=(True,), rhat=None, **more) -> Chains:
    arrays = {"novel": novel, "proposals": proposals, "tokens": tokens} | more
    figures = {name: np.array(value, dtype=float) for name, value in arrays.items()}
    return Chains({}, kept, {}, {}, figures["tokens"].shape[-1], figures, rhat)


def test_the_length_law_is_that_of_blocks_in_plain_loops(monkeypatch):
    monkeypatch.setattr(finished, "DRAWS", 3)
    times, rates, sweeps, burn_in = [5, 8, 1], [0.2, 0.05, 0.5], 7, 2
    kept = [sweep >= burn_in for sweep in range(sweeps)]
    found = length_law(chains([[r * 100 for r in rates]], [[100] * 3], [times], kept), sweeps)
    free = torch.arange(8) < torch.tensor(times)[:, None]
    by_sweep = []
    for sweep in range(burn_in, sweeps):
        moved = count = 0.0
        size = LinearBlocks()(free.sum(-1), sweep, sweeps, torch.Generator())
        for block in partition(free, size, rng=torch.Generator().manual_seed(0)):
            for row, places in enumerate(block.sum(-1).tolist()):
                if places:
                    moved += 1 - math.prod([1 - rates[row]] * places)
                    count += 1
        by_sweep.append(moved / count)
    assert found.shape == (1, 4) and found[0, 0] == pytest.approx(sum(by_sweep) / len(by_sweep))


def test_the_law_explains_the_published_rates():
    """Sites that move with 0.12 alone give 0.40 in blocks at T = 20 (thesis: 0.41), 0.22 at 6."""
    for time, expected in ((20, 0.40), (6, 0.22)):
        many = chains([[12.0]], [[100.0]], [[time]], [s >= 7 for s in range(33)])
        assert length_law(many, 33)[0, 0] == pytest.approx(expected, abs=0.035)


def test_rhat_sees_chains_that_stay_where_they_started():
    rng = np.random.default_rng(0)

    def sums(shift: float, sources: int) -> dict:
        energy = (
            rng.normal(size=(40, 1, sources)) + np.linspace(0, 400, sources, endpoint=False) + shift
        )
        return {"sweeps": {"energy": energy}}

    kept = [sweep >= 10 for sweep in range(40)]
    mixed = rhat_of([(sums(0, 40), sums(0, 10)) for _ in range(3)], kept)
    assert 0.97 < mixed < 1.03, "every fourth source, though all have other means"
    assert rhat_of([(sums(0, 40), sums(2, 10))], kept) > 1.3
    still = {"sweeps": {"energy": np.zeros((8, 1, 2))}}
    other = {"sweeps": {"energy": np.ones((8, 1, 2))}}
    assert rhat_of([(still, still)], [True] * 8) == 1.0
    assert rhat_of([(still, other)], [True] * 8) == math.inf


def test_energies_together_are_spearmans_of_texts():
    rng = np.random.default_rng(1)
    local, raw, time = rng.normal(size=(2, 9)), rng.normal(size=(2, 9)), rng.integers(3, 9, (2, 9))
    found = energies_together(chains(tokens=time, energy=local, raw=raw))
    for model in range(2):
        pair = (array[model] / time[model] for array in (local, raw))
        assert found[model] == pytest.approx(spearmanr(*pair).statistic)
    assert energies_together(chains(tokens=time)) == []


def test_claims_about_chains_that_have_not_mixed_are_not_judged():
    cells = tables.table_6_2(BASE)
    line = {"phase": "sample", "energy": [1.0, 1.1], "quality": [2.0, 2.1], "novel": [0.1, 0.2]}
    result = {"kind": "transcription", "sources": 3, "sweeps": [line] * 2}
    done = {cell: chains_of([result], [None]) for cell in cells}
    stuck = next(c for c in cells if c.temperature == 0.5 and c.method == "MH")
    done[stuck] = done[stuck]._replace(rhat=1.3)
    judged = claims("table-6.2", done, "transcription")
    without = {claim["claim"] for claim in judged if "rhat" in claim}
    assert "T=0.5: MH has a lower energy than degenerate Gibbs" in without
    assert "MH moves less with T=0.5" in without
    assert "MH's energy depends less on the proposals" in without
    assert not [text for text in without if "Gibbs has a" in text or text.startswith("T=2")]
    told = Statements(done, "transcription", "")
    near = told.more("near", np.array([[1.0], [1.02]]), 1.0, within=0.5)
    assert near["verdict"] == "reproduced" and near["within"] == 0.5


# Whole targets


@pytest.fixture(scope="module")
def out(short_corpora, tmp_path_factory):
    """A folder with two barely trained models of the arm `words`."""
    folder = tmp_path_factory.mktemp("arms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        patch.setattr(finished, "DRAWS", 20)
        patch.setattr("softbeam.experiments.samplers.cells.likeliest_lengths", three_tokens)
        small = replace(tables.PRESETS["tiny"], sweeps=6, burn_in=2, second=3)
        patch.setitem(tables.PRESETS, "tiny", small)
        models(Order(folder=folder, seeds=[1, 2], preset="tiny", arm="words", quiet=True))
        yield folder


def run(what: str, out, *words: str) -> dict:
    command = ["reproduce", what, "--preset", "tiny", "--out", str(out), "--jobs", "1", "--quiet"]
    assert main([*command, *words]) == 0
    arm = words[words.index("--arm") + 1] if "--arm" in words else ""
    return json.loads((out / arm / f"{what}.json").read_text())


@pytest.mark.slow
def test_several_models_are_the_repetitions(out):
    folders = [str(masked("tiny", seed, "words").folder(out)) for seed in (1, 2)]
    record = run("table-6.4", out, "--models", *folders)
    assert record["repeated"] == "models" and record["seeds"] == [1, 2]
    assert {cell["folder"] for cell in record["cells"]} == set(folders)
    rows = record["rows"]
    assert len(rows["single, local"]["energy"]) == 2 and len(rows["single, local"]["R-hat"]) == 1
    texts = [claim["claim"] for claim in record["claims"] + record["not_judged"]]
    assert any("1 - (1 - a)^b" in text for text in texts)
    assert len(record["cells"]) == 2 * 2 * 6, "a second chain of each for R-hat"


@pytest.mark.slow
def test_smoothing_is_compared_with_models_of_its_own(out):
    record = run("smoothing", out, "--seeds", "1")
    assert list(record["rows"]) == [
        f"{side}, {who}"
        for side in ("smoothing 0", "smoothing 0.1", "smoothing 0.1, unsmoothed")
        for who in ("local", "raw", "Gibbs", "mask-predict")
    ]
    assert len(record["claims"] + record["not_judged"]) == 10
    unsmoothed = [cell for cell in record["cells"] if cell.get("unsmooth")]
    assert {cell["unsmooth"] for cell in unsmoothed} == {0.1}


@pytest.mark.slow
def test_orders_and_low_energies_come_out(out):
    record = run("sampling-order", out, "--arm", "words", "--seeds", "1")
    assert {"random, 6 sweeps, local", "sequential, 9 sweeps, raw"} <= set(record["rows"])
    assert all(len(row["raw with local"]) == 1 for row in record["rows"].values())
    record = run("low-energy-texts", out, "--arm", "words", "--seeds", "1")
    lowest, start = (record["rows"][n] for n in ("annealed, local, lowest", "warm start"))
    assert {"repeated %", "length ratio", "1-grams", "judge, a token"} <= set(lowest)
    assert all(len(values) == 1 for row in record["rows"].values() for values in row.values())
    assert start["judge, a token"][0] < 0 and len(record["claims"]) == 8


@pytest.mark.slow
def test_five_lengths_and_texts_are_those_of_mask_predict(out):
    folder = masked("tiny", 1, "words").folder(out)
    cell = Sampling(
        folder=str(folder), weights="any", method="mask-predict", sources=3, chains=2, candidates=5
    )
    compute(cell, out)
    texts = texts_of(cell)
    best = mask_predict_decode(texts.mlm, texts.length_scores, candidates=5, iterations=10)
    lengths = best.lengths[:, 0].tolist()
    words = [
        texts.run.codecs.target.decode(best.tokens[i, 0, :n].tolist())
        for i, n in enumerate(lengths)
    ]
    assert json.loads(words_path(cell, out).read_text()) == {"last": words * 2}
    assert sums_of(cell, out)["last"]["tokens"].tolist() == [lengths] * 2


@pytest.mark.slow
def test_distilled_targets_are_the_teachers_and_dev_stays(out):
    order = Order(folder=out, seeds=[1], preset="tiny", quiet=True)
    (folder,) = trained(order, "distilled", [1])
    data = load_run(folder).config.data
    source, target = written_by(masked("tiny", 1, "judge-translation"), out)
    assert (data.source, data.target) == (str(source), str(target))
    raw = replace(arms.recipe("tiny", "translation").data).load()
    mine = data.load()
    assert [e.source for e in mine.split("train")] == [e.source for e in raw.split("train")]
    assert [e.target for e in mine.split("train")] != [e.target for e in raw.split("train")]
    assert mine.split("dev") == raw.split("dev") and mine.split("test") == raw.split("test")
    before = target.stat().st_mtime_ns
    trained(order, "distilled", [1])
    assert target.stat().st_mtime_ns == before, "translated once"
    judge = load_run(masked("tiny", 1, "judge-translation").folder(out))
    example = raw.split("dev")[0]
    found = log_probability(judge, [example.source], [example.target])
    assert found == pytest.approx(by_steps(judge, example), abs=1e-4)


def by_steps(judge, example) -> float:
    """The log-probability a token, by one step of the decoder after the other."""
    codecs = judge.codecs
    source = torch.tensor([codecs.source.encode(example.source)])
    target = [*codecs.target.encode(example.target), codecs.eos]
    decoder = judge.model.eval()(source)
    state, emb = decoder.start()
    total = 0.0
    for token in target:
        scores, state = decoder.step(state, emb)
        total += scores.log_softmax(-1)[0, token].item()
        emb = decoder.embedding[[token]]
    return total / len(target)
