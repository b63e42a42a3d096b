"""Texts that change their length: transition probabilities by plain loops, and detailed balance."""

import math

import pytest
import torch

from softbeam.sampling.certificates import transitions
from softbeam.sampling.chains import Plan, run_chains
from softbeam.sampling.energies import LocalEnergy, RawEnergy, WeightedSum
from softbeam.sampling.lengths import cgmh, length_metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.terms import LengthEnergy
from softbeam.sampling.tiny import TinyMLM, every_length

PAD, SEP = 0, 2


def conditional(mlm, text, site, words):
    """The probability of each word at a site of a text, in which anything stands there."""
    masked = torch.zeros(1, len(text), dtype=torch.bool)
    masked[0, site] = True
    logits = mlm.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))[0]
    p = {word: math.exp(logits[word]) for word in words}
    return {word: value / sum(p.values()) for word, value in p.items()}


def moves(mlm, text, words, low, high):
    """Every move from a text: the new text, its probability, and that of the way back."""

    def choice(n):
        """The probability of each possible kind of move."""
        possible = [n > 0, n < high, n > low]
        return [each / sum(possible) for each in possible]

    n = len(text)
    replace, insert, delete = choice(n)
    for i in range(n):
        p = conditional(mlm, text, i, words)
        for word in words:
            new = (*text[:i], word, *text[i + 1 :])
            yield new, replace / n * p[word], replace / n * p[text[i]]
        if delete:
            back = choice(n - 1)[1] / n * p[text[i]]
            yield (*text[:i], *text[i + 1 :]), delete / n, back
    for i in range(n + 1) if insert else ():
        p = conditional(mlm, (*text[:i], words[0], *text[i:]), i, words)
        for word in words:
            there = insert / (n + 1) * p[word]
            yield (*text[:i], word, *text[i:]), there, choice(n + 1)[2] / (n + 1)


def stated(energy, offsets):
    """An energy with an offset for each length."""
    table = torch.tensor(offsets, dtype=torch.float64)
    return WeightedSum([(1.0, energy), (1.0, LengthEnergy(table, PAD))])


@pytest.mark.parametrize("low", [0, 1])
def test_transition_probabilities_are_those_of_plain_loops(low):
    mlm, high = TinyMLM(words=2, seed=3), 3
    words = mlm.allowed.nonzero()[:, 0].tolist()
    states = every_length(mlm, longest=high)
    states = states[(states != PAD).sum(-1) >= low]
    energy = stated(LocalEnergy(mlm), [0.0, -0.3, -1.0, -1.2])
    listed = [tuple(t for t in row if t != PAD) for row in states.tolist()]
    score = dict(zip(listed, energy(states).tolist(), strict=True))
    expected = torch.zeros(len(listed), len(listed), dtype=torch.float64)
    for i, text in enumerate(listed):
        for new, there, back in moves(mlm, text, words, low, high):
            ratio = math.exp(score[text] - score[new]) * back / there
            expected[i, listed.index(new)] += there * min(1.0, ratio)
        expected[i, i] += 1 - expected[i].sum()
    kernel = length_metropolis_hastings(energy, MaskedConditionals(mlm), lengths=(low, high))
    actual = transitions(kernel, states, torch.ones(high).bool())
    torch.testing.assert_close(actual.matrix, expected, rtol=0, atol=1e-12)
    assert actual.misreported <= 1e-12 and not actual.outside.any()


def imbalance(kernel, energy, states, lengths=range(5)):
    """The largest error of detailed balance between texts of these lengths."""
    pi = (-energy(states).double()).softmax(0)
    flow = pi[:, None] * transitions(kernel, states, torch.ones(states.shape[1]).bool()).matrix
    inside = torch.isin((states != PAD).sum(-1), torch.tensor(lengths))
    return float((flow - flow.T)[inside][:, inside].abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalEnergy, RawEnergy])
def test_detailed_balance_over_all_texts_of_0_to_4_tokens_and_cgmh_fails_it(kind):
    mlm = TinyMLM(words=3, seed=5)
    states = every_length(mlm, longest=4)
    assert len(states) == 1 + 3 + 9 + 27 + 81
    energy = stated(kind(mlm), [0.4, 0.0, -1.5, -3.0, -4.0])
    propose = MaskedConditionals(mlm)
    assert imbalance(length_metropolis_hastings(energy, propose), energy, states) <= 1e-12
    weighted = length_metropolis_hastings(energy, propose, moves=(0.5, 2.0, 1.0))
    assert imbalance(weighted, energy, states) <= 1e-12
    wrong = imbalance(cgmh(energy, propose), energy, states, [1, 2, 3])
    assert wrong > 1e-5, "also where every move is possible in both directions"


def test_a_frame_stays_around_the_text_and_lengths_stay_within_their_range():
    mlm = TinyMLM(words=3, seed=1)
    text = torch.tensor([[SEP, 3, 4, SEP, PAD, PAD]]).repeat(40, 1)
    energy = stated(LocalEnergy(mlm), [0.0, -2.0, -4.0, -6.0, -8.0, -10.0, -12.0])
    kernel = length_metropolis_hastings(
        energy, MaskedConditionals(mlm), lengths=(1, 4), frame=(1, 1)
    )
    free = torch.ones_like(text).bool()
    plan, rng = Plan(sweeps=6, burn_in=0), torch.Generator().manual_seed(0)
    seen = set()
    for record in run_chains(kernel, text, free, plan=plan, rng=rng):
        for row, energy_now in zip(*record.state, strict=True):
            real = [t for t in row.tolist() if t != PAD]
            assert row.tolist() == real + [PAD] * (6 - len(real))
            assert real[0] == real[-1] == SEP and min(real[1:-1]) > SEP
            torch.testing.assert_close(energy_now, energy(row[None])[0])
            seen.add(len(real) - 2)
    assert seen == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "wrong", [{"lengths": (3, 2)}, {"lengths": (0, 0)}, {"moves": (1.0, 1.0, 0.0)}]
)
def test_impossible_settings_are_refused(wrong):
    mlm = TinyMLM()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        length_metropolis_hastings(LocalEnergy(mlm), MaskedConditionals(mlm), **wrong)
