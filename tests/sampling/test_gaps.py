"""Gaps of one to n tokens: transition probabilities by plain loops, and all fillings."""

import itertools
import math

import pytest
import torch

from softbeam.sampling.certificates import transitions
from softbeam.sampling.chain_rule import LeftToRight
from softbeam.sampling.energies import LocalEnergy
from softbeam.sampling.gaps import (
    SqueezedEnergy,
    SqueezedMlm,
    WholeGaps,
    count_fillings,
    every_filling,
    used_cells,
)
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.terms import RepeatedPhrases
from softbeam.sampling.tiny import TinyMLM

PAD, WORDS = 0, (3, 4)
GAPS = torch.tensor([-1, 0, 0, -1, 1])  # a fixed token, a gap of two cells, another, a gap of one
LINE = torch.tensor([3, 1, 1, 4, 1])


@pytest.fixture(scope="module")
def mlm():
    return TinyMLM(words=2, seed=3)


@pytest.fixture(scope="module")
def states(mlm):
    return every_filling(LINE, GAPS, mlm.allowed.expand(5, -1), PAD)


def log_p(mlm, text, site, hidden):
    """log p of the word at a site of a text without padding, with some sites hidden."""
    masked = torch.tensor([[t in hidden for t in range(len(text))]])
    logits = mlm.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))
    row = logits[sorted(hidden).index(site)].tolist()
    return row[text[site]] - math.log(sum(math.exp(row[word]) for word in WORDS))


def test_all_fillings_are_listed_once(states):
    gap = [(a, PAD) for a in WORDS] + list(itertools.product(WORDS, repeat=2))
    expected = {(3, *pair, 4, last) for pair in gap for last in WORDS}
    assert {tuple(row) for row in states.tolist()} == expected and len(states) == len(expected)
    assert count_fillings([[2, 2], [2]]) == len(expected) == 12
    assert count_fillings([[20], [20], [20]]) == 8000


@pytest.mark.parametrize("rule", [LocalEnergy, LeftToRight])
def test_transition_probabilities_are_those_of_plain_loops(mlm, states, rule):
    free = (GAPS >= 0).expand(len(states), -1)
    squeezed = SqueezedMlm(mlm)
    energy = rule(squeezed, **({"counted": free} if rule is LeftToRight else {}))
    value = energy(states).tolist()
    texts = [[t for t in row if t != PAD] for row in states.tolist()]
    for text, e in zip(texts, value, strict=True):  # the energy of the text without padding
        n = len(text) - 3
        sites = [1, *range(2, n + 1), n + 2] if rule is LeftToRight else range(len(text))
        if rule is LocalEnergy:
            whole = sum(plain_local(mlm, text, site) for site in sites)
        else:
            hidden = [s for s in sites]
            whole = sum(log_p(mlm, text, s, hidden[i:]) for i, s in enumerate(hidden))
        assert abs(e + whole) < 1e-12
    proposed = []  # the probability of drawing the gap of each text anew
    for text in texts:
        cells = list(range(1, len(text) - 2))
        log_q = math.log(1 / 2)  # of the number of tokens
        log_q += sum(log_p(mlm, text, site, cells[i:]) for i, site in enumerate(cells))
        proposed.append(log_q)
    expected = torch.zeros(len(texts), len(texts), dtype=torch.float64)
    for i, j in itertools.product(range(len(texts)), repeat=2):
        if i != j and texts[i][-1] == texts[j][-1]:
            ratio = value[i] - value[j] + proposed[i] - proposed[j]
            expected[i, j] = math.exp(proposed[j]) * min(1.0, math.exp(ratio))
    expected += torch.diag(1 - expected.sum(1))
    plain = rule(squeezed) if rule is LocalEnergy else LeftToRight(squeezed, counted=free[:1])
    kernel = metropolis_hastings(
        broadcast(plain), WholeGaps(MaskedConditionals(squeezed), GAPS[None])
    )
    position = torch.tensor([False, False, True, False, False])
    actual = transitions(kernel, states, position)
    torch.testing.assert_close(actual.matrix, expected, rtol=0, atol=1e-12)
    assert actual.misreported <= 1e-12 and not actual.outside.any()


def plain_local(mlm, text, site):
    masked = torch.tensor([[t == site for t in range(len(text))]])
    row = mlm.logits(torch.tensor([text]), masked, torch.zeros(1, dtype=torch.long))[0].tolist()
    return row[text[site]] - math.log(sum(math.exp(score) for score in row))


def broadcast(energy):
    """An energy whose rows all belong to chain 0."""
    if isinstance(energy, LocalEnergy):
        return energy
    return lambda tokens: energy.chosen(torch.zeros(len(tokens), dtype=torch.long))(tokens)


def test_a_term_of_the_energy_reads_no_padding_between_words(states):
    term = SqueezedEnergy(RepeatedPhrases(2, torch.arange(5) >= 3), PAD)
    for row, value in zip(states.tolist(), term(states).tolist(), strict=True):
        text = [t for t in row if t != PAD]
        pairs = list(itertools.pairwise(text))
        assert value == len(pairs) - len(set(pairs))


def test_gaps_have_all_lengths():
    used = used_cells(GAPS.repeat(300, 1), torch.Generator().manual_seed(0))
    assert used[:, [1, 4]].all() and not used[:, [0, 3]].any()
    assert 100 < int(used[:, 2].sum()) < 200, "both lengths are equally likely"


def test_all_gaps_drawn_together_keep_the_law(mlm, states):
    energy, every = LocalEnergy(SqueezedMlm(mlm)), torch.zeros(5).bool()
    propose = WholeGaps(MaskedConditionals(SqueezedMlm(mlm)), GAPS[None], together=True)
    matrix = transitions(metropolis_hastings(energy, propose), states, every).matrix
    pi = (-energy(states)).softmax(0)
    flow = pi[:, None] * matrix
    torch.testing.assert_close(flow, flow.T, rtol=0, atol=1e-12)
    assert (matrix > 0).all(), "every text is reached in one step"
    never = metropolis_hastings(lambda texts: 0 * energy(texts), propose)  # of another law
    wrong = pi[:, None] * transitions(never, states, every).matrix
    assert float((wrong - wrong.T).abs().max()) > 1e-3
