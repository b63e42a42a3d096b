"""Kernels against plain loops: whole transition matrices of small chains (thesis, Sec. 6.3)."""

import functools
import itertools
import math

import pytest
import torch
from torch import nn

from softbeam import exact
from softbeam.exact import Space
from softbeam.sampling.certificates import target, transitions
from softbeam.sampling.energies import Constrained, LocalEnergy, RawEnergy, Tempered
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import (
    degenerate_gibbs,
    exact_gibbs,
    ladder,
    log_acceptance,
    log_uniform,
    metropolis_hastings,
    replica_exchange,
)
from softbeam.sampling.proposals import MaskedConditionals, UniformProposals
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.types import Proposed

INF = float("inf")
MLM = TinyMLM(seed=1)
STATES = every_text(MLM, time=2)
SITES = [[True, False], [False, True]]
SETS = [*SITES, [True, True]]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def each(energy):
    """{text: its energy, computed alone}"""
    return {tuple(row): energy(torch.tensor([row])).item() for row in STATES.tolist()}


@functools.cache
def plain_q(row, masked):
    """{text: q(text; row)} over all texts that differ at the masked positions alone."""
    cells = MLM.logits(torch.tensor([row]), torch.tensor([masked]), torch.tensor([0])).tolist()
    law = {}
    for words in itertools.product((3, 4, 5), repeat=sum(masked)):
        drawn, p = iter(words), 1.0
        for cell, word in zip(cells, words, strict=True):
            p *= math.exp(cell[word]) / sum(math.exp(cell[v]) for v in (3, 4, 5))
        law[tuple(next(drawn) if m else v for v, m in zip(row, masked, strict=True))] = p
    return law


def plain_matrix(masked, accept):
    """P by loops: q(y'; y) accept(y, y', q both ways), the rest stays."""
    rows = [tuple(row) for row in STATES.tolist()]
    P = torch.zeros(len(rows), len(rows)).double()
    for i, y in enumerate(rows):
        for new, forward in plain_q(y, tuple(masked)).items():
            j = rows.index(new)
            if i != j:
                reverse = plain_q(new, tuple(masked))[y]
                P[i, j] = forward * accept(y, new, forward, reverse)
        P[i, i] = 1 - P[i].sum()
    return P


def found(kernel, masked):
    result = transitions(kernel, STATES, torch.tensor(masked))
    assert result.outside.max() == 0 and result.misreported < 1e-9
    return result.matrix


def assert_reversible(P, energy):
    pi = target(energy, STATES)
    torch.testing.assert_close(P.sum(-1), torch.ones(len(P)).double())
    torch.testing.assert_close(pi[:, None] * P, (pi[:, None] * P).T)


# Metropolis-Hastings


@pytest.mark.slow
@pytest.mark.parametrize("masked", SETS)
@pytest.mark.parametrize("energy", [RawEnergy(MLM), LocalEnergy(MLM)], ids=["raw", "local"])
def test_metropolis_hastings_equals_plain_loops(energy, masked):
    e = each(energy)

    def accept(y, new, forward, reverse):
        return min(1.0, math.exp(e[y] - e[new]) * reverse / forward)

    P = found(metropolis_hastings(energy, MaskedConditionals(MLM)), masked)
    torch.testing.assert_close(P, plain_matrix(masked, accept), rtol=0, atol=1e-10)
    assert_reversible(P, energy)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [SITES[0], SETS[2]])
@pytest.mark.parametrize(
    "propose",
    [
        MaskedConditionals(MLM, temperature=0.5),
        MaskedConditionals(MLM, nucleus=0.5, epsilon=0.1),
        UniformProposals(MLM.allowed),
    ],
    ids=["temperature", "mixture", "uniform"],
)
def test_other_proposals_have_the_same_target(propose, masked):
    energy = LocalEnergy(MLM)
    assert_reversible(found(metropolis_hastings(energy, propose), masked), energy)


@pytest.mark.parametrize("temperature", [0.3, torch.full((9,), 2.0)])
def test_the_target_temperature_divides_the_energy(temperature):
    energy, at = RawEnergy(MLM), float(torch.as_tensor(temperature).max())
    propose = UniformProposals(MLM.allowed)
    cold = metropolis_hastings(energy, propose, temperature=at)
    P = found(cold, [True, True])
    assert_reversible(P, Tempered(energy, at))
    state, _ = cold.step(cold.init(STATES), torch.ones(9, 2).bool(), generator())
    torch.testing.assert_close(state.energy, energy(state.tokens))  # E itself is carried
    rows = metropolis_hastings(energy, propose, temperature=temperature)
    other, _ = rows.step(rows.init(STATES), torch.ones(9, 2).bool(), generator())
    assert torch.equal(other.tokens, state.tokens)


