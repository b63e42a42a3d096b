"""Annealed importance sampling against enumeration."""

import math

import pytest
import torch

from softbeam import exact
from softbeam.exact import Space
from softbeam.sampling import importance
from softbeam.sampling.importance import MarkovChain


def table_score(vocab: int, time: int, *, scale: float, seed: int = 0):
    """Independent numbers for all sequences: no structure that a sampler could lean on."""
    g = torch.Generator().manual_seed(seed)
    table = scale * torch.randn([vocab] * time, generator=g, dtype=torch.float64)
    return lambda tokens: table[tuple(tokens.T)]


def pair_score(vocab: int, time: int, *, scale: float, seed: int = 0):
    """A chain of pair potentials: neighbours attract or repel."""
    g = torch.Generator().manual_seed(seed)
    table = scale * torch.randn(time - 1, vocab, vocab, generator=g, dtype=torch.float64)
    place = torch.arange(time - 1)
    return lambda tokens: table[place, tokens[:, :-1], tokens[:, 1:]].sum(1)


everything = MarkovChain.uniform


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "vocab", "time"),
    [
        (pair_score(8, 5, scale=1.5), 8, 5),
        (table_score(5, 4, scale=2.0), 5, 4),
    ],
)
def test_within_three_standard_errors_in_19_of_20_runs(score, vocab, time):
    truth = exact.log_partition(score, Space(vocab=vocab, time=time)).item()
    start = everything(vocab, time)
    found = [
        importance.log_partition(score, start, particles=300, steps=200, rng=generator(seed))
        for seed in range(20)
    ]
    assert sum(abs(f.log_z - truth) <= 3 * f.error for f in found) >= 19
    assert all(0 < f.error < 0.2 for f in found)


@pytest.mark.slow
def test_the_error_is_the_spread_of_independent_runs():
    score, start = pair_score(4, 4, scale=1.5), everything(4, 4)
    found = [
        importance.log_partition(score, start, particles=200, steps=60, rng=generator(seed))
        for seed in range(60)
    ]
    spread = torch.tensor([f.log_z for f in found]).std().item()
    said = sum(f.error for f in found) / len(found)
    assert 0.7 < said / spread < 1.4


@pytest.mark.slow
def test_the_mean_weight_is_unbiased_with_few_particles_and_steps():
    """Z itself, not its logarithm: 1,000 runs of two particles and three bridges."""
    score, start = table_score(3, 2, scale=1.0), everything(3, 2)
    truth = exact.log_partition(score, Space(vocab=3, time=2)).exp()
    rng = generator(0)
    z = torch.tensor(
        [
            math.exp(importance.log_partition(score, start, particles=2, steps=3, rng=rng).log_z)
            for _ in range(1000)
        ]
    )
    assert (z.mean() - truth).abs() < 4 * z.std() / 1000**0.5
    assert z.log().mean() < truth.log()  # Jensen: the logarithm is low


def random_chain(vocab: int, time: int, *, seed: int = 1) -> MarkovChain:
    g = torch.Generator().manual_seed(seed)
    first = torch.randn(vocab, generator=g, dtype=torch.float64).log_softmax(-1)
    later = torch.randn(time - 1, vocab, vocab, generator=g, dtype=torch.float64).log_softmax(-1)
    return MarkovChain(first, later)


def test_a_chain_sums_to_one_and_samples_what_it_says():
    chain = random_chain(3, 3)
    words = next(iter(exact.Space(vocab=3, time=3)))
    p = chain.log_prob(words).exp()
    torch.testing.assert_close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    drawn = chain.sample(20_000, generator(0))
    code = (drawn * torch.tensor([9, 3, 1])).sum(1)
    seen = torch.bincount(code, minlength=27) / 20_000
    assert ((seen - p).abs() < 4.5 * (p * (1 - p) / 20_000).sqrt()).all()


@pytest.mark.parametrize("t", [0, 1, 2])
def test_a_token_is_redrawn_from_the_chain_given_the_others(t):
    chain = random_chain(3, 3)
    tokens = torch.tensor([[2, 0, 1]]).repeat(20_000, 1)
    new = chain.redrawn(tokens, t, generator(0))
    others = [i for i in range(3) if i != t]
    assert torch.equal(new[:, others], tokens[:, others])
    tried = torch.tensor([[2, 0, 1]]).repeat(3, 1)
    tried[:, t] = torch.arange(3)
    p = chain.log_prob(tried).softmax(0)
    seen = torch.bincount(new[:, t], minlength=3) / 20_000
    assert ((seen - p).abs() < 4 * (p * (1 - p) / 20_000).sqrt()).all()


def test_a_constant_score_is_exact():
    found = importance.log_partition(
        lambda tokens: torch.full((len(tokens),), 1.7),
        everything(7, 3),
        particles=5,
        steps=4,
        rng=generator(0),
    )
    assert found.log_z == pytest.approx(1.7 + 3 * math.log(7), abs=1e-6)
    assert found.error == pytest.approx(0, abs=1e-6) and found.effective == pytest.approx(5)


def test_a_start_equal_to_the_target_is_exact():
    start = random_chain(6, 4)
    found = importance.log_partition(
        lambda tokens: 2.0 + start.log_prob(tokens), start, particles=8, steps=5, rng=generator(0)
    )
    assert found.log_z == pytest.approx(2.0) and found.accepted == pytest.approx(1.0)
    assert found.error < 1e-6


