"""The example scripts run, on few sentences and chains."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from support.scripts import loaded


@pytest.mark.slow
def test_a_marian_model_is_fine_tuned_from_cross_entropy_to_soft_beams(
    tmp_path, data_dir, monkeypatch
):
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    small = ["--width", "16", "--layers", "1", "--vocabulary", "200", "--limit", "24"]
    words = ["--out", str(tmp_path), *small, "--test", "4", "--epochs", "1"]
    found = loaded("finetune_marian", "examples").main(words)
    stages = ["cross-entropy", "more-cross-entropy", "local-soft-beam", "global-soft-beam"]
    assert list(found) == stages and all(0 <= value <= 100 for value in found.values())
    weights = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name) for name in stages]
    sums = {sum(p.double().sum().item() for p in model.parameters()) for model in weights}
    assert len(sums) == 4, "each stage trained, and in its own way"


@pytest.mark.slow
def test_anarcii_is_fine_tuned_through_its_beam(tmp_path, monkeypatch, real):
    real("sapiens-vh")
    monkeypatch.setenv("SOFTBEAM_CACHE", real.cache)
    example = loaded("finetune_anarcii", "examples")
    (whole,) = example.clean_chains("dev", 1)
    assert whole.labels[:3] == ("H", "1", "2") and whole.labels[-1] == "128"
    short = example.Chain(whole.residues[:24], whole.labels[:25])  # for the time it takes
    monkeypatch.setattr(example, "RATES", (1e-4,))
    monkeypatch.setattr(example, "clean_chains", lambda split, count: [short] * count)
    words = ["--out", str(tmp_path), "--updates", "2", "--batch", "2", "--chains", "2"]
    record = example.main([*words, "--seeds", "1", "--arms", "direct-loss"])
    for figures in (record["beam 3"], record["beam 1"]):
        runs = figures["damaged, wrong chains %"]["direct-loss"]
        assert 0 <= runs["runs"][0] <= 100 and runs["less start"]["interval"]
    tuned = example.load_seq2seq(tmp_path / "direct-loss-0.0001-1").model.state_dict()
    start = example.load_seq2seq("anarcii").model.state_dict()
    moved = {name for name, value in start.items() if not torch.equal(value, tuned[name])}
    assert moved and not any("embed_positions" in name for name in moved), "positions are kept"


def test_figures_of_arms_are_means_with_intervals():
    example = loaded("finetune_anarcii", "examples")
    start = {kind: np.array([[4.0, 10, 1, 1], [0, 10, 0, 1]]) for kind in ("clean", "damaged")}
    other = {kind: np.array([[1.0, 10, 1, 1], [0, 10, 0, 1]]) for kind in ("clean", "damaged")}
    figures = example.figures_of({"start": [start] * 2, "direct-loss": [other] * 2})
    rows = figures["clean, wrong labels %"]
    assert rows["start"]["runs"] == [20.0, 20.0] and rows["direct-loss"]["runs"] == [5.0, 5.0]
    assert rows["direct-loss"]["less start"]["difference"] == pytest.approx(-15)
    assert figures["clean, wrong chains %"]["direct-loss"]["runs"] == [50.0, 50.0]


def test_damage_keeps_the_numbers_of_the_residues_that_are_left():
    example = loaded("finetune_anarcii", "examples")
    text = example.GENES["train"]["h3-23"]
    chain = example.Chain(text, ("H", *map(str, range(1, len(text) + 1))))
    known = replaced = lost = 0
    for seed in range(40):
        damaged = example.damaged(chain, example.random.Random(seed))
        assert damaged.labels[0] == "H" and len(damaged.labels) == len(damaged.residues) + 1
        numbers = [int(label) for label in damaged.labels[1:]]
        assert numbers == sorted(set(numbers))
        same = [
            text[n - 1] == residue for n, residue in zip(numbers, damaged.residues, strict=True)
        ]
        known, replaced = known + sum(same), replaced + same.count(False)
        lost += sum(b - a > 1 for a, b in zip(numbers, numbers[1:], strict=False))
    assert 0.06 < replaced / (known + replaced) < 0.14 and 10 <= lost <= 30
