"""Chains: starts, blocks, sweeps, annealing, burn-in; the same seed, the same chain."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as st

from softbeam.sampling.certificates import target
from softbeam.sampling.chains import (
    ConstantBlocks,
    LinearBlocks,
    Plan,
    RandomBlocks,
    Record,
    fill_greedily,
    fill_in_turn,
    fill_randomly,
    partition,
    run_chains,
    sweep_once,
    trace,
)
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.kernels import (
    degenerate_gibbs,
    ladder,
    metropolis_hastings,
    replica_exchange,
)
from softbeam.sampling.proposals import MaskedConditionals, ReducibleWarning
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.schedules import Linear
from softbeam.types import ChainState, Kernel, StepInfo

SEP, WORDS = 2, (3, 4, 5)
TEXTS = torch.tensor([[SEP, 3, 4, 5, SEP], [SEP, 5, 5, SEP, 0], [SEP, 4, SEP, 0, 0]])
FREE = TEXTS >= 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Starts


def cells(mlm, row, masked):
    return mlm.logits(torch.tensor([row]), torch.tensor([masked]), torch.tensor([0])).tolist()


def test_greedy_start_is_the_likeliest_word_of_each_masked_position():
    mlm = TinyMLM(seed=4)
    found = fill_greedily(MaskedConditionals(mlm), TEXTS, FREE)
    assert torch.equal(found[~FREE], TEXTS[~FREE])
    for i, row in enumerate(TEXTS.tolist()):
        best = [max(WORDS, key=lambda v: c[v]) for c in cells(mlm, row, FREE[i].tolist())]
        assert found[i][FREE[i]].tolist() == best
    assert torch.equal(fill_greedily(MaskedConditionals(mlm), found.where(~FREE, 1), FREE), found)


def test_gaps_are_filled_and_the_rest_of_a_given_text_stays():
    gaps = torch.zeros_like(FREE)
    gaps[0, 2] = True
    mlm = TinyMLM()
    for start in (
        fill_greedily(MaskedConditionals(mlm), TEXTS, gaps),
        fill_in_turn(MaskedConditionals(mlm), TEXTS, gaps, generator()),
        fill_randomly(TEXTS, gaps, mlm.allowed, generator()),
    ):
        assert torch.equal(start[~gaps], TEXTS[~gaps]) and start[0, 2] in WORDS


def test_filling_in_turn_follows_its_law():
    """Two masks in a random order, each drawn given what is there: chi-square, 8 degrees."""
    mlm, n = TinyMLM(seed=5), 5000
    law = Counter()
    for first in (0, 1):
        p = [math.exp(x) for x in cells(mlm, [1, 1], [True, True])[first]]
        for a in WORDS:
            row = [a, a]  # what stands at the masked one is not read
            q = [math.exp(x) for x in cells(mlm, row, [first == 1, first == 0])[0]]
            for b in WORDS:
                pair = (a, b) if first == 0 else (b, a)
                law[pair] += p[a] / sum(p[3:]) * q[b] / sum(q[3:]) / 2
    hidden = torch.ones(n, 2).bool()
    found = fill_in_turn(MaskedConditionals(mlm), torch.ones(n, 2).long(), hidden, generator())
    counts = Counter(map(tuple, found.tolist()))
    assert sum(law.values()) == pytest.approx(1)
    assert sum((counts[y] - n * p) ** 2 / (n * p) for y, p in law.items()) < 26.1
    assert set(counts) <= set(law)


def test_random_start_is_uniform_over_what_is_allowed():
    n = 3000
    allowed = torch.zeros(n, 2, 6).bool()
    allowed[:, 0, 3:], allowed[:, 1, 4:] = True, True
    found = fill_randomly(torch.zeros(n, 2).long(), torch.ones(n, 2).bool(), allowed, generator())
    counts = Counter(map(tuple, found.tolist()))
    assert sorted(counts) == list(itertools.product((3, 4, 5), (4, 5)))
    assert sum((c - n / 6) ** 2 / (n / 6) for c in counts.values()) < 20.5  # 5 degrees


# Blocks


@pytest.mark.slow
@given(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["random", "sequential"]),
)
def test_blocks_partition_the_free_positions(free, data, order):
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=len(free), max_size=len(free)))
    blocks = partition(torch.tensor(free), torch.tensor(sizes), order=order, rng=generator())
    assert torch.equal(blocks.sum(0), torch.tensor(free).long())
    for chain, (row, size) in enumerate(zip(free, sizes, strict=True)):
        n = sum(row)
        full, rest = divmod(n, size)
        held = [size] * full + [rest] * (rest > 0)
        assert blocks[:, chain].sum(-1).tolist() == held + [0] * (len(blocks) - len(held))
        if order == "sequential":
            order_found = [t for block in blocks[:, chain] for t in block.nonzero()[:, 0].tolist()]
            assert order_found == [t for t, f in enumerate(row) if f]
    most = max(math.ceil(sum(row) / size) for row, size in zip(free, sizes, strict=True))
    assert len(blocks) == most


def test_random_order_is_a_uniform_permutation_of_each_chain():
    n = 6000
    blocks = partition(torch.ones(n, 3).bool(), torch.ones(n).long(), rng=generator())
    orders = Counter(map(tuple, blocks.int().argmax(-1).T.tolist()))
    assert len(orders) == 6
    assert sum((c - n / 6) ** 2 / (n / 6) for c in orders.values()) < 20.5


def test_blocks_are_checked():
    free, one = torch.ones(1, 3).bool(), torch.ones(1).long()
    with pytest.raises(ValueError, match=r"size=\[0\]"):
        partition(free, 0 * one, rng=generator())
    with pytest.raises(Exception, match="order|backwards"):
        partition(free, one, order="backwards", rng=generator())


def test_sizes_of_blocks_by_the_sweep():
    free = torch.tensor([9, 4, 1, 0])
    assert ConstantBlocks(size=3)(free, 5, 10, generator()).tolist() == [3, 3, 3, 3]
    linear = [LinearBlocks()(free, s, 9, generator()).tolist() for s in range(9)]
    assert [row[0] for row in linear] == [5, 4, 4, 4, 3, 2, 2, 2, 1]  # 5 - s / 2
    assert linear[0] == [5, 2, 1, 0] and [row[1] for row in linear][-1] == 1
    assert LinearBlocks(start=7)(free, 0, 9, generator()).tolist() == [7, 7, 7, 7]
    assert LinearBlocks()(free, 0, 1, generator()).tolist() == [5, 2, 1, 0]
    many = torch.full((4000,), 4)
    counts = Counter(RandomBlocks()(many, 0, 1, generator()).tolist())
    assert sorted(counts) == [1, 2, 3, 4] and min(counts.values()) > 900
    assert set(RandomBlocks(largest=2)(many, 0, 1, generator()).tolist()) == {1, 2}


# Runs


def sampler(mlm, **options):
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm, **options)

    def at(temperature):
        return metropolis_hastings(energy, propose, temperature=temperature)

    return at, degenerate_gibbs(propose, energy), energy


PLAN = Plan(
    sweeps=6,
    burn_in=3,
    forced=1,
    blocks=LinearBlocks(),
    temperature=Linear(start=1.0, slope=-0.3, floor=0.05),
)


def records(seed=0, *, plan=PLAN, mlm=None, **options):
    at, warm_up, _ = sampler(mlm or TinyMLM())
    return list(
        run_chains(at, TEXTS, FREE, plan=plan, rng=generator(seed), warm_up=warm_up, **options)
    )


def test_the_same_seed_gives_the_same_chain():
    first, again, other = records(1), records(1), records(2)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.state.tokens, b.state.tokens)
        assert torch.equal(a.state.energy, b.state.energy)
        assert all(map(torch.equal, a.counts, b.counts))
    assert any(
        not torch.equal(a.state.tokens, b.state.tokens) for a, b in zip(first, other, strict=True)
    )


def test_a_chain_goes_on_from_a_record_as_if_it_had_not_stopped():
    whole = records(3)
    at, warm_up, _ = sampler(TinyMLM())
    rng = generator(3)
    some = run_chains(at, TEXTS, FREE, plan=PLAN, rng=rng, warm_up=warm_up)
    stopped = [next(some) for _ in range(3)]
    later = torch.Generator()
    later.set_state(rng.get_state())
    rest = run_chains(at, stopped[-1].state, FREE, plan=PLAN, rng=later, warm_up=warm_up, first=3)
    for a, b in zip(whole, [*stopped, *rest], strict=True):
        assert a.sweep == b.sweep and torch.equal(a.state.tokens, b.state.tokens)
        assert torch.equal(a.state.energy, b.state.energy)


def test_many_lengths_at_once_keep_frozen_tokens_and_true_energies():
    mlm = TinyMLM()
    energy = LocalEnergy(mlm)
    for record in records(plan=Plan(sweeps=8, burn_in=0), mlm=mlm):
        assert torch.equal(record.state.tokens[~FREE], TEXTS[~FREE])
        assert (record.state.tokens[FREE] >= 3).all()
        torch.testing.assert_close(record.state.energy, energy(record.state.tokens))
        assert record.counts.proposals.tolist() == [3, 2, 1]  # idle chains are not counted


def test_counts_and_rates():
    for record in records():
        n = record.counts
        assert torch.equal(n.accepted, n.repeated + n.novel)
        assert (n.accepted <= n.proposals).all()
        torch.testing.assert_close(n.rate("novel"), n.novel / n.proposals)
    idle = run_chains(
        sampler(TinyMLM())[0], TEXTS, FREE & False, plan=Plan(sweeps=1, burn_in=0), rng=generator()
    )
    (record,) = idle
    assert record.counts.rate("accepted").tolist() == [0.0] * 3
    assert torch.equal(record.state.tokens, TEXTS)


def test_each_flag_has_its_own_count():
    flags = [[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]  # accepted, moved, repeated, stuck
    info = StepInfo(torch.zeros(3), *torch.tensor(flags).bool())
    state = ChainState(TEXTS, torch.zeros(3))
    kernel = Kernel(lambda tokens: state, lambda state, positions, rng: (state, info))
    active = torch.ones_like(FREE)
    _, counts = sweep_once(kernel, state, [active, active, active & False], generator())
    assert counts.proposals.tolist() == [2, 2, 2]
    assert counts.accepted.tolist() == [2, 2, 0] and counts.novel.tolist() == [0, 2, 0]
    assert counts.repeated.tolist() == [2, 0, 0] and counts.stuck.tolist() == [0, 0, 2]
    found = trace([Record(0, "sample", 1.0, state, counts, ())])
    assert found.accept.tolist() == [[1, 1, 0]] and found.repeated.tolist() == [[1, 0, 0]]
    assert found.novel.tolist() == [[0, 1, 0]] and found.stuck.tolist() == [[0, 0, 1]]


def scripted(log):
    """A kernel that writes down what it is asked, and refuses."""

    def at(temperature):
        def step(state, positions, rng):
            log.append((temperature, positions.clone()))
            no = torch.zeros(len(positions)).bool()
            return state, StepInfo(state.energy, no, no, no, no)

        return Kernel(lambda tokens: ChainState(tokens, torch.zeros(len(tokens))), step)

    return at


def test_the_kernel_meets_each_free_position_once_a_sweep_at_the_sweeps_temperature():
    log = []
    plan = Plan(sweeps=4, burn_in=0, order="sequential", temperature=Linear(slope=-0.4, floor=0.1))
    assert len(list(run_chains(scripted(log), TEXTS, FREE, plan=plan, rng=generator()))) == 4
    assert [t for t, _ in log] == pytest.approx([1.0] * 3 + [0.6] * 3 + [0.2] * 3 + [0.1] * 3)
    for s in range(4):
        for k, (_, positions) in enumerate(log[3 * s : 3 * s + 3]):
            expected = torch.zeros_like(FREE)
            for chain, n in enumerate([3, 2, 1]):
                expected[chain, 1 + k] = k < n
            assert torch.equal(positions, expected)


def test_forced_sweeps_accept_everything_and_no_statistics_count_them():
    plan = Plan(sweeps=7, burn_in=4, forced=2)
    made = records(plan=plan, mlm=TinyMLM(seed=2))
    assert [r.phase for r in made] == ["forced"] * 2 + ["burn-in"] * 2 + ["sample"] * 3
    found = trace(made)
    assert (found.accept[:2] == 1).all() and not (found.accept[2:] == 1).all()
    kept = found.samples()
    assert kept.phase == ("sample",) * 3
    torch.testing.assert_close(kept.accept, found.accept[4:])
    torch.testing.assert_close(kept.energy, torch.stack([r.state.energy for r in made[4:]]))
    torch.testing.assert_close(found.accept, found.repeated + found.novel)


def test_the_trace_counts_tokens_outside_of_their_nucleus():
    mlm = TinyMLM(seed=1, scale=1.0)
    with pytest.warns(ReducibleWarning):
        stuck, _, _ = sampler(mlm, nucleus=0.4)
    mended, _, _ = sampler(mlm, nucleus=0.4, epsilon=0.1)
    texts = every_text(mlm, time=3)
    free, plan = torch.ones_like(texts).bool(), Plan(sweeps=5, burn_in=0)
    rates = [
        trace(run_chains(at, texts, free, plan=plan, rng=generator())).stuck
        for at in (stuck, mended)
    ]
    assert rates[0].mean() > 0.1 and rates[1].max() == 0


@pytest.mark.slow
def test_annealing_finds_lower_energies():
    """Thesis, Sec. 6.8."""
    mlm = TinyMLM(scale=1.0)
    at, _, energy = sampler(mlm)
    texts = every_text(mlm, time=3).repeat(4, 1)
    free = torch.ones_like(texts).bool()
    means = [
        list(run_chains(at, texts, free, plan=plan, rng=generator()))[-1].state.energy.mean()
        for plan in (
            Plan(sweeps=12, burn_in=0),
            Plan(sweeps=12, burn_in=0, temperature=Linear(slope=-0.1, floor=0.05)),
        )
    ]
    assert means[1] < means[0] - 0.3
    assert means[1] < energy(every_text(mlm, time=3)).min() + 0.5


def test_plans_are_checked():
    for options in ({"forced": 8}, {"burn_in": 34}, {"forced": -1}):
        with pytest.raises(ValueError, match="each must be at least 0 and at most the next"):
            Plan(**options)
    with pytest.raises(ValueError, match="temperature falls to -0.2.*; give it a floor"):
        Plan(temperature=Linear(slope=-0.04, floor=-1.0))  # as printed: 33 sweeps, T = 1 - 0.04 e
    at, _, _ = sampler(TinyMLM())
    with pytest.raises(ValueError, match="forced=1 sweeps need"):
        run_chains(at, TEXTS, FREE, plan=PLAN, rng=generator())
    with pytest.raises(ValueError, match="needs the kernel at each temperature"):
        run_chains(at(1.0), TEXTS, FREE, plan=PLAN, rng=generator(), warm_up=at(1.0))
    impossible = metropolis_hastings(lambda t: torch.full((len(t),), math.inf), lambda *_: None)
    with pytest.raises(ValueError, match="start: chain 0 has the energy inf"):
        run_chains(impossible, TEXTS, FREE, plan=Plan(), rng=generator())


@pytest.mark.slow
def test_parallel_tempering_samples_the_target_on_its_first_rung():
    """Chi-square of rung 0 against exp(-E), 8 degrees; rung 2 fits its own temperature instead."""
    mlm, ensembles = TinyMLM(seed=1, scale=1.0), 600
    energy, propose = LocalEnergy(mlm, rows=10**4), MaskedConditionals(mlm, rows=10**4)
    temperatures = torch.tensor([1.0, 2.0, 4.0])
    kernel = metropolis_hastings(energy, propose, temperature=ladder(temperatures, ensembles))
    swaps = [replica_exchange(energy, temperatures=temperatures, first=f) for f in (0, 1)]
    states = every_text(mlm, time=2)
    start = states[torch.arange(3 * ensembles) % 9]
    plan = Plan(sweeps=40, burn_in=20)
    made = list(run_chains(kernel, start, start >= 3, plan=plan, rng=generator(), between=swaps))
    swapped = torch.stack([torch.stack([i.accepted for i in r.between]) for r in made]).double()
    rates = swapped.unflatten(-1, (-1, 3)).mean((0, 2))
    assert (rates[0, :2] > 0.3).all() and rates[0, 2] == 0  # first 0: rungs 0 and 1
    assert (rates[1, 1:] > 0.3).all() and rates[1, 0] == 0
    for rung, at in ((0, 1.0), (2, 4.0)):
        rows = torch.cat([r.state.tokens[rung::3] for r in made[20::5]])
        counts = Counter(map(tuple, rows.tolist()))
        n, pi = len(rows), target(lambda t, at=at: energy(t) / at, states).tolist()
        fit = zip(map(tuple, states.tolist()), pi, strict=True)
        assert sum((counts[y] - n * p) ** 2 / (n * p) for y, p in fit) < 26.1
