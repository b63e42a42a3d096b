"""Samplers of diffusion models, step by step, and oracles whose conditionals are exact."""

from functools import partial

import pytest
import torch

from softbeam.sampling.oracles import MarkovOracle, TableOracle, every, table_index
from softbeam.sampling.unmasking import (
    NAMES,
    by_confidence,
    by_entropy,
    by_margin,
    conditionals,
    entropy_bounded,
    first,
    in_blocks,
    in_steps,
    remasking,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def law(sampler, oracle, draws=20_000, seed=0):
    """The share of each text among the draws of a sampler."""
    tokens = sampler(oracle, *oracle.hidden(draws), generator(seed))
    return (
        torch.bincount(table_index(tokens, oracle.vocab), minlength=oracle.vocab**oracle.time)
        / draws
    )


class Watched(TableOracle):
    """An oracle that notes which positions are masked in each call."""

    def logits(self, tokens, masked, owner):
        self.calls = [*getattr(self, "calls", []), masked.clone()]
        return super().logits(tokens, masked, owner)


def watched(**sizes):
    return Watched(TableOracle.random(**sizes).log_joint)


# Oracles


@pytest.mark.parametrize("oracle", [TableOracle.random(3, 3), MarkovOracle.random(3, 3, seed=2)])
def test_conditionals_and_pairs_are_sums_over_all_texts(oracle):
    texts = every(3, 3)
    p = (-oracle.energy(texts)).exp()
    assert abs(float(p.sum()) - 1) < 1e-12
    for mask in ([True, False, True], [True, True, True], [False, True, False]):
        masked = torch.tensor([mask] * len(texts))
        found = oracle.logits(texts, masked, torch.zeros(len(texts), dtype=torch.long))
        cells = iter(found.exp())
        for text in texts.tolist():
            for t in (t for t in range(3) if mask[t]):
                weights = [0.0] * 3
                for other, weight in zip(texts.tolist(), p.tolist(), strict=True):
                    if all(mask[i] or other[i] == text[i] for i in range(3)):
                        weights[other[t]] += weight
                expected = torch.tensor(weights, dtype=torch.float64) / sum(weights)
                cell = next(cells)
                torch.testing.assert_close(cell[:3], expected, rtol=0, atol=1e-12)
                assert not cell[3:].any()  # mask and padding
    for t, table in enumerate(oracle.pairs()):
        for a in range(3):
            for b in range(3):
                chosen = (texts[:, t] == a) & (texts[:, t + 1] == b)
                assert abs(float(table[a, b] - p[chosen].sum())) < 1e-12
    draws = oracle.sample(20_000, generator())
    counts = torch.bincount(table_index(draws, 3), minlength=27)
    assert float((counts / 20_000 - p).abs().sum() / 2) < 0.03


def test_a_chain_of_texts_counts_neighbours():
    texts = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0]])
    oracle = MarkovOracle.of_texts(texts, 2, smoothing=0.0)
    torch.testing.assert_close(oracle.start.exp().tolist(), [1.0, 0.0])
    torch.testing.assert_close(oracle.step.exp(), torch.tensor([[0, 1], [2 / 3, 1 / 3]]).double())


# Samplers


def test_one_random_position_a_step_is_exact_and_all_at_once_is_a_product():
    oracle = TableOracle.random(3, 3, seed=5)
    joint = oracle.log_joint.exp().flatten()
    exact = law(partial(in_steps, steps=3), oracle)
    assert float((exact - joint).abs().sum() / 2) < 0.03
    at_once = law(partial(in_steps, steps=1), oracle)
    margins = [oracle.log_joint.exp().sum([a for a in range(3) if a != t]) for t in range(3)]
    product = torch.einsum("i,j,k->ijk", *margins).flatten()
    assert float((at_once - product).abs().sum() / 2) < 0.03
    assert float((product - joint).abs().sum() / 2) > 0.1  # another law
    confident = law(partial(in_steps, steps=3, priority=by_confidence), oracle)
    assert float((confident - joint).abs().sum() / 2) > 0.1  # wrong even with one token a step


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, [5]), (2, [5, 2]), (3, [5, 3, 1]), (9, [5, 4, 3, 2, 1])]
)
def test_tokens_are_spread_evenly_over_the_steps_and_stay(steps, expected):
    oracle = watched(vocab=2, time=5)
    tokens = in_steps(oracle, *oracle.hidden(2), generator(), steps=steps)
    assert [call.sum(-1).tolist() for call in oracle.calls] == [[n, n] for n in expected]
    for before, after in zip(oracle.calls, oracle.calls[1:], strict=False):
        assert not (after & ~before).any()
    assert bool((tokens < 2).all())


