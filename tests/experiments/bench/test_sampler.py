"""The sampler's benchmark: its plain loops are an oracle, and its figures are of what they say."""

import json

import pytest
import torch

from softbeam.experiments.bench import sampler
from softbeam.experiments.bench.sampler import (
    FORMS,
    Setting,
    compare_forms,
    identical,
    kernel,
    some_blocks,
    take_steps,
)
from softbeam.experiments.bench.trained_mlm import trained_mlm
from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.sampling.kernels import metropolis_hastings


@pytest.fixture
def case():
    torch.manual_seed(0)
    mlm = TransformerMlm(
        12, TransformerShape(width=8, layers=1, heads=2), pad_id=0, mask_id=1, specials=(2,)
    )
    tokens = torch.randint(3, 12, (3, 5))
    return Setting(mlm.double().eval(), tokens, torch.ones_like(tokens).bool())


@pytest.mark.slow
def test_all_forms_have_the_chain_of_the_plain_loops(case):
    found = identical(case, steps=30)
    assert found == dict.fromkeys(FORMS, True)
    made = kernel("fast", case).kernel
    state, infos = take_steps(made, made.init(case.tokens), some_blocks(case.free, 30, 0), 0)
    assert sum(int(info.moved.sum()) for info in infos) > 5  # it went somewhere


@pytest.mark.slow
def test_another_chain_is_seen(case, monkeypatch):
    """Must fail: a fast kernel of another temperature."""

    def wrong(energy, propose, **options):
        return metropolis_hastings(energy, propose, temperature=3.0)

    monkeypatch.setattr(sampler, "fast_metropolis_hastings", wrong)
    found = identical(case, steps=30)
    assert found["reference"] and found["2T+1 passes"] and not found["fast"]


@pytest.mark.slow
def test_rows_are_counted_in_each_form(case):
    found = compare_forms(case, steps=6, repeats=2)
    rows = {form: found[form]["rows_per_proposal"] for form in FORMS}
    assert rows["2T+1 passes"] == 11 and rows["T+1 passes"] == 6 == rows["reference"]
    assert rows["fast, early rejection"] <= rows["fast"] < 5
    assert found["2T+1 passes"]["over_2t_1"] == 1.0 == found["T+1 passes"]["over_t_1"]


def test_each_site_comes_once_in_a_sweep():
    free = torch.ones(2, 4).bool()
    blocks = torch.stack(some_blocks(free, 6, 0))
    assert blocks.sum(-1).eq(1).all() and blocks[:4].sum(0).eq(1).all()


@pytest.mark.slow
def test_the_trained_model_is_kept_and_the_command_reports(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path))
    first = trained_mlm(updates=2, quiet=True)
    assert len(first.vocabulary) == 5899 and first.model.allowed.sum() == 5894
    monkeypatch.setattr(
        "softbeam.experiments.bench.trained_mlm.train", lambda *_: pytest.fail("trained again")
    )
    again = trained_mlm(updates=2)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    monkeypatch.setattr(sampler, "in_child", lambda *_, **__: {"peak_mb": 2.0})  # of a process
    found = sampler.run(
        models=["multi30k"], chains=2, time=6, steps=2, repeats=1, burn_in=1, long=4, updates=2
    )
    (row,) = json.loads(json.dumps(found))["rows"]
    assert row["vocab"] == 5899 and row["time"] == 6
    for form in FORMS:
        assert row["forms"][form]["identical_in_float64"]
        assert row["forms"][form]["peak_mb"] > 1 and row["forms"][form]["ess_per_s"] > 0
