"""Informed proposals: transition probabilities against plain loops, certificates, and rows."""

import math

import pytest
import torch

from softbeam.sampling import informed
from softbeam.sampling.certificates import certify, transitions
from softbeam.sampling.energies import LocalEnergy, RawEnergy, Tempered, WeightedSum
from softbeam.sampling.informed import informed_metropolis_hastings
from softbeam.sampling.kernels import starting_with
from softbeam.sampling.tiny import CountedMlm, TinyMLM, every_text


def conditional(mlm, text, site):
    """The probability of each token at a site, by a call of the model for this site alone."""
    masked = torch.zeros(1, len(text), dtype=torch.bool)
    masked[0, site] = True
    logits = mlm.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))[0]
    return logits.softmax(-1).tolist()


def proposal(mlm, text, words, temperature):
    """The probability of each other text, in plain loops."""
    weights = {}
    for site in range(len(text)):
        p = conditional(mlm, text, site)
        for word in words:
            if word != text[site]:
                new = (*text[:site], word, *text[site + 1 :])
                weights[new] = math.sqrt(p[word] / p[text[site]]) ** (1 / temperature)
    total = sum(weights.values())
    return {new: weight / total for new, weight in weights.items()}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_transition_probabilities_are_those_of_plain_loops(temperature):
    mlm = TinyMLM(words=3, seed=3)
    energy, texts = LocalEnergy(mlm), every_text(mlm, time=2)
    words = mlm.allowed.nonzero()[:, 0].tolist()
    listed = [tuple(row) for row in texts.tolist()]
    score = dict(zip(listed, energy(texts).tolist(), strict=True))
    moves = {text: proposal(mlm, text, words, temperature) for text in listed}
    expected = torch.zeros(len(listed), len(listed), dtype=torch.float64)
    for i, text in enumerate(listed):
        for new, q in moves[text].items():
            ratio = math.exp((score[text] - score[new]) / temperature) * moves[new][text] / q
            expected[i, listed.index(new)] = q * min(1.0, ratio)
        expected[i, i] = 1 - expected[i].sum()
    kernel = informed_metropolis_hastings(energy, temperature=temperature)
    actual = transitions(kernel, texts, torch.ones(2).bool())[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "sum", "subset"])
def test_other_energies_and_sets_of_tokens(kind):
    mlm = TinyMLM(words=3, seed=1)
    texts, allowed = every_text(mlm, time=2), None
    fours = (1.0, lambda t: (t == 4).sum(-1).double())
    energy = {
        "raw": RawEnergy(mlm),
        "sum": Tempered(WeightedSum([(0.7, LocalEnergy(mlm)), fours]), 0.8),
        "subset": LocalEnergy(mlm),
    }[kind]
    if kind == "subset":
        texts, allowed = texts[(texts > 3).all(-1)], mlm.allowed & (torch.arange(6) > 3)
    kernel = informed_metropolis_hastings(energy, allowed=allowed)
    assert all(c.holds for c in certify(kernel, energy, texts, block=2))


@pytest.mark.slow
def test_a_kernel_that_forgets_the_reverse_direction_fails(monkeypatch):
    def without_reverse(energy, new_energy, forward, reverse):
        return (energy - new_energy).clamp_max(0.0)

    monkeypatch.setattr(informed, "log_acceptance", without_reverse)
    mlm = TinyMLM(words=3, seed=1)
    energy = LocalEnergy(mlm)
    found = certify(informed_metropolis_hastings(energy), energy, every_text(mlm, time=2), block=2)
    assert "invariant" in [c.name for c in found if not c.holds]


def test_a_step_costs_the_rows_of_the_other_sites_and_any_state_can_be_continued():
    counted = CountedMlm(TinyMLM(words=4, seed=2))
    energy, rng = LocalEnergy(counted), torch.Generator().manual_seed(0)
    tokens = torch.tensor([[3, 4, 5, 6, 0], [3, 5, 3, 6, 4]])  # the first is shorter
    free = tokens != 0
    kernel = informed_metropolis_hastings(energy)
    state = kernel.init(tokens)
    assert counted.rows == 9
    for _ in range(5):
        before = counted.rows
        state, info = kernel.step(state, free, rng)
        assert counted.rows - before == 3 + 4
        torch.testing.assert_close(state.energy, energy(state.tokens).double())
        assert ((state.tokens != tokens).sum(-1) <= info.moved.long()).all()
        tokens = state.tokens
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    here, _ = kernel.step(state, free, seeds[0])
    there, _ = informed_metropolis_hastings(energy).step(state, free, seeds[1])
    assert torch.equal(here.tokens, there.tokens)


def test_chains_without_a_choice_stay_and_other_energies_are_refused():
    mlm = TinyMLM(words=1)
    tokens, rng = torch.full((2, 3), 3), torch.Generator().manual_seed(0)
    kernel = informed_metropolis_hastings(LocalEnergy(mlm))
    state, info = kernel.step(kernel.init(tokens), torch.tensor([[True] * 3, [False] * 3]), rng)
    assert torch.equal(state.tokens, tokens) and info.repeated.all() and not info.moved.any()
    with pytest.raises(ValueError, match="no LocalEnergy or RawEnergy"):
        informed_metropolis_hastings(lambda t: t.sum(-1).double())
    assert starting_with(LocalEnergy(mlm))(tokens).energy.allclose(state.energy)
