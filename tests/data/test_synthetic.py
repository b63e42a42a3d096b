"""Synthetic tasks: their probabilities are what they say, by enumeration and by counting."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from softbeam import exact
from softbeam.data.readers import Example
from softbeam.data.synthetic import (
    HiddenMarkov,
    Palindromes,
    draw,
    future_decides,
    high_entropy_hmm,
    low_entropy_hmm,
    online_bound,
    rib_rob,
    whole_input_bound,
)

ALL = list(itertools.product(range(5), repeat=5))


@pytest.mark.parametrize("joint", [rib_rob(), future_decides(), future_decides(noise=0.2, runs=1)])
def test_joints_sum_to_one_and_keep_lengths(joint):
    assert math.isclose(sum(joint.values()), 1.0)
    assert all(p > 0 and len(e.source) == len(e.target) for e, p in joint.items())


def test_future_decides_follows_its_cues():
    joint = future_decides(labels=3, words=2, run=2, runs=1)
    assert len(joint) == 12
    assert Example(("w1", "w0", "C"), ("c", "c", "o")) in joint
    assert len(future_decides(labels=3, words=2, run=2, runs=2)) == 144


def test_no_label_is_named_like_the_label_of_cues():
    targets = {e.target[0] for e in future_decides(labels=20, words=1, run=1, runs=1)}
    assert len(targets) == 20 and "o" not in targets


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_bounds_of_future_decides(labels, runs, noise):
    joint = future_decides(labels=labels, runs=runs, noise=noise)
    assert online_bound(joint) == pytest.approx(labels**-runs)
    assert whole_input_bound(joint) == pytest.approx((1 - noise) ** runs)


def test_bounds_of_rib_rob():
    """The vowel decides where it is seen (30/32 with a guess at the rest)."""
    assert online_bound(rib_rob()) == pytest.approx(1 / 2)
    assert whole_input_bound(rib_rob()) == pytest.approx(30 / 32)
    assert whole_input_bound(rib_rob(keep=1.0)) == pytest.approx(1.0)
    assert rib_rob()[Example(tuple("rib"), tuple("123"))] == pytest.approx((29 / 32) ** 3 / 2)


def test_online_bound_equals_the_best_of_all_online_labellers():
    """Every function from (x_1) and (x_1, x_2) to labels, tried in turn."""
    rng = np.random.RandomState(1)
    pairs = [
        Example(s, t)
        for s in itertools.product("xy", repeat=2)
        for t in itertools.product("ab", repeat=2)
    ]
    joint = dict(zip(pairs, rng.dirichlet([0.5] * len(pairs)).tolist(), strict=True))
    seen = [(x,) for x in "xy"] + list(itertools.product("xy", repeat=2))
    best = 0.0
    for answer in itertools.product("ab", repeat=len(seen)):
        g = dict(zip(seen, answer, strict=True))
        right = (p for e, p in joint.items() if e.target == (g[e.source[:1]], g[e.source]))
        best = max(best, sum(right))
    assert online_bound(joint) == pytest.approx(best)
    assert best < whole_input_bound(joint)


def test_draws_follow_the_joint_and_the_seed():
    joint = future_decides(runs=1, noise=0.1)
    n = 20_000
    drawn = draw(joint, n, seed=1)
    assert drawn == draw(joint, n, seed=1) != draw(joint, n, seed=2)
    assert chi_square(Counter(drawn), joint, n) < limit(len(joint))


def test_palindromes():
    source = Palindromes()
    assert source.counts == (125, 3000)
    assert source.entropy == pytest.approx(5.964, abs=5e-4)
    log_p = source.log_prob(ALL)
    assert np.exp(log_p).sum() == pytest.approx(1.0)
    assert -(np.exp(log_p) * log_p).sum() == pytest.approx(source.entropy)


@pytest.mark.slow
@pytest.mark.parametrize("time", [2, 3, 4])
def test_palindromes_of_other_lengths(time):
    source = Palindromes(vocab=3, time=time, p=0.3)
    rows = list(itertools.product(range(3), repeat=time))
    p = dict(zip(rows, np.exp(source.log_prob(rows)).tolist(), strict=True))
    assert sum(p.values()) == pytest.approx(1.0)
    drawn = source.sample(20_000, seed=0)
    assert chi_square(Counter(drawn), p, len(drawn)) < limit(len(p))


def test_only_palindromes():
    drawn = Palindromes(p=1.0).sample(200, seed=0)
    assert all(row == row[::-1] for row in drawn)
    assert Palindromes(p=1.0).entropy == pytest.approx(math.log(125))


def by_paths(hmm: HiddenMarkov, row) -> float:
    """The probability of a sequence as a sum over all paths of states."""
    total = 0.0
    for path in itertools.product(range(len(hmm.start)), repeat=len(row)):
        p = hmm.start[path[0]] * hmm.emission[path[0], row[0]]
        for t in range(1, len(row)):
            p *= hmm.transition[path[t - 1], path[t]] * hmm.emission[path[t], row[t]]
        total += p
    return float(total)


@pytest.mark.parametrize("make", [low_entropy_hmm, high_entropy_hmm])
def test_forward_algorithm_equals_the_sum_over_paths(make):
    rows = ALL[::401]
    expected = [by_paths(make(), row) for row in rows]
    np.testing.assert_allclose(np.exp(make().log_prob(rows)), expected, rtol=1e-10)


@pytest.mark.parametrize(("make", "nats"), [(low_entropy_hmm, 4.997), (high_entropy_hmm, 6.398)])
def test_entropy_of_the_fixed_hmms(make, nats):
    """Resolutions D5: about 5.0 and 6.4 nats at length 5."""
    space = exact.Space(vocab=5, time=5)

    def score(tokens):
        return torch.from_numpy(make().log_prob(tokens.numpy()))

    assert exact.log_partition(score, space).item() == pytest.approx(0.0, abs=1e-10)
    assert exact.entropy(score, space).item() == pytest.approx(nats, abs=5e-4)


def test_hmm_samples_follow_the_likelihood_and_the_seed():
    hmm = HiddenMarkov.dirichlet(states=3, symbols=3, moving=0.5, emitting=0.5, seed=3)
    rows = list(itertools.product(range(3), repeat=3))
    p = dict(zip(rows, np.exp(hmm.log_prob(rows)).tolist(), strict=True))
    drawn = hmm.sample(20_000, time=3, seed=0)
    assert drawn == hmm.sample(20_000, time=3, seed=0) != hmm.sample(20_000, time=3, seed=1)
    assert chi_square(Counter(drawn), p, len(drawn)) < limit(len(p))


def test_an_impossible_sequence_has_probability_zero():
    hmm = HiddenMarkov(start=np.array([1.0]), transition=np.eye(1), emission=np.array([[1.0, 0.0]]))
    assert hmm.log_prob([[0, 0], [0, 1], [1, 0]]).tolist() == [0.0, -math.inf, -math.inf]


def chi_square(counts, p, n) -> float:
    assert not set(counts) - set(p)
    return sum((counts[key] - n * q) ** 2 / (n * q) for key, q in p.items() if q > 0)


def limit(cells: int) -> float:
    """Four standard deviations above the mean of chi-square."""
    return cells - 1 + 4 * math.sqrt(2 * (cells - 1)) + 8
