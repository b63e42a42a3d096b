"""Samples as data of ArviZ: its summary is ours, and tokens are those of the texts."""

import arviz_stats
import numpy as np
import pytest
import torch

from softbeam.sampling.diagnostics import bulk_ess, split_rhat
from softbeam.sampling.texts import arviz_data
from softbeam.sampling.texts.api import sample
from support.tiny_bert import letter_mlm

TEXTS = ["AC[MASK]DE", "[MASK][MASK]K"]
CHAINS, KEPT = 4, 24


@pytest.fixture(scope="module")
def drawn():
    """In single precision, as models are; of texts of different lengths."""
    mlm = letter_mlm(torch.float32)
    return sample(mlm, TEXTS, chains=CHAINS, sweeps=2 + KEPT, burn_in=2, at_once=4, seed=2)


@pytest.fixture(scope="module")
def data(drawn):
    return drawn.to_arviz()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_the_summary_of_arviz_is_ours(drawn, data):
    table = arviz_stats.summary(data, round_to="none")
    for i, mixed in enumerate(drawn.summary()):
        row = table.loc[f"energy[{i}]"]
        expected = (mixed.mean, mixed.energy_rhat, mixed.energy_ess)
        assert (row["mean"], row["r_hat"], row["ess_bulk"]) == pytest.approx(expected, abs=1e-9)
        if mixed.worst != "energy":
            worst = table.loc[f"indicator[prompt {i}: {mixed.worst}]"]
            assert worst["r_hat"] == pytest.approx(mixed.rhat, abs=1e-9)
        own = [
            n for n in table.index if n == f"energy[{i}]" or n.startswith(f"indicator[prompt {i}")
        ]
        assert table.loc[own, "r_hat"].max() == pytest.approx(mixed.rhat, abs=1e-9)
        assert table.loc[own, "ess_bulk"].min() == pytest.approx(mixed.ess, abs=1e-9)
    names = data.posterior["feature"].values
    assert len(names) > 2
    for name, values in zip(
        names, data.posterior["indicator"].values.transpose(2, 1, 0), strict=True
    ):
        row, column = table.loc[f"indicator[{name}]"], torch.tensor(values)
        expected = (values.mean(), split_rhat(column), bulk_ess(column))
        assert (row["mean"], row["r_hat"], row["ess_bulk"]) == pytest.approx(expected, abs=1e-9)


def test_every_number_is_in_its_place(drawn, data):
    assert dict(data.posterior.sizes) | {"feature": 0} == {
        "chain": CHAINS,
        "draw": KEPT,
        "prompt": 2,
        "feature": 0,
    }
    tokens, energy = data.texts["tokens"], data.posterior["energy"]
    rate = data.sample_stats["acceptance_rate"]
    for prompt in range(2):
        for chain in range(CHAINS):
            for draw in (0, 7, KEPT - 1):
                place = {"prompt": prompt, "chain": chain, "draw": draw}
                ids = [i for i in tokens.sel(place).values.tolist() if i != arviz_data.NO_TOKEN]
                assert ids == drawn.tokens[prompt][draw, chain].tolist()
                assert float(energy.sel(place)) == drawn.energy[prompt, draw, chain]
                column = drawn.trace.accept[2 + draw, CHAINS * prompt + chain]
                assert float(rate.sel(place)) == pytest.approx(float(column))
    assert (data.sample_stats["lp"] == -energy).all()
    for name in data.posterior["feature"].values:  # as "prompt 0: token 8 at position 3"
        prompt, token, position = (
            int(word) for word in name.replace(":", "").split() if word.isdigit()
        )
        stands = tokens.sel(prompt=prompt, position=position) == token
        indicator = data.posterior["indicator"].sel(feature=name)
        assert np.array_equal(indicator.values, stands.values)
