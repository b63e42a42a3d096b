"""Searches for outputs with and without phrases, against the list of all outputs."""

import itertools

import pytest
import torch

from softbeam.search.constrained import constrained_beam_search, progress_table
from softbeam.search.decoders import LocallyNormalized, forced_scores
from softbeam.search.live import live_beam_search
from support.toys import ToyDecoder

VOCAB, EOS, LONGEST = 4, 3, 4


def outputs(longest):
    """All outputs that end with the end mark, or at the limit without one."""
    inner = [t for t in range(VOCAB) if t != EOS]
    for n in range(1, longest + 1):
        for rest in itertools.product(inner, repeat=n - 1):
            yield [*rest, EOS]
            if n == longest:
                yield from ([*rest, last] for last in inner)


def holds(output, phrase):
    n = len(phrase)
    return any(output[i : i + n] == list(phrase) for i in range(len(output) - n + 1))


def listed(decoder, batch, must, must_not):
    """The scores of all outputs that keep the rules, best first, for each sentence."""
    rows = [[] for _ in range(batch)]
    for output in outputs(LONGEST):
        if all(holds(output, p) for p in must) and not any(holds(output, p) for p in must_not):
            target = torch.tensor([output] * batch)
            scores = forced_scores(decoder, target).gather(2, target[:, :, None]).sum((1, 2))
            for row, score in zip(rows, scores.tolist(), strict=True):
                row.append((score, output))
    return [sorted(row, reverse=True) for row in rows]


RULES = [
    ([[1, 2]], []),
    ([[0]], [[1]]),
    ([[0, 1], [1, 0]], []),  # they may overlap: 0 1 0
    ([[1, 1]], [[2]]),
    ([], [[0, 0], [2]]),
    ([[2], [1]], [[2, 1]]),
]


@pytest.mark.parametrize(("must", "must_not"), RULES)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_as_wide_as_the_space_it_finds_the_best_of_all(must, must_not, penalty):
    decoder = LocallyNormalized(ToyDecoder(vocab=VOCAB, batch=3, seed=1))
    found = constrained_beam_search(
        decoder,
        k=100,
        lengths=torch.full((3,), LONGEST),
        eos=EOS,
        must=must,
        must_not=must_not,
        nbest=4,
        length_penalty=penalty,
    )
    for row, expected in enumerate(listed(decoder, 3, must, must_not)):
        expected.sort(key=lambda pair: -pair[0] / len(pair[1]) ** penalty)
        for place, (score, output) in enumerate(expected[:4]):
            n = int(found.lengths[row, place])
            assert found.tokens[row, place, :n].tolist() == output
            assert found.scores[row, place].item() == pytest.approx(score, abs=1e-10)
        assert int(found.scores[row].isfinite().sum()) == min(4, len(expected))


def test_a_narrow_beam_keeps_the_rules_too():
    decoder = LocallyNormalized(ToyDecoder(vocab=VOCAB, batch=5, seed=2))
    found = constrained_beam_search(
        decoder, k=1, lengths=torch.full((5,), 6), eos=EOS, must=[[0, 2], [1]], must_not=[[2, 2]]
    )
    for tokens, n in zip(found.tokens[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True):
        assert (
            holds(tokens[:n], [0, 2]) and holds(tokens[:n], [1]) and not holds(tokens[:n], [2, 2])
        )


def test_without_rules_it_is_the_usual_search():
    decoder = LocallyNormalized(ToyDecoder(vocab=VOCAB, batch=4, seed=3))
    knobs = {"k": 3, "lengths": torch.tensor([5, 2, 5, 1]), "eos": EOS, "nbest": 2, "stop": "sure"}
    found, usual = constrained_beam_search(decoder, **knobs), live_beam_search(decoder, **knobs)
    torch.testing.assert_close(found.scores[:, 0], usual.scores[:, 0])
    assert torch.equal(found.tokens[:, 0], usual.tokens[:, 0])


def test_what_cannot_be_has_no_score():
    decoder = LocallyNormalized(ToyDecoder(vocab=VOCAB, batch=2, seed=1))
    found = constrained_beam_search(
        decoder, k=2, lengths=torch.tensor([2, 4]), eos=EOS, must=[[0, 1, 2]]
    )
    assert found.scores[:, 0].isneginf().tolist() == [True, False]
    for phrase in ([], [EOS], [VOCAB], [-1]):
        with pytest.raises(ValueError, match="must have tokens"):
            constrained_beam_search(
                decoder, k=1, lengths=torch.tensor([2, 2]), eos=EOS, must=[phrase]
            )


@pytest.mark.parametrize("phrase", [[0], [0, 0, 1], [0, 1, 0, 1, 2], [1, 1, 1]])
def test_progress_is_the_longest_end_that_begins_the_phrase(phrase):
    table = progress_table(phrase, 3, eos=9)
    for text in itertools.product(range(3), repeat=7):
        state = 0
        for n, token in enumerate(text, 1):
            state = int(table[state, token])
            ends = [
                m for m in range(len(phrase) + 1) if list(text[n - m : n]) == phrase[:m] and m <= n
            ]
            assert state == (len(phrase) if holds(list(text[:n]), phrase) else max(ends))
