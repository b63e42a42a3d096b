"""Terms of composed energies, against plain loops."""

import pytest
import torch

from softbeam.sampling.certificates import certify
from softbeam.sampling.energies import LocalEnergy, WeightedSum
from softbeam.sampling.kernels import metropolis_hastings
from softbeam.sampling.proposals import MaskedConditionals
from softbeam.sampling.terms import EditDistance, HammingDistance, PhraseCount, RepeatedPhrases
from softbeam.sampling.tiny import TinyMLM, every_text
from softbeam.types import BoundEnergy, Energy

TEXTS = torch.tensor([[3, 4, 3, 4, 5], [5, 5, 5, 3, 4], [4, 3, 0, 0, 0]])


def test_hamming_distance_is_to_each_chains_own_text():
    distance = HammingDistance(TEXTS)
    assert isinstance(distance, BoundEnergy)
    assert distance(TEXTS).tolist() == [0, 0, 0]
    assert distance(TEXTS.flip(0)).tolist() == [5, 0, 5]
    assert distance.chosen(torch.tensor([2, 2]))(TEXTS[1:]).tolist() == [5, 0]


def plain_count(row: list[int], phrases: list[list[int]]) -> int:
    return sum(
        any(row[i : i + len(p)] == p for p in phrases if len(p) == size)
        for size in {len(p) for p in phrases}
        for i in range(len(row))
    )


@pytest.mark.parametrize("phrases", [[[3]], [[3, 4], [5, 5], [5]], [[4, 3, 4], [9] * 7], []])
def test_phrases_are_counted_where_they_stand(phrases):
    found = PhraseCount(phrases)(TEXTS)
    assert found.tolist() == [plain_count(row, phrases) for row in TEXTS.tolist()]
    assert isinstance(PhraseCount(phrases), Energy)


@pytest.mark.slow
def test_composed_targets_are_sampled_exactly():
    """The whole transition matrix, for a target that is near to a text and likes a phrase."""
    mlm = TinyMLM(words=3)
    terms = [(0.7, near_middle), (-0.5, PhraseCount([[3, 4]]))]
    energy = WeightedSum([(1.0, LocalEnergy(mlm)), *terms])
    kernel = metropolis_hastings(energy, MaskedConditionals(mlm))
    found = certify(kernel, energy, every_text(mlm, time=2))
    assert all(one.holds for one in found), found


def near_middle(tokens: torch.Tensor) -> torch.Tensor:
    return HammingDistance(torch.full_like(tokens, 4))(tokens)


def test_edits_are_counted_as_by_the_recursion():
    """The textbook's recursion, on chains of several lengths."""

    def edits(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(edits(a[1:], b) + 1, edits(a, b[1:]) + 1, edits(a[1:], b[1:]) + (a[0] != b[0]))

    tokens = torch.tensor([[3, 4, 5, 3, 0], [4, 4, 0, 0, 0], [5, 3, 4, 4, 3]])
    texts = [(4, 5, 3), (4, 4), (3, 4, 4, 3, 5)]
    rows = [tuple(i for i in row if i) for row in tokens.tolist()]
    distance = EditDistance(texts, pad_id=0)
    gold = [float(edits(a, b)) for a, b in zip(rows, texts, strict=True)]
    assert distance(tokens).tolist() == gold and gold[1] == 0 < gold[0]
    assert distance.chosen(torch.tensor([2, 0]))(tokens[[2, 0]]).tolist() == [gold[2], gold[0]]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_repeated_phrases_are_counted_in_plain_loops(size):
    counted = torch.tensor([False, True, True, True, True, True])
    rows = torch.tensor([[1, 1, 1, 1, 2], [1, 2, 1, 2, 1], [3, 4, 0, 3, 4], [1, 2, 3, 4, 5]])
    expected = []
    for row in rows.tolist():
        seen, total = set(), 0
        for i in range(len(row) - size + 1):
            phrase = tuple(row[i : i + size])
            if 0 in phrase:
                continue
            total += phrase in seen
            seen.add(phrase)
        expected.append(total)
    term = RepeatedPhrases(size, counted)
    assert isinstance(term, Energy) and term(rows).tolist() == expected
    assert size > 2 or sum(expected) > 2
