"""Diagnostics against chains whose truth is known."""

import math

import pytest
import torch

from softbeam.sampling.diagnostics import (
    bulk_ess,
    mixing,
    split_rhat,
    text_mixing,
    unique_ratio,
)


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


def plain_rhat(values: torch.Tensor) -> float:
    """Split R-hat in plain loops; ranks change nothing where there are two values."""
    n = len(values) // 2
    chains = [column[:n] for column in values.T.tolist()]
    chains += [column[-n:] for column in values.T.tolist()]
    means = [sum(chain) / n for chain in chains]
    variances = [sum((x - m) ** 2 for x in c) / (n - 1) for c, m in zip(chains, means, strict=True)]
    within, middle = sum(variances) / len(chains), sum(means) / len(chains)
    between = sum((m - middle) ** 2 for m in means) / (len(chains) - 1)
    return math.sqrt((n - 1) / n + between / within)


def test_modes_that_no_chain_crosses_are_noticed():
    """Both modes have the same energies: the energy alone says that all is well."""
    energy = normal(200, 4)
    noise = torch.rand(200, 4, 6, generator=torch.Generator().manual_seed(1)) < 0.02
    tokens = torch.zeros(200, 4, 6).long()
    tokens[:, 2:] = 1
    tokens[noise] = 2
    found = text_mixing(energy, tokens)
    assert found.energy_rhat == split_rhat(energy) < 1.01 < 5 < found.rhat
    assert not found.mixed and found.ess < 20 < 500 < found.energy_ess == bulk_ess(energy)
    rhats = {
        f"token {v} at position {t}": plain_rhat((tokens[..., t] == v).double())
        for t in range(6)
        for v in (0, 1)
    }
    assert found.worst in rhats and found.rhat == pytest.approx(max(rhats.values()), rel=1e-6)
    tokens = torch.zeros(200, 4, 1).long()
    tokens[:, 3] = 1
    assert text_mixing(energy, tokens).rhat == math.inf, "chains that never change"


def test_a_single_site_that_hardly_moves_has_the_smallest_effective_size():
    rng = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 4, (400, 4, 9), generator=rng)
    tokens[..., 3] = torch.randint(0, 4, (40, 4), generator=rng).repeat_interleave(10, 0)
    found = text_mixing(normal(400, 4), tokens)
    sizes = [bulk_ess((tokens[..., t] == v).double()) for t in range(9) for v in range(4)]
    assert found.ess == min(sizes) < 400 and found.energy_ess > 1000


@pytest.mark.slow
@pytest.mark.parametrize(("sweeps", "chains", "time", "vocab"), [(12, 4, 5, 4), (30, 3, 4, 4)])
def test_independent_draws_are_rarely_suspected(sweeps, chains, time, vocab):
    """At the stated level of 1 %: of 200 repetitions at most 6, which is rarely exceeded."""
    rng = torch.Generator().manual_seed(3)
    alarms = 0
    for _ in range(200):
        p = torch.rand(time, vocab, generator=rng) ** 3
        drawn = torch.multinomial(p, sweeps * chains, replacement=True, generator=rng)
        energy = torch.randn(sweeps, chains, generator=rng)
        alarms += not text_mixing(energy, drawn.T.reshape(sweeps, chains, time)).mixed
    assert alarms <= 6


def test_few_samples_and_single_chains_are_not_judged_by_tokens_either():
    tokens = torch.zeros(3, 4, 2).long()
    found = text_mixing(normal(3, 4), tokens)
    assert found.rhat is None and found.ess is None and found.mixed
    tokens = torch.randint(0, 2, (100, 1, 2), generator=torch.Generator().manual_seed(0))
    alone = text_mixing(normal(100, 1), tokens)
    assert alone.rhat is None and alone.ess is not None and alone.mixed
