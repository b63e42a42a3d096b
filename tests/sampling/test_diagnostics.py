"""Diagnostics against chains whose truth is known."""

import math

import pytest
import torch

from softbeam.sampling.diagnostics import bulk_ess, mixing, split_rhat, unique_ratio


def normal(sweeps: int, chains: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(sweeps, chains, generator=rng, dtype=torch.float64)


def autoregressive(sweeps: int, chains: int, rho: float) -> torch.Tensor:
    """x_t = rho x_{t-1} + noise, from its stationary law."""
    noise = normal(sweeps, chains)
    rows = [noise[0] / math.sqrt(1 - rho**2)]
    for row in noise[1:]:
        rows.append(rho * rows[-1] + row)
    return torch.stack(rows)


def test_independent_draws_count_each():
    values = normal(2000, 4)
    assert split_rhat(values) == pytest.approx(1.0, abs=0.005)
    assert bulk_ess(values) == pytest.approx(8000, rel=0.1)


@pytest.mark.parametrize("rho", [0.5, 0.8, -0.3])
def test_an_autoregressive_chain_has_its_known_size(rho):
    """The integrated autocorrelation time of AR(1) is (1 + rho) / (1 - rho)."""
    values = autoregressive(8000, 4, rho)
    assert bulk_ess(values) == pytest.approx(4 * 8000 * (1 - rho) / (1 + rho), rel=0.1)
    assert split_rhat(values) == pytest.approx(1.0, abs=0.01)


def test_chains_at_different_places_disagree():
    values = normal(200, 4)
    assert split_rhat(values + torch.tensor([0.0, 0.0, 0.0, 3.0])) > 1.1
    drifting = values + torch.linspace(0, 5, 200)[:, None]
    assert split_rhat(drifting) > 1.1, "halves of one chain disagree too"
    spread = values * torch.tensor([1.0, 1.0, 1.0, 20.0])
    assert split_rhat(spread) > 1.1, "the same middle, but not the same spread"


def test_chains_that_never_move_have_a_value():
    same = torch.ones(20, 4)
    assert split_rhat(same) == 1.0 and bulk_ess(same) == 1.0
    apart = torch.arange(4.0).expand(20, 4)
    assert split_rhat(apart) == math.inf and bulk_ess(apart) == 4.0


def test_too_little_is_not_judged():
    assert split_rhat(normal(3, 4)) is None and bulk_ess(normal(3, 4)) is None
    assert split_rhat(normal(100, 1)) is None and bulk_ess(normal(100, 1)) is not None


def test_features_of_ones_own_and_time():
    features = {"energy": normal(500, 4), "length": autoregressive(500, 4, 0.9)}
    found = mixing(features, seconds=2.0)
    assert found["energy"].ess > 4 * found["length"].ess
    assert found["energy"].ess_per_s == pytest.approx(found["energy"].ess / 2)
    assert found["energy"].mean == pytest.approx(float(features["energy"].mean()))
    assert mixing(features)["length"].ess_per_s is None


def test_single_precision_is_read_as_it_is():
    values = normal(300, 4).float()
    assert split_rhat(values) == split_rhat(values.double())


def test_unique_texts():
    assert unique_ratio(["a", "b", "a", "a"]) == 0.5
    with pytest.raises(ValueError, match="at least 1"):
        unique_ratio([])