def test_priorities_of_a_worked_example():
    p = torch.tensor([[0.5, 0.49, 0.01], [0.6, 0.2, 0.2], [0.34, 0.33, 0.33]]).double()
    drawn = torch.tensor([0, 1, 0])
    order = {
        by_confidence: [0, 2, 1],  # 0.5, 0.34, 0.2
        by_margin: [1, 0, 2],  # 0.4, 0.01, 0.01 (of equal ones the first, by rounding)
        by_entropy: [0, 1, 2],
    }
    for priority, expected in order.items():
        values = priority(p.log(), drawn, generator())
        assert values.argsort(descending=True, stable=True).tolist() == expected
    hidden = torch.tensor([[True, False, True, True]])
    assert first(torch.tensor([1.0, 3.0, 2.0]), hidden, torch.tensor([2])).tolist() == [
        False,
        True,
        True,
    ]


def test_entropy_bound_counts_positions_without_the_largest():
    log_joint = torch.zeros(2, 2, 2) + torch.tensor([0.0, 5.0])  # the last is nearly certain
    oracle = Watched(log_joint)
    entropy_bounded(oracle, *oracle.hidden(1), generator(), bound=0.1)
    assert [int(call.sum()) for call in oracle.calls] == [3, 1]  # 0.04, 0.69; then 0.69
    wide = Watched(log_joint)
    entropy_bounded(wide, *wide.hidden(1), generator(), bound=10.0)
    assert len(wide.calls) == 1
    narrow = watched(vocab=3, time=4)
    entropy_bounded(narrow, *narrow.hidden(5), generator(), bound=0.0)
    assert [int(call[0].sum()) for call in narrow.calls] == [4, 3, 2, 1]


@pytest.mark.parametrize("cap", [0.0, 0.5])
def test_remasking_follows_the_time_and_masks_again_only_with_a_cap(cap):
    many, single = watched(vocab=2, time=6), watched(vocab=2, time=6)
    tokens = remasking(many, *many.hidden(50), generator(), steps=8, cap=cap)
    assert bool((tokens < 2).all())
    actual = [float(call.sum()) / 300 for call in many.calls]
    shares = [1 - step / 8 for step in range(8)]  # masked before each step, as the time says
    assert all(abs(a - b) < 0.12 for a, b in zip(actual, shares, strict=True))
    remasking(single, *single.hidden(1), generator(), steps=30, cap=cap)
    pairs = zip(single.calls, single.calls[1:], strict=False)
    assert any(bool((after & ~before).any()) for before, after in pairs) == (cap > 0)


def test_blocks_are_filled_from_left_to_right():
    oracle = watched(vocab=2, time=5)
    tokens, hidden = oracle.hidden(1)
    tokens[0, 1], hidden[0, 1] = 1, False  # a visible token is no place of a block
    in_blocks(partial(in_steps, steps=1), 2)(oracle, tokens, hidden, generator())
    rows = [call[0].tolist() for call in oracle.calls]
    assert rows == [[1, 0, 1, 1, 1], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_visible_tokens_stay(name):
    oracle = TableOracle.random(3, 4)
    tokens, hidden = oracle.hidden(20)
    tokens[:, 2], hidden[:, 2] = 1, False
    filled = NAMES[name](2)(oracle, tokens, hidden, generator())
    assert bool((filled[:, 2] == 1).all()) and bool((filled < 3).all())


def test_conditionals_hide_what_comes_later():
    oracle = TableOracle.random(3, 3)
    tokens = torch.tensor([[0, 1, 2]])
    now, later = torch.tensor([[True, False, False]]), torch.tensor([[False, False, True]])
    found = conditionals(oracle, tokens, now, later)
    both = oracle.log_conditionals(tokens, now | later)[0, 0]
    torch.testing.assert_close(found[0, :3], both)
