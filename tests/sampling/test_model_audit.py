"""Audits on a model without a known law: two-sample tests against exact ancestral samples."""

import json
from functools import partial

import pytest
import torch

from softbeam.cli import main
from softbeam.sampling.chain_rule import ChainEnergy
from softbeam.sampling.correcting import corrected
from softbeam.sampling.model_audit import LEVEL, audit_model, compared
from softbeam.sampling.oracles import MarkovOracle
from softbeam.sampling.unmasking import by_confidence, in_steps
from support.tiny_bert import write_letter_mlm

CHAIN = MarkovOracle.random(5, 8, scale=2.0, seed=1)
ORDER = torch.tensor([3, 0, 7, 5, 1, 2, 6, 4])


def audited(sampler, seed=0, draws=400):
    return audit_model(sampler, CHAIN, *CHAIN.hidden(draws), ORDER, seed=seed)


@pytest.mark.slow
def test_exact_samplers_pass_and_parallel_ones_fail():
    """One token a step is exact in any order, as the conditionals are those of a joint."""
    right = [audited(partial(in_steps, steps=8), seed) for seed in range(5)]
    assert all(result.holds for result in right) and right[0].rows == 8
    p = [gap.p_value for result in right for gap in result.gaps]
    assert min(p) < 0.5 < max(p), "p-values vary"
    wrong = audited(partial(in_steps, steps=1))
    assert not wrong.holds and wrong.gaps[0].p_value < 1e-6 and wrong.rows == 1
    assert not audited(partial(in_steps, steps=4, priority=by_confidence)).holds


@pytest.mark.slow
def test_corrected_drafts_pass():
    energy = ChainEnergy(CHAIN, ORDER)
    sampler = corrected(partial(in_steps, steps=2), energy, passes=12, stride=2)
    assert audited(sampler, draws=200).holds


def test_equal_figures_do_not_differ_and_the_level_is_shared():
    same = torch.ones(5)
    assert compared("x", same, same).p_value == 1.0
    assert compared("x", torch.arange(50.0), torch.arange(50.0) + 100).p_value < LEVEL
    assert (
        audited(lambda mlm, tokens, hidden, rng: CHAIN.sample(len(tokens), rng), draws=50).limit
        == LEVEL / 4
    )


@pytest.mark.slow
def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_letter_mlm(tmp_path / "mlm")
    words = ["audit", "random", "--mlm", "mlm", "--length", "4", "--draws", "100", "--json"]
    code = main([*words, "--steps", "1"])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (0 if said["holds"] else 1) and said["rows"] == 1.0
    assert [row["name"] for row in said["figures"]][:2] == ["energy", "energy, distribution"]
    words = ["audit", "all", "--words", "2", "--time", "2", "--steps", "2", "--draws", "300"]
    assert main([*words, "--correct", "3", "--figure", "law.svg"]) == 0
    table = capsys.readouterr().out
    assert table.count("confidence") == 4 and "error of exact draws" in table
    assert (tmp_path / "law.svg").read_text().count("<path") > 20
    assert main([*words, "--figure", "law.svg"]) == 2
    assert "law.svg exists; --overwrite replaces it" in capsys.readouterr().err
