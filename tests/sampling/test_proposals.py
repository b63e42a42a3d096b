"""Proposals against plain loops: the conditionals of all masked positions together."""

import itertools
import math
import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as st

from softbeam.sampling.proposals import (
    MaskedConditionals,
    ReducibleWarning,
    UniformProposals,
    within_nucleus,
)
from softbeam.sampling.tiny import TinyMLM

SEP, WORDS = 2, (3, 4, 5)
TEXTS = torch.tensor([[SEP, 3, 4, 5, SEP], [SEP, 4, SEP, 0, 0], [SEP, 5, 5, SEP, 0]])
BLOCKS = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]).bool()
OWNER = torch.tensor([1, 1, 0])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def plain_law(mlm, row, masked, source, *, allowed=WORDS, temperature=1.0):
    """[{token: probability}] of each masked position of one row."""
    cells = mlm.logits(torch.tensor([row]), torch.tensor([masked]), torch.tensor([source]))
    laws = []
    for logits in cells.tolist():
        weight = {v: math.exp(logits[v] / temperature) for v in allowed}
        laws.append({v: w / sum(weight.values()) for v, w in weight.items()})
    return laws


def plain_nucleus(law, boundary):
    """The smallest set with this probability, by trying all sets."""
    sets = [s for n in range(1, len(law) + 1) for s in itertools.combinations(law, n)]
    enough = [s for s in sets if sum(law[v] for v in s) >= boundary]
    best = min(enough, key=lambda s: (len(s), -sum(law[v] for v in s)))
    return {v: law[v] / sum(law[u] for u in best) if v in best else 0.0 for v in law}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 100])
def test_forward_and_reverse_equal_plain_loops(temperature, rows):
    mlm = TinyMLM(sources=2)
    propose = MaskedConditionals(mlm, owner=OWNER, temperature=temperature, rows=rows)
    for seed in range(5):
        new = propose(TEXTS, BLOCKS, generator(seed))
        assert torch.equal(new.tokens[~BLOCKS], TEXTS[~BLOCKS])
        for i, (old, now) in enumerate(zip(TEXTS.tolist(), new.tokens.tolist(), strict=True)):
            masked = BLOCKS[i].tolist()
            where = [t for t, m in enumerate(masked) if m]
            forward = reverse = 0.0
            if where:
                laws = plain_law(mlm, old, masked, OWNER[i].item(), temperature=temperature)
                forward = sum(math.log(p[now[t]]) for p, t in zip(laws, where, strict=True))
                reverse = sum(math.log(p[old[t]]) for p, t in zip(laws, where, strict=True))
            assert new.log_q_forward[i].item() == pytest.approx(forward)
            assert new.log_q_reverse[i].item() == pytest.approx(reverse)


def test_the_reverse_is_the_forward_of_the_way_back():
    """q(y; y') computed from y equals what the proposal from y' says, for every y'."""
    mlm = TinyMLM()
    propose = MaskedConditionals(mlm)
    row, block = TEXTS[:1], BLOCKS[:1]
    for a, b in itertools.product(WORDS, repeat=2):
        there = row.masked_scatter(block, torch.tensor([a, b]))
        torch.testing.assert_close(propose.log_probs(row, block), propose.log_probs(there, block))


@pytest.mark.parametrize("kind", ["conditionals", "mixture", "uniform"])
def test_draws_follow_the_law(kind):
    """Chi-square of 5,000 blocks against what q says of each: 8 degrees of freedom."""
    mlm, n = TinyMLM(seed=3), 5000
    propose = {
        "conditionals": MaskedConditionals(mlm),
        "mixture": MaskedConditionals(mlm, nucleus=0.5, epsilon=0.3),
        "uniform": UniformProposals(mlm.allowed),
    }[kind]
    new = propose(TEXTS[:1].expand(n, -1), BLOCKS[:1].expand(n, -1), generator())
    pairs = [tuple(pair) for pair in new.tokens[:, [1, 3]].tolist()]
    counts, q = Counter(pairs), dict(zip(pairs, new.log_q_forward.exp().tolist(), strict=True))
    assert len(q) == 9 and sum(q.values()) == pytest.approx(1)
    assert sum((counts[y] - n * p) ** 2 / (n * p) for y, p in q.items()) < 26.1  # 0.999


