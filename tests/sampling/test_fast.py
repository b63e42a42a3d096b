"""The fast kernel is the plain one, token by token, and asks the model far less."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from softbeam.models.layers import TransformerShape
from softbeam.models.masked import TransformerMlm
from softbeam.sampling.certificates import certify, transitions
from softbeam.sampling.chains import ConstantBlocks, LinearBlocks, Plan, run_chains
from softbeam.sampling.energies import Constrained, LocalEnergy, RawEnergy, Tempered, WeightedSum
from softbeam.sampling.fast import (
    SiteCache,
    fast_metropolis_hastings,
    largest_accepted,
    nearest_first,
)
from softbeam.sampling.kernels import ladder, metropolis_hastings, replica_exchange
from softbeam.sampling.proposals import MaskedConditionals, UniformProposals
from softbeam.sampling.tiny import CountedMlm, TinyMLM, every_text
from softbeam.schedules import Linear
from softbeam.types import ChainState, Kernel, Proposed

LENGTHS = (5, 2, 4, 5, 1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def texts(mlm, lengths=LENGTHS, seed=0):
    """Random texts of these lengths, padded on the right, and their free positions."""
    free = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    words = mlm.allowed.nonzero()[:, 0]
    drawn = words[torch.randint(len(words), free.shape, generator=generator(seed))]
    return drawn.where(free, mlm.pad_id), free


def transformer(seed=0):
    torch.manual_seed(seed)
    model = TransformerMlm(
        9,
        TransformerShape(width=8, layers=2, heads=2, longest=8),
        pad_id=0,
        mask_id=1,
        specials=(2,),
    )
    return model.double().eval()


def records(kernel, start, free, *, sweeps=6, blocks=None, seed=0, **options):
    plan = Plan(sweeps=sweeps, burn_in=0, blocks=blocks or ConstantBlocks())
    return list(run_chains(kernel, start, free, plan=plan, rng=generator(seed), **options))


def assert_same_chain(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.state.tokens, b.state.tokens)
        torch.testing.assert_close(a.state.energy, b.state.energy, rtol=0, atol=1e-9)
        assert all(map(torch.equal, a.counts, b.counts))


def moved_at_all(made):
    return int(torch.stack([r.counts.novel for r in made]).sum()) > 0


# The same chain


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    local=st.booleans(),
    block=st.integers(1, 3),
    temperature=st.sampled_from([0.7, 1.0, 1.5]),
    cold=st.sampled_from([0.5, 1.0]),
    nucleus=st.sampled_from([(1.0, 0.0), (0.7, 0.1)]),
    rows=st.integers(1, 9),
    early=st.sampled_from([None, 1, 3]),
    room=st.sampled_from([0, 2000, 2**20]),
)
def test_the_chain_is_that_of_the_plain_kernel(
    seed, lengths, local, block, temperature, cold, nucleus, rows, early, room
):
    mlm = TinyMLM(words=4, sources=2, seed=seed, scale=1.0)
    owner = torch.randint(2, (len(lengths),), generator=generator(seed))
    energy = (LocalEnergy if local else RawEnergy)(mlm, owner=owner, rows=rows)
    propose = MaskedConditionals(
        mlm, owner=owner, temperature=temperature, nucleus=nucleus[0], epsilon=nucleus[1]
    )
    start, free = texts(mlm, lengths, seed)
    fast = fast_metropolis_hastings(
        energy,
        propose,
        temperature=cold,
        sites_a_round=early if local else None,
        cache=SiteCache(limit=room),
    )
    plain = metropolis_hastings(energy, propose, temperature=cold)
    options = {"blocks": ConstantBlocks(size=block), "seed": seed}
    expected = records(plain, start, free, **options)
    assert_same_chain(records(fast, start, free, **options), expected)


@pytest.mark.slow
@pytest.mark.parametrize("early", [None, 2])
@pytest.mark.parametrize("blocks", [ConstantBlocks(), LinearBlocks()], ids=["sites", "blocks"])
def test_the_chain_of_a_transformer_is_the_same(blocks, early):
    mlm = transformer()
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    start, free = texts(mlm)
    expected = records(metropolis_hastings(energy, propose), start, free, blocks=blocks)
    fast = fast_metropolis_hastings(energy, propose, sites_a_round=early)
    assert_same_chain(records(fast, start, free, blocks=blocks), expected)
    assert moved_at_all(expected)


@pytest.mark.parametrize("early", [None, 1])
def test_flags_and_acceptance_are_the_same_step_by_step(early):
    mlm = TinyMLM(seed=3, scale=1.5)
    energy = LocalEnergy(mlm)
    propose = MaskedConditionals(mlm, nucleus=0.6, epsilon=0.0001)
    start, free = texts(mlm, (4,) * 40)
    plain = metropolis_hastings(energy, propose)
    fast = fast_metropolis_hastings(energy, propose, sites_a_round=early)
    a, b, here, there = plain.init(start), fast.init(start), generator(), generator()
    bounds = 0
    for site in [0, 1, 2, 3] * 4:
        positions = torch.zeros_like(free).index_fill(1, torch.tensor([site]), True)
        (a, expected), (b, found) = plain.step(a, positions, here), fast.step(b, positions, there)
        assert all(map(torch.equal, found[1:], expected[1:]))
        if early is None:
            torch.testing.assert_close(found.log_accept, expected.log_accept)
        above = found.log_accept - expected.log_accept
        assert (above >= -1e-9)[~expected.log_accept.isneginf()].all()  # at most too large
        bounds += int((above > 1e-6).sum())
    assert (bounds > 0) == (early is not None)
    assert torch.equal(here.get_state(), there.get_state())


def composed(mlm, start, free):
    """(name, energy) of every form that is fast."""
    vocab = len(mlm.allowed)
    table = (mlm.allowed & (torch.arange(vocab) != 4)).expand(*start.shape, vocab)
    table = table & free[:, :, None]
    table[0, 0] = False  # frozen

    def threes(tokens):
        return (tokens == 3).sum(-1).double()

    local = LocalEnergy(mlm, restricted=True)
    constrained = Constrained(local, text=start, allowed=table)
    return {
        "sum": WeightedSum([(0.5, local), (2.0, threes), (0.0, threes)]),
        "tempered": Tempered(WeightedSum([(1.0, Tempered(local, 0.5)), (-1.0, threes)]), 2.0),
        "constrained": WeightedSum([(1.0, constrained), (1.0, threes)]),
        "two models": WeightedSum([(1.0, RawEnergy(TinyMLM(words=4, seed=9))), (1.0, local)]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("early", [None, 2])
@pytest.mark.parametrize("name", ["sum", "tempered", "constrained", "two models"])
def test_compositions_profit_too(name, early):
    mlm = CountedMlm(TinyMLM(words=4, seed=5))
    start, free = texts(mlm)
    start = start.where(start != 4, 5)
    energy, propose = composed(mlm, start, free)[name], MaskedConditionals(mlm)
    expected = records(metropolis_hastings(energy, propose), start, free)
    plain, _ = mlm.rows, mlm.reset()
    fast = fast_metropolis_hastings(energy, propose, sites_a_round=early)
    assert_same_chain(records(fast, start, free), expected)
    assert mlm.rows < 0.7 * plain


@pytest.mark.slow
@pytest.mark.parametrize("free_set", [None, "table"])
def test_restricted_sets_and_frozen_words_give_the_same_chain(free_set):
    mlm = TinyMLM(words=5, seed=2)
    start, free = texts(mlm)
    free[:, 1] = False  # a prompt's words
    table = (mlm.allowed & (torch.arange(8) != 6)).expand(*start.shape, 8) & free[:, :, None]
    start = start.where(start != 6, 5)
    propose = MaskedConditionals(mlm, allowed=None if free_set is None else table)
    for counted in (None, free):
        energy = LocalEnergy(mlm, counted=counted)
        expected = records(metropolis_hastings(energy, propose), start, free)
        assert_same_chain(records(fast_metropolis_hastings(energy, propose), start, free), expected)


@pytest.mark.slow
def test_other_proposals_and_other_energies_give_the_same_chain():
    mlm, other = TinyMLM(seed=4), TinyMLM(seed=6)
    start, free = texts(mlm)
    for energy, propose in [
        (LocalEnergy(mlm), UniformProposals(mlm.allowed)),
        (LocalEnergy(mlm), MaskedConditionals(other)),
        (lambda tokens: tokens.double().sum(-1), MaskedConditionals(mlm)),
    ]:
        expected = records(metropolis_hastings(energy, propose), start, free)
        assert_same_chain(records(fast_metropolis_hastings(energy, propose), start, free), expected)


def test_positions_that_do_not_count_are_proposed_all_the_same():
    mlm = TinyMLM(seed=4)
    start, free = texts(mlm)
    energy, propose = LocalEnergy(mlm, counted=torch.arange(5) < 2 * free), MaskedConditionals(mlm)
    expected = records(metropolis_hastings(energy, propose), start, free)
    assert_same_chain(records(fast_metropolis_hastings(energy, propose), start, free), expected)


@pytest.mark.slow
def test_an_annealed_chain_is_the_same_and_its_kernels_share_a_cache():
    mlm = CountedMlm(TinyMLM(seed=4))
    energy, propose, cache = LocalEnergy(mlm), MaskedConditionals(mlm), SiteCache()
    start, free = texts(mlm)
    plan = Plan(sweeps=6, burn_in=0, temperature=Linear(start=1.0, slope=-0.1, floor=0.5))

    def made(make):
        mlm.reset()
        return list(run_chains(make, start, free, plan=plan, rng=generator())), mlm.rows

    expected, _ = made(lambda t: metropolis_hastings(energy, propose, temperature=t))
    alone, rows = made(lambda t: fast_metropolis_hastings(energy, propose, temperature=t))
    shared, fewer = made(
        lambda t: fast_metropolis_hastings(energy, propose, temperature=t, cache=cache)
    )
    assert_same_chain(alone, expected)
    assert_same_chain(shared, expected)
    assert fewer < rows
    with pytest.raises(ValueError, match="belongs to another model"):
        fast_metropolis_hastings(LocalEnergy(TinyMLM()), propose, cache=cache)


def test_parallel_tempering_gives_the_same_chain():
    mlm = TinyMLM(seed=1)
    energy, propose, rungs = LocalEnergy(mlm), MaskedConditionals(mlm), torch.tensor([1.0, 3.0])
    start, free = texts(mlm, (3,) * 8)
    at = ladder(rungs, 4)
    swaps = [replica_exchange(energy, temperatures=rungs)]
    plain, fast = (
        records(make(energy, propose, temperature=at), start, free, between=swaps)
        for make in (metropolis_hastings, fast_metropolis_hastings)
    )
    assert_same_chain(fast, plain)
    assert any(bool(r.between[0].moved.any()) for r in fast)


# Going on, and caches that could be stale


def test_going_on_from_a_plain_state_gives_the_same_chain():
    mlm = TinyMLM(seed=4)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    start, free = texts(mlm)
    plan, rng = Plan(sweeps=6, burn_in=0), generator()
    whole, middle = [], None
    for record in run_chains(
        fast_metropolis_hastings(energy, propose), start, free, plan=plan, rng=rng
    ):
        whole.append(record)
        middle = rng.get_state() if record.sweep == 2 else middle
    state = ChainState(*(t.clone() for t in whole[2].state))
    rng.set_state(middle)
    kernel = fast_metropolis_hastings(energy, propose)
    rest = list(run_chains(kernel, state, free, plan=plan, rng=rng, first=3))
    assert_same_chain(rest, whole[3:])


@pytest.mark.slow
def test_one_kernel_serves_two_chains_in_turn():
    mlm = TinyMLM(seed=4)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    kernel, plan = fast_metropolis_hastings(energy, propose), Plan(sweeps=5, burn_in=0)
    starts = [texts(mlm, seed=seed) for seed in (0, 1)]
    runs = [run_chains(kernel, *start, plan=plan, rng=generator(7)) for start in starts]
    turns = list(zip(*runs, strict=True))
    for i, start in enumerate(starts):
        expected = records(metropolis_hastings(energy, propose), *start, sweeps=5, seed=7)
        assert_same_chain([turn[i] for turn in turns], expected)


def test_a_text_changed_in_place_is_seen():
    mlm = TinyMLM(seed=4)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    start, free = texts(mlm, (4,) * 6)
    fast, plain = fast_metropolis_hastings(energy, propose), metropolis_hastings(energy, propose)
    state = fast.init(start)
    state.tokens[:, 2] = 3
    state = ChainState(state.tokens, energy(state.tokens))
    site = free & (torch.arange(4) == 1)
    found, expected = (k.step(state, site, generator())[0] for k in (fast, plain))
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.energy, expected.energy)


class Stale(SiteCache):
    """Trusts its rows whatever the text: what a cache must not do."""

    def known(self, tokens):
        return self.fresh if tokens.shape == self.tokens.shape else super().known(tokens)


@pytest.mark.slow
def test_a_stale_cache_is_caught():
    """Must fail: by the certificates, and by the comparison of chains."""
    mlm = TinyMLM(seed=1)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    kernel = fast_metropolis_hastings(energy, propose, cache=Stale())
    found = certify(kernel, energy, every_text(mlm, time=2))
    failed = {c.name.split(" at ")[0] for c in found if not c.holds}
    assert {"bookkeeping", "reversible", "invariant"} <= failed
    start, free = texts(mlm)
    expected = records(metropolis_hastings(energy, propose), start, free)
    with pytest.raises(AssertionError):
        assert_same_chain(records(kernel, start, free), expected)


def test_init_forgets_rows_of_other_weights():
    mlm = TinyMLM(seed=4)
    energy = LocalEnergy(mlm)
    kernel = fast_metropolis_hastings(energy, MaskedConditionals(mlm))
    start, free = texts(mlm)
    kernel.init(start)
    mlm.bias = mlm.bias + torch.arange(6).double()
    state = kernel.init(start)
    torch.testing.assert_close(state.energy, energy(start))


def test_states_can_be_used_with_gradients():
    mlm = transformer()
    kernel = fast_metropolis_hastings(LocalEnergy(mlm), MaskedConditionals(mlm))
    start, free = texts(mlm)
    state, info = kernel.step(kernel.init(start), free & (torch.arange(5) == 0), generator())
    assert not any(t.is_inference() for t in (*state, *info))
    LocalEnergy(mlm)(state.tokens).sum().backward()
    assert mlm.bias.grad.abs().sum() > 0


# Certificates


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("early", [None, 1])
def test_the_transition_matrix_is_that_of_the_plain_kernel(early, block):
    mlm = TinyMLM(seed=1, scale=1.0)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    states = every_text(mlm, time=3)
    fast = fast_metropolis_hastings(energy, propose, sites_a_round=early)
    for sites in itertools.combinations(range(3), block):
        at = torch.zeros(3).bool().index_fill(0, torch.tensor(sites), True)
        found = transitions(fast, states, at)
        expected = transitions(metropolis_hastings(energy, propose), states, at)
        torch.testing.assert_close(found.matrix, expected.matrix, rtol=0, atol=1e-9)
        assert found.misreported < 1e-9


# How much the model is asked


def rows_of(kernel: Kernel, mlm, state, positions, seed=0):
    mlm.reset()
    after, info = kernel.step(state, positions, generator(seed))
    return after, info, mlm.rows


def test_self_proposals_are_free_and_a_new_word_costs_the_other_sites():
    mlm = CountedMlm(TinyMLM(words=7, seed=0))
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    start, free = texts(mlm, (6,) * 20)
    kernel = fast_metropolis_hastings(energy, propose)
    state = kernel.init(start)
    assert mlm.rows == 20 * 6
    for seed, site in enumerate([0, 3, 3, 5, 1]):
        at = free & (torch.arange(6) == site)
        state, info, rows = rows_of(kernel, mlm, state, at, seed)
        assert 0 < info.repeated.sum() < 20
        assert rows == 5 * int((~info.repeated).sum())
    at = free & (torch.arange(6) < 2)
    state, info, rows = rows_of(kernel, mlm, state, at)
    both = int((~info.repeated).sum())
    assert 20 + 5 * both <= rows <= 20 + 6 * both  # one row each for the block, then energies


@pytest.mark.slow
def test_early_rejection_asks_less():
    mlm = CountedMlm(TinyMLM(words=6, seed=0, scale=3.0))
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm, temperature=3.0)
    start, free = texts(mlm, (8,) * 10)
    asked = {}
    for early in (None, 4, 1):
        kernel = fast_metropolis_hastings(energy, propose, sites_a_round=early)
        mlm.reset()
        records(kernel, start, free, sweeps=4)
        asked[early] = mlm.rows
    assert asked[1] < asked[4] < 0.95 * asked[None]


def test_the_cache_keeps_what_fits():
    mlm = CountedMlm(TinyMLM(words=3, seed=0))
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm)
    start, free = texts(mlm, (6,) * 20)
    each = 2 * 6 * 6 * 8  # twice 6 sites of 6 tokens in float64
    asked = []
    for chains in (20, 10, 0):
        cache = SiteCache(limit=chains * each + 1)
        kernel = fast_metropolis_hastings(energy, propose, cache=cache)
        state = kernel.init(start)
        assert len(cache.logits) == chains
        *_, rows = rows_of(kernel, mlm, state, free & (torch.arange(6) == 2))
        asked.append(rows)
    assert asked[0] < asked[1] < asked[2]


def test_rows_of_like_lengths_are_packed_together():
    class Widths(CountedMlm):
        def logits(self, tokens, masked, owner):
            widths.append(tuple(tokens.shape))
            return super().logits(tokens, masked, owner)

    widths: list[tuple[int, int]] = []
    mlm = Widths(TinyMLM(seed=0))
    start, _ = texts(mlm, (2, 9, 2, 9))
    start[0, :2], start[2, :2] = 3, 4  # equal rows would be computed once
    found = LocalEnergy(mlm, rows=4)(start)
    assert widths[0] == (4, 2) and sum(rows for rows, _ in widths) == 22
    alone = [LocalEnergy(TinyMLM(seed=0))(row[row != 0][None]).item() for row in start]
    torch.testing.assert_close(found, torch.tensor(alone).double())


# Parts


def test_sites_come_nearest_first():
    sites = torch.tensor([[1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]]).bool()
    changed = torch.tensor([[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    found = [rows.int().tolist() for rows in nearest_first(sites, changed, 2)]
    assert found == [
        [[0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1]],
        [[0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]],
        [[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    ]
    assert list(nearest_first(sites[:0], changed[:0], 2)) == []


def test_the_largest_accepted_energy_is_the_acceptance_turned_round():
    energy, log_u, forward, reverse = torch.tensor([[7.0], [-0.25], [-1.0], [-2.5]]).double()
    new = Proposed(torch.zeros(1, 1).long(), forward, reverse)
    limit = largest_accepted(energy, new, log_u, 2.0).item()
    assert math.isclose(limit, 7.0 + 2.0 * (-2.5 + 1.0 + 0.25), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("energy", "size", "sentence"),
    [
        (LocalEnergy, 0, "sites_a_round=0 must be at least 1"),
        (RawEnergy, 2, "the terms of RawEnergy with weight 1.0 may be negative"),
        (lambda m: WeightedSum([(-2.0, LocalEnergy(m))]), 2, "LocalEnergy with weight -2.0"),
    ],
)
def test_early_rejection_needs_terms_that_are_never_negative(energy, size, sentence):
    mlm = TinyMLM()
    with pytest.raises(ValueError, match=sentence):
        fast_metropolis_hastings(energy(mlm), MaskedConditionals(mlm), sites_a_round=size)
