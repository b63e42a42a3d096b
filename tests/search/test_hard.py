"""Hard search against enumeration and plain loops."""

from copy import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.hard import (
    ancestral_sample,
    beam_search,
    best_cells,
    greedy,
    truncate,
)
from softbeam.search.live import live_beam_search
from support.toys import ToyDecoder, plain_beam, score, sequences

EOS = 1


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def paths(found, row: int = 0) -> list[tuple[int, ...]]:
    return [
        tuple(tokens[:n].tolist())
        for tokens, n in zip(found.tokens[row], found.lengths[row], strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("eos", [None, EOS])
def test_a_beam_as_wide_as_the_space_is_exact(seed, normalize, eos):
    decoder = ToyDecoder(vocab=3, seed=seed)
    bound = LocallyNormalized(decoder) if normalize else decoder
    found = beam_search(bound, k=60, lengths=lengths(3), eos=eos, nbest=9)
    best = sorted(
        ((score(decoder, s, normalize=normalize), s) for s in sequences(3, 3, eos)), reverse=True
    )
    assert paths(found)[:9] == [s for _, s in best[:9]]
    expected = torch.tensor([[b for b, _ in best[:9]]], dtype=torch.float64)
    torch.testing.assert_close(found.scores, expected)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("seed", range(3))
def test_beam_search_equals_plain_loops(k, eos, seed):
    decoder = ToyDecoder(vocab=4, batch=2, seed=seed)
    found = beam_search(LocallyNormalized(decoder), k=k, lengths=lengths(5, 5), eos=eos, nbest=k)
    for row in range(2):
        expected = plain_beam(decoder, k, 5, row=row, eos=eos)
        assert paths(found, row) == [s for _, s in expected]
        torch.testing.assert_close(
            found.scores[row], torch.tensor([b for b, _ in expected], dtype=torch.float64)
        )


def plain_live_beam(decoder, k, limit, row):
    """The finished kept apart, in plain loops: (score, sequence), best first."""
    live, done = [()], []
    for length in range(1, limit + 1):
        longer = [(*s, token) for s in live for token in range(4)]
        ordered = sorted(longer, key=lambda s: -score(decoder, s, row=row))
        over = [s for s in longer if s[-1] == EOS or length == limit]
        done += [s for s in ordered[:k] if s in over]
        live = [s for s in ordered if s not in over][:k]
    return sorted(((score(decoder, s, row=row), s) for s in done), reverse=True)[:k]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_live_beam_search_equals_plain_loops(k, seed):
    decoder = ToyDecoder(vocab=4, batch=2, seed=seed)
    limits = lengths(5, 3)
    found = live_beam_search(LocallyNormalized(decoder), k=k, lengths=limits, eos=EOS, nbest=k)
    for row in range(2):
        expected = plain_live_beam(decoder, k, int(limits[row]), row)
        assert paths(found, row)[: len(expected)] == [s for _, s in expected]
        values = torch.tensor([b for b, _ in expected], dtype=torch.float64)
        torch.testing.assert_close(found.scores[row, : len(expected)], values)
        assert found.scores[row, len(expected) :].isneginf().all()


class Leaving(ToyDecoder):
    """A decoder that can be bound to some of its sources, and counts the rows of its steps."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.rows: list[int] = []

    def select(self, sentences):
        other = copy(self)
        other._parameters = self._parameters | {
            "memory": torch.nn.Parameter(self.memory[sentences])
        }
        return other

    def step(self, state, emb):
        self.rows.append(len(emb))
        return super().step(state, emb)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(
    "search", [beam_search, partial(live_beam_search, stop="sure")], ids=["inside", "apart"]
)
def test_finished_sentences_leave_the_batch_and_nothing_changes(search, k):
    limits = torch.arange(30) % 7 + 1
    stays, leaves = (kind(vocab=4, batch=30, seed=5) for kind in (ToyDecoder, Leaving))
    knobs = {"k": k, "lengths": limits, "eos": EOS, "nbest": k}
    expected, found = (search(LocallyNormalized(d), **knobs) for d in (stays, leaves))
    torch.testing.assert_close(found.scores, expected.scores)
    real = expected.scores.isfinite()  # a space of one step has fewer than 5 outputs
    assert found.tokens[real].equal(expected.tokens[real])
    assert found.lengths[real].equal(expected.lengths[real])
    assert leaves.rows[-1] < 10 * k < max(leaves.rows)


@pytest.mark.parametrize("penalty", [0.0, 0.2, -0.5])
def test_a_sure_stop_changes_no_output(penalty):
    decoder, limits = LocallyNormalized(Leaving(vocab=4, batch=40, seed=2)), torch.full((40,), 14)
    knobs = {"k": 3, "lengths": limits, "eos": EOS, "nbest": 3, "length_penalty": penalty}
    whole = live_beam_search(decoder, **knobs)
    steps, decoder.decoder.rows = decoder.decoder.rows, []
    for a, b in zip(live_beam_search(decoder, **knobs, stop="sure"), whole, strict=True):
        torch.testing.assert_close(a, b)
    assert sum(decoder.decoder.rows) < sum(steps)


def test_stops_at_the_first_are_earlier_and_can_be_worse():
    decoder, limits = LocallyNormalized(Leaving(vocab=4, batch=40, seed=2)), torch.full((40,), 14)
    rows, best = {}, {}
    for stop in ("limit", "sure", "likely", "first"):
        decoder.decoder.rows = []
        found = live_beam_search(
            decoder, k=3, lengths=limits, eos=EOS, length_penalty=0.2, stop=stop
        )
        rows[stop], best[stop] = (
            sum(decoder.decoder.rows),
            found.scores[:, 0] / found.lengths[:, 0] ** 0.2,
        )
    assert rows["limit"] >= rows["sure"] > rows["likely"] > rows["first"]
    assert (best["first"] <= best["limit"] + 1e-9).all() and (best["first"] < best["limit"]).any()


def test_a_finished_hypothesis_takes_a_place_in_one_search_alone():
    decoder = LocallyNormalized(ToyDecoder(vocab=4, batch=40, seed=0))
    limits = lengths(*[5] * 40)
    apart = live_beam_search(decoder, k=2, lengths=limits, eos=EOS, nbest=2)
    inside = beam_search(decoder, k=2, lengths=limits, eos=EOS, nbest=2)
    assert (apart.scores[:, 1] > inside.scores[:, 1] + 1e-3).any()
    torch.testing.assert_close(apart.scores[:, 0], inside.scores[:, 0])  # so short, the best agree


@pytest.mark.parametrize("eos", [None, EOS])
def test_beam_of_one_is_greedy(eos):
    decoder = LocallyNormalized(ToyDecoder(vocab=5, batch=6, seed=3))
    limits = lengths(1, 2, 3, 4, 5, 6)
    narrow = beam_search(decoder, k=1, lengths=limits, eos=eos)
    plain = greedy(decoder, lengths=limits, eos=eos)
    for a, b in zip(narrow, plain, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(1, 4), st.booleans())
def test_a_sentence_decodes_the_same_alone_and_in_a_batch(limits, k, ends):
    eos = EOS if ends else None
    decoder = ToyDecoder(vocab=4, batch=len(limits), seed=7)
    together = beam_search(decoder, k=k, lengths=lengths(*limits), eos=eos)
    for row, limit in enumerate(limits):
        alone = ToyDecoder(vocab=4, batch=len(limits), seed=7)
        alone.memory.data = decoder.memory.data[row : row + 1]
        single = beam_search(alone, k=k, lengths=lengths(limit), eos=eos)
        assert paths(single) == paths(together, row)[:1]
        torch.testing.assert_close(single.scores[0], together.scores[row])


def test_beam_can_be_wider_than_the_vocabulary():
    decoder = ToyDecoder(vocab=2, seed=1)
    found = beam_search(decoder, k=7, lengths=lengths(4), nbest=7)
    expected = plain_beam(decoder, 7, 4, normalize=False)
    assert paths(found) == [s for _, s in expected]


def test_length_penalty_ranks_by_score_over_length():
    decoder = LocallyNormalized(ToyDecoder(vocab=3, seed=1))
    found = beam_search(decoder, k=27, lengths=lengths(3), eos=EOS, nbest=7, length_penalty=1.0)
    values = found.scores[0] / found.lengths[0]
    assert (values[:-1] >= values[1:]).all()
    plain = beam_search(decoder, k=27, lengths=lengths(3), eos=EOS, nbest=7)
    assert paths(found) != paths(plain), "the penalty should matter in this space"


def test_ties_are_ordered_by_parent_then_token():
    scores = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0]])
    values, cells = best_cells(scores, 4)
    assert cells.tolist() == [[1, 2, 4, 0]] and values.tolist() == [[2.0, 2.0, 2.0, 1.0]]


def test_forbidden_tokens_are_never_chosen():
    decoder = Forbidding(ToyDecoder(vocab=4, batch=5, seed=0), [0, 2])
    found = beam_search(decoder, k=3, lengths=lengths(6, 6, 6, 6, 6), nbest=3)
    assert not torch.isin(found.tokens, torch.tensor([0, 2])).any()


def test_sampling_follows_the_model():
    decoder = ToyDecoder(vocab=3, batch=1, seed=5)
    space = list(sequences(3, 2))
    p = torch.tensor([score(decoder, s) for s in space]).exp()
    many = ToyDecoder(vocab=3, batch=1, seed=5)
    many.memory.data = decoder.memory.data.expand(4000, -1).clone()
    rng = torch.Generator().manual_seed(0)
    drawn = ancestral_sample(many, lengths=torch.full((4000,), 2), rng=rng).tokens[:, 0]
    counts = torch.zeros(len(space))
    for a, b in drawn.tolist():
        counts[space.index((a, b))] += 1
    chi_square = ((counts - 4000 * p) ** 2 / (4000 * p)).sum()
    assert chi_square < 26.1, "the 0.999 quantile of chi-square with 8 degrees of freedom"


def test_sampling_is_seeded_and_cold_sampling_is_greedy():
    decoder = ToyDecoder(vocab=5, batch=8, seed=4)
    limits = torch.full((8,), 4)

    def draw(seed: int, **options):
        rng = torch.Generator().manual_seed(seed)
        return ancestral_sample(decoder, lengths=limits, rng=rng, **options).tokens

    assert draw(1).equal(draw(1)) and not draw(1).equal(draw(2))
    assert draw(1, temperature=1e-4).equal(greedy(decoder, lengths=limits).tokens)
    assert draw(1, top_k=1).equal(greedy(decoder, lengths=limits).tokens)
    assert draw(1, top_p=1e-6).equal(greedy(decoder, lengths=limits).tokens)


def test_truncation_keeps_the_smallest_sufficient_set():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    torch.testing.assert_close(truncate(p, top_p=0.7), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    torch.testing.assert_close(truncate(p, top_p=0.5), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(truncate(p, top_k=3).sum(-1), torch.ones(1))


@pytest.mark.parametrize("search", [beam_search, live_beam_search])
@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2, "nbest": 3}])
def test_bad_widths_are_refused(search, options):
    with pytest.raises(ValueError, match="nbest"):
        search(ToyDecoder(vocab=3), lengths=lengths(2), eos=EOS, **options)