def test_only_allowed_tokens_are_proposed_and_they_sum_to_one():
    mlm = TinyMLM()
    assert (mlm.logits(TEXTS, BLOCKS, torch.zeros(3).long()).softmax(-1)[:, :3] > 0.01).any()
    for propose in (MaskedConditionals(mlm), UniformProposals(mlm.allowed)):
        q = propose.log_probs(TEXTS, BLOCKS).exp()
        assert q.shape == (3, 6) and (q[:, :3] == 0).all()
        torch.testing.assert_close(q.sum(-1), torch.ones(3, dtype=q.dtype))


def table():
    """Position 1 of the first text may hold 3 or 4; position 3 of it only 5, and so on."""
    allowed = torch.zeros(*TEXTS.shape, 6, dtype=torch.bool)
    allowed[0, 1, 3:5] = True
    allowed[0, 3, 5] = True
    allowed[2, 2, 4:] = True
    return allowed


@pytest.mark.parametrize("kind", ["conditionals", "uniform"])
def test_allowed_sets_for_each_position(kind):
    mlm = TinyMLM()
    propose = {
        "conditionals": MaskedConditionals(mlm, allowed=table()),
        "uniform": UniformProposals(table()),
    }[kind]
    q = propose.log_probs(TEXTS, BLOCKS).exp()
    for row, allowed, (i, t) in zip(q, [(3, 4), (5,), (4, 5)], BLOCKS.nonzero(), strict=True):
        law = dict.fromkeys(allowed, 1 / len(allowed))
        if kind == "conditionals":
            masked = BLOCKS[i].tolist()
            cell = sum(masked[:t])
            law = plain_law(mlm, TEXTS[i].tolist(), masked, 0, allowed=allowed)[cell]
        assert row.tolist() == pytest.approx([law.get(v, 0.0) for v in range(6)])
    assert propose(TEXTS, BLOCKS, generator()).tokens[0, 3] == 5


def test_frozen_positions_and_foreign_tokens_are_errors():
    mlm = TinyMLM()
    frozen = torch.zeros_like(BLOCKS)
    frozen[1, 1] = True
    with pytest.raises(ValueError, match="1 of chain 1 is frozen"):
        MaskedConditionals(mlm, allowed=table()).log_probs(TEXTS, frozen)
    with pytest.raises(ValueError, match="1 of chain 1 is frozen"):
        UniformProposals(table()).log_probs(TEXTS, frozen)
    with pytest.raises(ValueError, match="tokens: 2, at 0 of chain 0, is not allowed there"):
        MaskedConditionals(mlm)(TEXTS, TEXTS == SEP, generator())
    with pytest.raises(ValueError, match="tokens: 0, at 3 of chain 1, is not allowed there"):
        MaskedConditionals(mlm)(TEXTS, TEXTS == 0, generator())


def test_nothing_to_do_is_no_change():
    mlm = TinyMLM()
    for propose in (MaskedConditionals(mlm), UniformProposals(mlm.allowed)):
        new = propose(TEXTS, torch.zeros_like(BLOCKS), generator())
        assert torch.equal(new.tokens, TEXTS)
        assert new.log_q_forward.tolist() == new.log_q_reverse.tolist() == [0.0] * 3


# Nucleus


@pytest.mark.slow
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.floats(0.05, 0.99))
def test_the_nucleus_is_the_smallest_set(weights, boundary):
    law = {v: w / sum(weights) for v, w in enumerate(weights)}
    sums = {sum(s) / sum(weights) for n in range(6) for s in itertools.combinations(weights, n)}
    if any(abs(boundary - s) < 1e-9 for s in sums):
        return  # on the edge rounding decides
    log_p = torch.tensor([list(law.values())]).double().log()
    found = within_nucleus(log_p, boundary).exp()[0]
    expected = plain_nucleus(law, boundary)
    torch.testing.assert_close(
        found.sort().values, torch.tensor(sorted(expected.values())).double()
    )
    assert (found > 0).sum() == sum(p > 0 for p in expected.values())


