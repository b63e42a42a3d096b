"""Alignments of letters and phonemes: the cheapest of all, and true to the dictionary."""

import math
from itertools import product

import pytest
from hypothesis import given, strategies as st

from softbeam.data.alignment import (
    SECOND,
    SILENT,
    UNSEEN,
    align,
    label_of,
    learn_costs,
    phonemes_of,
)

COSTS = {
    "a": {SILENT: 1.5, "P": 0.25, "Q": 2.0, "P+Q": 1.0},
    "b": {SILENT: 0.5, "Q": 0.75, "Q+Q": 0.125},
}
WORDS = st.text("abc", min_size=1, max_size=5)  # c was never seen
PHONEMES = st.lists(st.sampled_from("PQ"), max_size=7).map(tuple)


def every_cost(word: str, phonemes: tuple[str, ...]) -> list[float]:
    """List the costs of all ways to give each letter 0, 1 or 2 phonemes."""
    totals = []
    for sizes in product(range(3), repeat=len(word)):
        if sum(sizes) == len(phonemes):
            ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
            labels = [
                "+".join(phonemes[e - n : e]) or "_" for e, n in zip(ends, sizes, strict=True)
            ]
            totals.append(cost_of(word, labels))
    return totals


def cost_of(word, labels) -> float:
    known = [COSTS.get(c, {}).get(label, UNSEEN) for c, label in zip(word, labels, strict=True)]
    return sum(known) + SECOND * sum("+" in label for label in labels)


@pytest.mark.slow
@given(WORDS, PHONEMES)
def test_an_alignment_is_the_cheapest_of_all(word, phonemes):
    labels, costs = align(word, phonemes, COSTS), every_cost(word, phonemes)
    if labels is None:
        assert costs == [] and len(phonemes) > 2 * len(word)
    else:
        assert phonemes_of(labels) == phonemes
        assert cost_of(word, labels) == pytest.approx(min(costs))


def test_labels_name_phonemes():
    assert [label_of(p) for p in ((), ("T",), ("K", "S"))] == ["_", "T", "K+S"]
    assert phonemes_of(["_", "T", "K+S"]) == ("T", "K", "S")


def test_what_letters_spell_is_learned_from_words():
    words = {"tax": "T AE K S", "fix": "F IH K S", "cat": "K AE T", "fit": "F IH T"}
    words |= {"knit": "N IH T", "knack": "N AE K", "tack": "T AE K", "nick": "N IH K"}
    words |= {"tin": "T IH N", "fan": "F AE N", "kit": "K IH T", "can": "K AE N"}
    costs = learn_costs([(word, tuple(p.split())) for word, p in words.items()])
    assert align("fax", ("F", "AE", "K", "S"), costs) == ("F", "AE", "K+S")
    assert align("knick", ("N", "IH", "K"), costs)[:3] == ("_", "N", "IH")
    for labels in costs.values():
        assert math.fsum(math.exp(-cost) for cost in labels.values()) == pytest.approx(1)