@pytest.mark.parametrize(
    ("old", "new", "forward", "reverse", "expected"),
    [
        (3.0, 1.0, -1.0, -2.0, 0.0),
        (1.0, 3.0, -1.0, -2.0, -3.0),
        (1.0, 3.0, -2.0, -1.0, -1.0),
        (1.0, 1.0, -1.0, -INF, -INF),
        (1.0, INF, -1.0, -1.0, -INF),
        (INF, 1.0, -1.0, -1.0, 0.0),
        (INF, 1.0, -1.0, -INF, 0.0),
        (INF, INF, -1.0, -1.0, -INF),
        (INF, INF, -INF, -INF, -INF),
        (1.0, 1.0, -INF, -INF, -INF),
        (1e300, -1e300, -700.0, -1e-300, 0.0),
    ],
)
def test_log_acceptance_is_never_nan(old, new, forward, reverse, expected):
    values = (torch.tensor([v]).double() for v in (old, new, forward, reverse))
    assert log_acceptance(*values).tolist() == [expected]


def always(new, *, forward=-1.0, reverse=-1.0):
    """Proposes the same text, with these probabilities."""

    def propose(tokens, positions, rng):
        ones = torch.ones(len(tokens)).double()
        return Proposed(torch.tensor(new).expand_as(tokens), ones * forward, ones * reverse)

    return propose


def energy_of_first(tokens):
    """10 times the first token."""
    return 10.0 * tokens[:, 0].double()


def test_flags_tell_accepted_repeated_novel_and_stuck_apart():
    texts = torch.tensor([[4, 4], [3, 4], [5, 4]])
    kernel = metropolis_hastings(energy_of_first, always([4, 4]))
    state, info = kernel.step(kernel.init(texts), torch.ones(3, 2).bool(), generator())
    assert info.log_accept.tolist() == [0.0, -10.0, 0.0]
    assert info.repeated.tolist() == [True, False, False]
    assert info.accepted.tolist() == [True, False, True]
    assert info.moved.tolist() == [False, False, True]
    assert info.stuck.tolist() == [False, False, False]
    assert state.tokens.tolist() == [[4, 4], [3, 4], [4, 4]]
    assert state.energy.tolist() == [40.0, 30.0, 40.0]

    kernel = metropolis_hastings(energy_of_first, always([4, 4], reverse=-INF))
    state, info = kernel.step(kernel.init(texts), torch.ones(3, 2).bool(), generator())
    assert info.stuck.all() and not info.moved.any()
    assert torch.equal(state.tokens, texts)


def test_a_repetition_is_accepted_whatever_its_numbers_say():
    kernel = metropolis_hastings(energy_of_first, always([4, 4], forward=0.0, reverse=-50.0))
    for seed in range(20):
        _, info = kernel.step(
            kernel.init(torch.tensor([[4, 4]])), torch.ones(1, 2).bool(), generator(seed)
        )
        assert info.accepted.all() and info.log_accept.tolist() == [0.0]


def test_uniform_numbers_are_fine_enough():
    """In float32 one in 2^24 is 0, and would accept whatever is possible at all."""
    u = log_uniform(torch.zeros(1000), generator()).exp()
    assert u.dtype == torch.float64 and (u * 2**24 % 1 != 0).all()


def test_a_constraint_is_never_left():
    """Proposals that know nothing of it are refused by its infinite energy."""
    allowed = torch.zeros(9, 2, 6, dtype=torch.bool)
    allowed[:, 0, 3:5] = True
    energy = Constrained(LocalEnergy(MLM), text=STATES, allowed=allowed)
    kernel = metropolis_hastings(energy, MaskedConditionals(MLM))
    inside = STATES[:, 0] < 5
    state = kernel.init(STATES)
    assert torch.equal(state.energy.isfinite(), inside)
    for seed in range(30):
        state, _ = kernel.step(state, torch.tensor(SETS[seed % 3]).expand(9, 2), generator(seed))
        assert torch.equal(state.tokens[inside, 1], STATES[inside, 1])
        assert (state.tokens[inside, 0] < 5).all()


def test_an_energy_that_is_not_a_number_is_an_error():
    for value in (float("nan"), -INF):
        kernel = metropolis_hastings(lambda t, v=value: torch.full((len(t),), v), always([4, 4]))
        with pytest.raises(ValueError, match="energy: .* for row 0"):
            kernel.init(STATES)