def test_of_equally_likely_tokens_the_first_enter():
    log_p = torch.tensor([[0.2, 0.2, 0.2, 0.2, 0.2]]).double().log()
    found = within_nucleus(log_p, 0.5).exp()[0]
    torch.testing.assert_close(found, torch.tensor([1, 1, 1, 0, 0]).double() / 3)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_the_mixture_of_nucleus_and_whole_conditionals(epsilon):
    """(1 - epsilon) prod nucleus + epsilon prod whole: over the block, not cell by cell."""
    mlm = TinyMLM(seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        propose = MaskedConditionals(mlm, temperature=0.7, nucleus=0.6, epsilon=epsilon)
    whole = plain_law(mlm, TEXTS[0].tolist(), BLOCKS[0].tolist(), 0, temperature=0.7)
    inner = [plain_nucleus(law, 0.6) for law in whole]
    assert any(p == 0 for law in inner for p in law.values())
    for a, b in itertools.product(WORDS, repeat=2):
        old = TEXTS[:1].masked_scatter(BLOCKS[:1], torch.tensor([a, b]))
        new = propose(old, BLOCKS[:1], generator(a * b))
        for text, log_q in ((old, new.log_q_reverse), (new.tokens, new.log_q_forward)):
            v, w = text[BLOCKS[:1]].tolist()
            parts = inner[0][v] * inner[1][w], whole[0][v] * whole[1][w]
            expected = (1 - epsilon) * parts[0] + epsilon * parts[1]
            assert log_q.exp().item() == pytest.approx(expected, abs=1e-12)


def test_a_token_outside_of_its_nucleus_has_reverse_probability_zero():
    mlm = TinyMLM(seed=1)
    with pytest.warns(ReducibleWarning, match="nucleus=0.4"):
        pure = MaskedConditionals(mlm, nucleus=0.4)
    one = torch.tensor([[False, False, True, False, False]])
    outside = [
        not plain_nucleus(plain_law(mlm, [SEP, 3, v, 5, SEP], one[0].tolist(), 0)[0], 0.4)[v]
        for v in WORDS
    ]
    assert any(outside) and not all(outside)
    mended = MaskedConditionals(mlm, nucleus=0.4, epsilon=0.05)
    for v, never in zip(WORDS, outside, strict=True):
        text = torch.tensor([[SEP, 3, v, 5, SEP]])
        assert pure(text, one, generator()).log_q_reverse.isneginf().item() == never
        assert mended(text, one, generator()).log_q_reverse.isfinite().item()


def test_the_same_seed_gives_the_same_proposal_and_arguments_stay():
    propose = MaskedConditionals(TinyMLM())
    texts, blocks = TEXTS.clone(), BLOCKS.clone()
    first, again = (propose(texts, blocks, generator(7)) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(texts, TEXTS) and torch.equal(blocks, BLOCKS)


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"nucleus": 0.0}, {"nucleus": 1.5}, {"epsilon": -0.1}]
)
def test_knobs_are_checked(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        MaskedConditionals(TinyMLM(), **options)


def test_uniform_proposals_take_the_size_of_a_vocabulary_or_say_what_they_take():
    tokens, positions = torch.zeros(200, 2).long(), torch.ones(200, 2).bool()
    sized, listed = (
        UniformProposals(allowed)(tokens, positions, torch.Generator().manual_seed(1))
        for allowed in (4, torch.ones(4).bool())
    )
    assert sized.tokens.equal(listed.tokens) and sized.tokens.unique().tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(sized.log_q_forward.exp(), torch.full((200,), 1 / 16))
    for wrong in (0, -1, True):  # other types fail in the checks of shapes, in tests
        with pytest.raises(ValueError, match="must be a tensor of booleans over the vocabulary"):
            UniformProposals(wrong)
