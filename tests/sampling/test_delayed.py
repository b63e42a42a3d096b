"""Delayed acceptance: exact by enumeration, and cheaper than a whole energy for each proposal."""

import pytest
import torch

from softbeam.sampling.certificates import transitions
from softbeam.sampling.chains import ConstantBlocks, Plan, run_chains
from softbeam.sampling.delayed import delayed_metropolis_hastings
from softbeam.sampling.energies import Constrained, LocalEnergy, RawEnergy, WeightedSum
from softbeam.sampling.fast import fast_metropolis_hastings
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals, UniformProposals
from softbeam.sampling.terms import HammingDistance
from softbeam.sampling.tiny import CountedMlm, TinyMLM, every_text
from softbeam.types import ChainState

MLM = TinyMLM(words=2, seed=0, scale=1.0)
TEXTS = every_text(MLM, time=3)


def composed(mlm):
    near = HammingDistance(TEXTS[:1])

    def distance(tokens):
        return near(tokens).double()

    return WeightedSum([(0.7, LocalEnergy(mlm)), (1.3, distance)])


def at(*sites: int) -> torch.Tensor:
    return torch.zeros(3, dtype=torch.bool).index_fill(0, torch.tensor(sites), True)


@pytest.mark.parametrize("make", [LocalEnergy, RawEnergy, composed])
@pytest.mark.parametrize("proposals", [MaskedConditionals, lambda m: UniformProposals(m.allowed)])
def test_every_flow_is_balanced(make, proposals):
    energy = make(MLM)
    kernel = delayed_metropolis_hastings(energy, proposals(MLM))
    moves = transitions(kernel, TEXTS, at(0, 2))
    flow = (-energy(TEXTS)).softmax(0)[:, None] * moves.matrix
    torch.testing.assert_close(flow, flow.T, rtol=0, atol=1e-9)
    assert moves.misreported < 1e-6 and float((flow - flow.diag().diag()).sum()) > 0.01


def test_acceptance_is_the_product_of_both_factors():
    """A plain computation of both factors, from energies of all sites one by one."""
    energy = LocalEnergy(MLM)
    propose = MaskedConditionals(MLM)
    matrix = transitions(delayed_metropolis_hastings(energy, propose), TEXTS, at(0, 2)).matrix
    terms = -energy.scores(TEXTS).double()
    log_q = propose.log_probs(TEXTS, at(0, 2).expand(TEXTS.shape)).double().unflatten(0, (-1, 2))
    less = 0
    for i, y in enumerate(TEXTS):
        for j, z in enumerate(TEXTS):
            if y[1] != z[1] or i == j:
                continue
            forward = log_q[i, 0, z[0]] + log_q[i, 1, z[2]]
            back = log_q[i, 0, y[0]] + log_q[i, 1, y[2]]
            block = terms[i, [0, 2]].sum() - terms[j, [0, 2]].sum() + back - forward
            rest = terms[i, 1] - terms[j, 1]
            a = block.clamp_max(0).exp() * rest.clamp_max(0).exp()
            torch.testing.assert_close(matrix[i, j], forward.exp() * a, rtol=0, atol=1e-10)
            less += int(a < (block + rest).clamp_max(0).exp() - 1e-3)
    assert less > 5, "another kernel than metropolis_hastings"


def test_temperatures_of_target_and_constraints():
    temperature = 1.7
    energy = LocalEnergy(MLM)
    kernel = delayed_metropolis_hastings(energy, MaskedConditionals(MLM), temperature=temperature)
    flow = (-energy(TEXTS) / temperature).softmax(0)[:, None] * transitions(
        kernel, TEXTS, at(0, 1)
    ).matrix
    torch.testing.assert_close(flow, flow.T, rtol=0, atol=1e-9)
    allowed = MLM.allowed.expand(1, 3, -1).clone()
    allowed[:, 0, int(TEXTS[0, 0])] = False  # no proposal with this word is accepted
    bound = Constrained(energy, text=TEXTS[-1:], allowed=allowed)
    kernel = delayed_metropolis_hastings(bound, MaskedConditionals(MLM))
    state, rng = kernel.init(TEXTS[-1:]), torch.Generator().manual_seed(0)
    for _ in range(30):
        state, _ = kernel.step(state, at(0, 1)[None], rng)
        assert state.tokens[0, 0] != TEXTS[0, 0]
    torch.testing.assert_close(state.energy, energy(state.tokens))
    outside = ChainState(TEXTS[:1], torch.tensor([float("inf")], dtype=torch.float64))
    inside, info = kernel.step(outside, at(0, 1)[None], torch.Generator().manual_seed(3))
    assert not inside.energy.isnan().any() and not info.log_accept.isnan().any()


def test_refusals_cost_the_rows_of_the_block():
    torch.manual_seed(0)
    mlm = CountedMlm(TinyMLM(words=8, seed=0, scale=2.0))
    tokens = torch.randint(3, 11, (6, 12))
    free = torch.ones_like(tokens, dtype=torch.bool)
    energy, propose = LocalEnergy(mlm), MaskedConditionals(mlm, temperature=2.0)
    plan, asked = Plan(sweeps=4, burn_in=0, blocks=ConstantBlocks(size=3)), {}
    for make in (metropolis_hastings, fast_metropolis_hastings, delayed_metropolis_hastings):
        mlm.reset()
        rng = torch.Generator().manual_seed(0)
        (*_, last) = run_chains(make(energy, propose), tokens, free, plan=plan, rng=rng)
        asked[make] = mlm.rows
        torch.testing.assert_close(last.state.energy, energy(last.state.tokens))
    assert asked[delayed_metropolis_hastings] < 0.8 * asked[fast_metropolis_hastings]


def test_an_energy_without_sites_is_refused():
    with pytest.raises(ValueError, match="is no sum over sites"):
        delayed_metropolis_hastings(HammingDistance(TEXTS[:1]), MaskedConditionals(MLM))