def test_a_start_fitted_to_samples_lowers_the_error_and_not_the_value():
    score, space = pair_score(8, 5, scale=1.5), Space(vocab=8, time=5)
    truth = exact.log_partition(score, space).item()
    tokens, log_p = zip(*exact.distribution(score, space), strict=True)
    chosen = torch.multinomial(torch.cat(log_p).exp(), 500, True, generator=generator(0))
    flat = everything(8, 5)
    near = flat.fitted(torch.cat(tokens)[chosen])
    for table in (near.first, near.later):
        torch.testing.assert_close(table.logsumexp(-1), torch.zeros(table.shape[:-1]).double())
        assert table.isfinite().all()
    plain, better = (
        importance.log_partition(score, start, particles=500, steps=100, rng=generator(1))
        for start in (flat, near)
    )
    assert better.error < plain.error / 2 and better.effective > plain.effective
    assert abs(better.log_z - truth) < 3 * better.error


def test_fitted_frequencies_are_those_of_many_sequences():
    tokens = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 1]]).repeat(10**5, 1)
    near = everything(3, 2).fitted(tokens, share=1e-9)
    expected = torch.tensor([[0.75, 0.25, 0], [0, 2 / 3, 1 / 3], [0, 0.75, 0.25]]).double()
    found = torch.stack([near.first, near.later[0, 0], near.later[0, 2]]).exp()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_few_sequences_say_little():
    near = everything(39, 2).fitted(torch.tensor([[0, 1]]))
    assert near.first.exp()[0] < 0.1 and near.first.exp()[1] > 0.02


def test_marginals_are_those_of_enumeration():
    chain = random_chain(3, 3)
    truth = exact.marginals(chain.log_prob, Space(vocab=3, time=3))
    torch.testing.assert_close(chain.marginals(), truth)


def test_without_sequences_the_start_is_what_it_was():
    flat = everything(3, 2, forbidden=(1,))
    near = flat.fitted(torch.zeros(0, 2, dtype=torch.long))
    torch.testing.assert_close(near.first, flat.first)
    torch.testing.assert_close(near.later, flat.later)


def test_tokens_that_the_start_leaves_out_do_not_count():
    score = table_score(4, 3, scale=1.0)
    start = everything(4, 3, forbidden=(0, 2))
    truth = exact.log_partition(score, Space(vocab=4, time=3, forbidden=(0, 2))).item()
    found = importance.log_partition(score, start, particles=1000, steps=100, rng=generator(0))
    assert abs(found.log_z - truth) < 3 * found.error


def test_one_position_is_a_space_too():
    score = table_score(5, 1, scale=1.0)
    truth = exact.log_partition(score, Space(vocab=5, time=1)).item()
    found = importance.log_partition(
        score, everything(5, 1), particles=500, steps=20, rng=generator(0)
    )
    assert abs(found.log_z - truth) < 3 * found.error


def test_the_same_seed_gives_the_same_estimate():
    score, start = pair_score(4, 3, scale=1.0), everything(4, 3)
    a, b, c = (
        importance.log_partition(score, start, particles=10, steps=10, rng=generator(s))
        for s in (1, 1, 2)
    )
    assert a == b and a != c


def test_errors_name_the_limits():
    start = everything(3, 2)
    with pytest.raises(ValueError, match="particles=1 must be at least 2"):
        importance.log_partition(
            table_score(3, 2, scale=1), start, particles=1, steps=1, rng=generator(0)
        )
    with pytest.raises(ValueError, match="share=0"):
        start.fitted(torch.zeros(1, 2, dtype=torch.long), share=0.0)
    with pytest.raises(ValueError, match="no sequence is left"):
        everything(2, 1, forbidden=(0, 1))


# From above


def exact_samples(score, vocab: int, time: int, n: int, seed: int) -> torch.Tensor:
    tokens, log_p = zip(*exact.distribution(score, Space(vocab=vocab, time=time)), strict=True)
    chosen = torch.multinomial(torch.cat(log_p).exp(), n, True, generator=generator(seed))
    return torch.cat(tokens)[chosen]


def test_both_directions_bracket_log_z_and_meet_with_more_bridges():
    score, start = pair_score(5, 4, scale=2.0), everything(5, 4)
    truth = exact.log_partition(score, Space(vocab=5, time=4)).item()
    widths = []
    for steps in (3, 100):
        found = [
            importance.bracket(
                score, start, exact_samples(score, 5, 4, 40, seed), steps=steps, rng=generator(seed)
            )
            for seed in range(10)
        ]
        low, high = (torch.tensor([b[side].log_z for b in found]) for side in (0, 1))
        assert low.mean() < truth + 0.01 < high.mean() + 0.02
        widths.append((high.mean() - low.mean()).item())
        assert all(b.holds(truth) for b in found) or steps == 3
    assert widths[1] < widths[0] / 3 and widths[0] > 0.3


@pytest.mark.slow
def test_the_mean_inverse_weight_is_unbiased():
    """1 / Z itself: 600 runs of two exact samples and three bridges; other samples fail."""
    score, start, rng = table_score(3, 2, scale=1.0), everything(3, 2), generator(0)
    truth = exact.log_partition(score, Space(vocab=3, time=2)).neg().exp()
    samples = exact_samples(score, 3, 2, 1200, 1)
    inverse = torch.tensor(
        [
            math.exp(
                -importance.log_partition_from_above(
                    score, start, samples[2 * i : 2 * i + 2], steps=3, rng=rng
                ).log_z
            )
            for i in range(600)
        ]
    )
    assert (inverse.mean() - truth).abs() < 4 * inverse.std() / 600**0.5
    wrong = everything(3, 2).sample(1200, generator(2))  # not of the target
    log_w, _ = importance.carry(score, start, wrong, range(2, 0, -1), steps=3, rng=rng)
    assert (log_w.neg().exp().mean() - truth).abs() > 6 * log_w.neg().exp().std() / 1200**0.5
