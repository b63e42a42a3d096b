"""Batches: nothing lost, budget kept, seeded, resumable."""

import pytest
import torch
from hypothesis import given, strategies as st

from softbeam.data.batches import Batches, Encoded, Position, collate, in_budget, in_order, width

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def made(sizes: list[int]) -> list[Encoded]:
    return [Encoded([i + 1] * n, [i] * n) for i, n in enumerate(sizes)]


@given(lengths, st.integers(1, 60), st.integers(0, 3))
def test_an_epoch_uses_every_example_once_within_the_budget(sizes, tokens, epoch):
    batches = Batches(made(sizes), tokens=tokens, seed=5)
    plan = batches.plan(epoch)
    assert sorted(i for group in plan for i in group) == list(range(len(sizes)))
    for group in plan:
        assert len(group) == 1 or max(sizes[i] for i in group) * len(group) <= tokens


@given(lengths, st.integers(0, 1000))
def test_epochs_are_a_function_of_the_seed(sizes, seed):
    one, two = (Batches(made(sizes), tokens=30, seed=seed) for _ in range(2))
    assert [one.plan(e) for e in range(3)] == [two.plan(e) for e in range(3)]


def test_other_seeds_and_epochs_give_other_orders():
    batches = Batches(made([3] * 50), tokens=30, seed=1)
    other = Batches(made([3] * 50), tokens=30, seed=2)
    assert batches.plan(0) != batches.plan(1) and batches.plan(0) != other.plan(0)


@pytest.mark.slow
@given(lengths, st.data())
def test_resuming_anywhere_gives_the_rest(sizes, data):
    batches = Batches(made(sizes), tokens=20, seed=3)
    whole = list(batches.epoch(Position(2)))
    at = data.draw(st.integers(0, len(whole)))
    position = whole[at - 1][0] if at else Position(2)
    if at == len(whole):
        assert position == Position(3, 0)
        return
    rest = list(batches.epoch(position))
    for (p, a), (q, b) in zip(whole[at:], rest, strict=True):
        assert p == q
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_collating_pads_with_zero_and_masks_unknown_labels():
    batch = collate([Encoded([5, 6, 7], [1, -1, 2]), Encoded([8], [3])])
    assert batch.source.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.target.tolist() == [[1, 0, 2], [3, 0, 0]]
    assert batch.mask.tolist() == [[True, False, True], [True, False, False]]


@given(lengths, st.integers(1, 50))
def test_evaluation_sees_every_example_once(sizes, tokens):
    seen = [i for numbers, _ in in_order(made(sizes), tokens=tokens) for i in numbers]
    assert sorted(seen) == list(range(len(sizes)))


def test_an_example_wider_than_the_budget_stands_alone():
    sizes = [2, 2, 9, 2]
    assert in_budget([0, 1, 2, 3], sizes, 4) == [[0, 1], [2], [3]]
    assert width(Encoded([1, 2], [])) == 2


def test_an_empty_budget_is_refused():
    with pytest.raises(ValueError, match="tokens=0"):
        Batches(made([1]), tokens=0, seed=0)