@pytest.mark.parametrize("temperature", [0.0, -1.0, torch.tensor([1.0, 0.0])])
def test_temperatures_are_above_zero(temperature):
    energy, propose = LocalEnergy(MLM), MaskedConditionals(MLM)
    for build in (
        lambda: metropolis_hastings(energy, propose, temperature=temperature),
        lambda: exact_gibbs(energy, allowed=MLM.allowed, temperature=temperature),
    ):
        with pytest.raises(ValueError, match="temperature="):
            build()


class Net(TinyMLM):
    def __init__(self, **options):
        super().__init__(**options)
        self.out = nn.Parameter(self.out)


def every_kernel(mlm, energy, **options):
    propose = MaskedConditionals(mlm, **options)
    return {
        "mh": metropolis_hastings(energy, propose),
        "degenerate": degenerate_gibbs(propose, energy),
        "gibbs": exact_gibbs(energy, allowed=mlm.allowed),
    }


@pytest.mark.parametrize("name", ["mh", "degenerate", "gibbs"])
def test_conformance(name):
    """Same seed, same step; arguments stay; no graph is kept; an idle chain does not move."""
    mlm = Net(seed=1)
    kernel = every_kernel(mlm, LocalEnergy(mlm))[name]
    tokens, positions = STATES.clone(), torch.tensor(SITES[0]).repeat(9, 1)
    positions[4:] = False
    state = kernel.init(tokens)
    first, again = (kernel.step(state, positions, generator(5)) for _ in range(2))
    for a, b in zip([*first[0], *first[1]], [*again[0], *again[1]], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(tokens, STATES) and torch.equal(state.tokens, STATES)
    assert not first[0].energy.requires_grad and not state.energy.requires_grad
    torch.testing.assert_close(first[0].energy, LocalEnergy(mlm)(first[0].tokens).detach())
    assert torch.equal(first[0].tokens[4:], STATES[4:]) and not first[1].moved[4:].any()
    assert first[1].repeated[4:].all()


@pytest.mark.parametrize("name", ["mh", "degenerate", "gibbs"])
def test_chains_keep_their_sources(name):
    """Many chains of many sources at once: each moves as its own source says."""
    mlm, owner = TinyMLM(sources=2, seed=2), torch.tensor([0, 1] * 3)
    energy = LocalEnergy(mlm, owner=owner)
    kernel = every_kernel(mlm, energy, owner=owner)[name]
    state = kernel.init(STATES[:6])
    for seed in range(6):
        state, _ = kernel.step(state, torch.tensor(SITES[seed % 2]).expand(6, 2), generator(seed))
        torch.testing.assert_close(state.energy, energy(state.tokens))
    for source in (0, 1):
        rows = torch.full((9,), source)
        bound = LocalEnergy(mlm, owner=rows)
        one = every_kernel(mlm, bound, owner=rows)[name]
        alone = TinyMLM(sources=2, seed=2)
        alone.source = alone.source[source:]
        same = every_kernel(alone, LocalEnergy(alone))[name]
        positions = torch.tensor(SITES[0]).expand(9, 2)
        a, b = (k.step(k.init(STATES), positions, generator(3))[0] for k in (one, same))
        assert torch.equal(a.tokens, b.tokens)
        torch.testing.assert_close(a.energy, b.energy)


# Degenerate and exact Gibbs


@pytest.mark.parametrize("masked", SETS)
def test_degenerate_gibbs_takes_every_proposal_and_is_not_invariant(masked):
    energy, propose = LocalEnergy(MLM), MaskedConditionals(MLM)
    P = found(degenerate_gibbs(propose, energy), masked)
    torch.testing.assert_close(P, plain_matrix(masked, lambda *_: 1.0))
    pi = target(energy, STATES)
    assert (pi @ P - pi).abs().sum() > 0.05


@pytest.mark.parametrize("site", [0, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_exact_gibbs_draws_from_the_true_conditional(site, temperature):
    energy = RawEnergy(MLM)
    P = found(exact_gibbs(energy, allowed=MLM.allowed, temperature=temperature), SITES[site])
    space = Space(vocab=6, time=2, forbidden=(0, 1, 2))
    law = exact.conditionals(lambda t: -energy(t) / temperature, STATES, space)[:, site].exp()
    rows = STATES.tolist()
    for i, j in itertools.product(range(9), repeat=2):
        same = rows[i][1 - site] == rows[j][1 - site]
        expected = law[i, rows[j][site]].item() if same else 0.0
        assert P[i, j].item() == pytest.approx(expected, abs=1e-12)
    assert_reversible(P, Tempered(energy, temperature))


def test_exact_gibbs_takes_one_position_and_what_is_allowed():
    energy = RawEnergy(MLM)
    kernel = exact_gibbs(energy, allowed=MLM.allowed)
    with pytest.raises(ValueError, match="positions: 2 in one chain"):
        kernel.step(kernel.init(STATES), torch.ones(9, 2).bool(), generator())
    table = torch.zeros(9, 2, 6, dtype=torch.bool)
    table[:, 0, 4] = True
    kernel = exact_gibbs(energy, allowed=table)
    state, _ = kernel.step(kernel.init(STATES), torch.tensor(SITES[0]).expand(9, 2), generator())
    assert (state.tokens[:, 0] == 4).all() and torch.equal(state.tokens[:, 1], STATES[:, 1])


# Replica exchange


def test_a_swap_is_reversible_for_the_product_of_the_rungs():
    """All 81 ensembles of two texts, exactly."""
    energy, temperatures = LocalEnergy(MLM), torch.tensor([1.0, 2.5]).double()
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    kernel = replica_exchange(energy, temperatures=temperatures)
    result = transitions(kernel, STATES[pairs], torch.zeros(2).bool())
    assert result.misreported < 1e-9
    E = energy(STATES)[pairs] / temperatures
    pi = (-E.sum(-1)).softmax(0)
    flow = pi[:, None] * result.matrix
    torch.testing.assert_close(flow, flow.T)
    e = energy(STATES).tolist()
    for k, (i, j) in enumerate(pairs.tolist()):
        swapped = math.exp((e[i] + e[j] / 2.5) - (e[j] + e[i] / 2.5))
        expected = 1.0 if i == j else min(1.0, swapped)
        assert result.matrix[k, 9 * j + i].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("first", [0, 1])
def test_texts_are_exchanged_within_pairs_and_nowhere_else(first):
    temperatures = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    texts = torch.arange(20).view(10, 2)
    kernel = replica_exchange(energy_of_first, temperatures=temperatures, first=first)
    lower = range(first, 4, 2)
    swaps = set()
    for seed in range(40):
        old = kernel.init(texts[torch.randperm(10, generator=generator(seed))])
        new, info = kernel.step(old, torch.zeros(10, 2).bool(), generator(seed))
        torch.testing.assert_close(new.energy, energy_of_first(new.tokens))
        for c, r in itertools.product(range(2), range(5)):
            row = 5 * c + r
            partner = row + 1 if r in lower else row - 1 if r - 1 in lower else row
            source = partner if info.accepted[row] else row
            assert torch.equal(new.tokens[row], old.tokens[source])
            assert info.accepted[row] == info.accepted[partner]
            assert info.moved[row] == (info.accepted[row] and partner != row)
            swaps |= {r} if info.moved[row] else set()
    assert swaps == {r for i in lower for r in (i, i + 1)}


def test_the_rungs_of_replica_exchange_are_checked():
    two = torch.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match="first=1: no pair of the 2 rungs"):
        replica_exchange(energy_of_first, temperatures=two, first=1)
    kernel = replica_exchange(energy_of_first, temperatures=two)
    with pytest.raises(ValueError, match="9 chains are not whole ensembles of 2 rungs"):
        kernel.step(kernel.init(STATES), torch.zeros(9, 2).bool(), generator())
    assert ladder(two, 3).tolist() == [1.0, 2.0] * 3


@pytest.mark.parametrize("make", [metropolis_hastings, fast_metropolis_hastings])
def test_a_step_tells_what_it_proposed(make):
    """Also what it rejected: the proposals are those that the same random numbers give."""
    energy, propose = LocalEnergy(MLM), MaskedConditionals(MLM, temperature=3.0)
    kernel, rng = make(energy, propose), generator(2)
    state, rejected = kernel.init(STATES), 0
    for step in range(20):
        positions = torch.tensor(SETS[step % 3]).expand(len(STATES), -1)
        again = torch.Generator()
        again.set_state(rng.get_state())
        after, info = kernel.step(state, positions, rng)
        assert torch.equal(info.proposed, propose(state.tokens, positions, again).tokens)
        kept = torch.where(info.accepted[:, None], info.proposed, state.tokens)
        assert torch.equal(after.tokens, kept)
        rejected += int((~info.accepted).sum())
        state = after
    assert rejected > 10
