"""Enumeration against plain loops; thesis Sec. 2.5: a global model and its local equal."""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import nn

from softbeam import exact
from softbeam.exact import Space
from softbeam.search.decoders import LocallyNormalized
from softbeam.search.hard import ancestral_sample, beam_search, greedy
from softbeam.tensors import gather
from softbeam.types import Decoder
from support.toys import ToyDecoder, score as plain_score, sequences as plain_sequences

EOS = [None, 1]


def random_score(vocab: int, time: int, *, batch=(), seed=0, scale=3.0):
    """A scorer that reads a table of independent numbers; padding counts as token 0."""
    g = torch.Generator().manual_seed(seed)
    table = scale * torch.randn(*batch, vocab**time, generator=g, dtype=torch.float64)
    powers = vocab ** torch.arange(time - 1, -1, -1)
    return lambda tokens: table[..., (tokens * powers).sum(1)]


def listed(score, space):
    """[(sequence without padding, exp score)] from plain loops."""
    rows = []
    for row in plain_sequences(space.vocab, space.time, space.eos):
        padded = torch.tensor([[*row, *[0] * (space.time - len(row))]])
        rows.append((row, math.exp(score(padded).item())))
    return rows


@pytest.mark.parametrize("eos", [None, 0, 1, 2])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_sequences_are_all_sequences_once(eos, chunk):
    chunks = list(exact.Space(vocab=3, time=3, eos=eos, chunk=chunk))
    assert max(len(c) for c in chunks) <= chunk
    rows = [tuple(row) for row in torch.cat(chunks).tolist()]
    expected = [(*s, *[0] * (3 - len(s))) for s in plain_sequences(3, 3, eos)]
    assert rows == expected
    assert len(rows) == Space(vocab=3, time=3, eos=eos).size


def test_forbidden_tokens_occur_nowhere():
    space = Space(vocab=4, time=3, eos=1, forbidden=(0,))
    for tokens in space:
        assert not ((tokens == 0) & exact.real(tokens, 1)).any()
    assert space.size == sum(len(tokens) for tokens in space) == 1 + 2 + 4 + 8


def test_the_edges_of_a_space_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        Space(vocab=3, time=0)
    with pytest.raises(ValueError, match="eos=3"):
        Space(vocab=3, time=2, eos=3)
    with pytest.raises(ValueError, match="n=10"):
        exact.best(random_score(3, 2), Space(vocab=3, time=2), n=10)
    with pytest.raises(ValueError, match="eos=1"):
        space = Space(vocab=3, time=2, eos=1)
        exact.conditionals(random_score(3, 2), torch.zeros(1, 2, dtype=torch.long), space)


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("chunk", [5, 1000])
def test_sums_equal_plain_loops(eos, chunk):
    space = Space(vocab=3, time=3, eos=eos, chunk=chunk)
    score = random_score(3, 3)
    rows = listed(score, space)
    z = math.fsum(w for _, w in rows)
    assert exact.log_partition(score, space).item() == pytest.approx(math.log(z), abs=1e-12)
    h = -math.fsum(w / z * math.log(w / z) for _, w in rows)
    assert exact.entropy(score, space).item() == pytest.approx(h, abs=1e-12)
    found = exact.marginals(score, space)
    for t, v in itertools.product(range(3), repeat=2):
        p = math.fsum(w / z for row, w in rows if t < len(row) and row[t] == v)
        assert found[t, v].item() == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("chunk", [5, 1000])
def test_best_equals_sorting(eos, chunk):
    space = Space(vocab=3, time=3, eos=eos, chunk=chunk)
    score = random_score(3, 3)
    rows = sorted(listed(score, space), key=lambda row: -row[1])[:4]
    tokens, scores = exact.best(score, space, n=4)
    assert [tuple(t) for t in tokens.tolist()] == [(*r, *[0] * (3 - len(r))) for r, _ in rows]
    torch.testing.assert_close(scores.exp(), torch.tensor([w for _, w in rows]).double())


@pytest.mark.parametrize("chunk", [3, 1000])
def test_equal_scores_come_in_the_order_of_the_space(chunk):
    space = Space(vocab=3, time=2, chunk=chunk)
    tokens, _ = exact.best(lambda rows: torch.zeros(len(rows)), space, n=5)
    torch.testing.assert_close(tokens, next(iter(exact.Space(vocab=3, time=2)))[:5])


def test_a_batch_of_scorers_equals_its_rows():
    space = Space(vocab=3, time=3, eos=2, chunk=7)
    both = random_score(3, 3, batch=(2,))
    for i in range(2):

        def one(tokens, i=i):
            return both(tokens)[i]

        for function in (exact.log_partition, exact.entropy, exact.marginals):
            torch.testing.assert_close(function(both, space)[i], function(one, space))
        for found, expected in zip(
            exact.best(both, space, 3), exact.best(one, space, 3), strict=True
        ):
            torch.testing.assert_close(found[i], expected)


def test_large_scores_neither_overflow_nor_vanish():
    space = Space(vocab=3, time=3, chunk=4)
    score = random_score(3, 3)
    for shift in (-1e4, 1e4):

        def far(tokens, shift=shift):
            return score(tokens) + shift

        log_z = exact.log_partition(score, space) + shift
        torch.testing.assert_close(exact.log_partition(far, space), log_z)
        torch.testing.assert_close(exact.marginals(far, space), exact.marginals(score, space))
        torch.testing.assert_close(
            exact.entropy(far, space), exact.entropy(score, space), rtol=1e-8, atol=1e-8
        )


def test_sequences_without_probability_add_nothing():
    """A chunk that holds nothing but -inf is no exception."""
    space = Space(vocab=2, time=3, chunk=2)

    def score(tokens):
        return torch.where(tokens[:, 0] == 0, float("-inf"), 0.0)

    assert exact.log_partition(score, space).item() == pytest.approx(math.log(4))
    assert exact.entropy(score, space).item() == pytest.approx(math.log(4))
    torch.testing.assert_close(
        exact.marginals(score, space)[0], torch.tensor([0.0, 1.0], dtype=torch.float64)
    )


def test_total_variation():
    space = Space(vocab=3, time=2, chunk=4)
    a, b = random_score(3, 2, seed=1), random_score(3, 2, seed=2)
    rows = [[w for _, w in listed(s, space)] for s in (a, b)]
    p, q = ([w / sum(r) for w in r] for r in rows)
    expected = sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
    assert exact.total_variation(a, b, space).item() == pytest.approx(expected)
    assert exact.total_variation(a, lambda t: a(t) + 7.0, space).item() == pytest.approx(0.0)
    zero, one = (lambda t, v=v: torch.where(t[:, 0] == v, 0.0, float("-inf")) for v in (0, 1))
    assert exact.total_variation(zero, one, space).item() == pytest.approx(1.0)


@pytest.mark.parametrize("chunk", [4, 1000])
def test_conditionals_are_joint_over_marginal(chunk):
    space = Space(vocab=3, time=3, chunk=chunk)
    score = random_score(3, 3)
    p = dict(listed(score, space))
    tokens = next(iter(exact.Space(vocab=3, time=3)))[::5]
    found = exact.conditionals(score, tokens, space).exp()
    for i, row in enumerate(tokens.tolist()):
        for t, v in itertools.product(range(3), repeat=2):
            others = [p[(*row[:t], u, *row[t + 1 :])] for u in range(3)]
            assert found[i, t, v].item() == pytest.approx(others[v] / sum(others))


def test_conditionals_leave_forbidden_tokens_out():
    space = Space(vocab=3, time=2, forbidden=(0,))
    found = exact.conditionals(random_score(3, 2), torch.tensor([[1, 2]]), space).exp()
    assert (found[..., 0] == 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 2).double())


@pytest.mark.parametrize("chunk", [10, 1000])
def test_gradient_of_log_z_is_the_expected_gradient(chunk):
    """d log Z / d theta = E_p[d s / d theta], the same with and without rescoring."""
    decoder = ToyDecoder(vocab=3)
    space = Space(vocab=3, time=3, chunk=chunk)
    exact.log_partition(lambda t: exact.sequence_scores(decoder, t)[0], space).backward()
    found = decoder.out.grad.clone()
    decoder.zero_grad()
    tokens = torch.cat(list(space))
    scores = exact.sequence_scores(decoder, tokens)[0]
    (scores.detach().softmax(0) * scores).sum().backward()
    torch.testing.assert_close(found, decoder.out.grad)


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("normalize", [True, False])
def test_sequence_scores_equal_one_step_at_a_time(eos, normalize):
    decoder = ToyDecoder(vocab=3, batch=2)
    wrapped = LocallyNormalized(decoder) if normalize else decoder
    tokens = torch.cat(list(exact.Space(vocab=3, time=3, eos=eos)))
    found = exact.sequence_scores(wrapped, tokens, eos=eos)
    for row in range(2):
        for i, sequence in enumerate(plain_sequences(3, 3, eos)):
            expected = plain_score(decoder, sequence, row, normalize=normalize)
            assert found[row, i].item() == pytest.approx(expected)


def test_a_locally_normalized_decoder_has_log_z_zero():
    for eos in EOS:
        score = exact.scorer(LocallyNormalized(ToyDecoder(vocab=3, batch=2)), eos=eos)
        log_z = exact.log_partition(score, Space(vocab=3, time=3, eos=eos))
        torch.testing.assert_close(log_z, torch.zeros(2).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("eos", EOS)
def test_localized_distribution_equals_the_global_one(eos):
    """Thesis, Sec. 2.5: log p(y) = s(y) - log Z, for each source of a batch."""
    decoder = ToyDecoder(vocab=3, batch=2)
    space = Space(vocab=3, time=4, eos=eos)
    local = exact.localize(decoder, time=4, eos=eos)
    assert isinstance(local, Decoder)
    score = exact.scorer(decoder, eos=eos)
    log_z = exact.log_partition(score, space)
    for tokens in space:
        found = exact.sequence_scores(local, tokens, eos=eos)
        torch.testing.assert_close(found, score(tokens) - log_z[:, None], rtol=0, atol=1e-10)
    apart = exact.total_variation(score, exact.scorer(local, eos=eos), space)
    assert apart.max() < 1e-10


@pytest.mark.parametrize("eos", EOS)
def test_every_localized_step_sums_to_one(eos):
    """Also after the end, and after a prefix of probability zero."""
    local = exact.localize(ToyDecoder(vocab=3), time=3, eos=eos)
    for prefix in itertools.product(range(3), repeat=2):
        state, emb = local.start()
        for token in (*prefix, None):
            log_p, state = local.step(state, emb)
            torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(1).double())
            emb = local.embedding[torch.tensor([token or 0])]


def test_a_localized_state_is_gathered_by_rows():
    local = exact.localize(ToyDecoder(vocab=3), time=2)
    state, emb = local.start()
    _, state = local.step(state, emb)
    rows = gather(state, torch.tensor([0, 0, 0]))
    log_p, _ = local.step(rows, local.embedding)
    score = exact.scorer(local)
    pairs = torch.tensor([[0, 2], [1, 2], [2, 2]])
    first, _ = local.step(*local.start())
    torch.testing.assert_close(first[0] + log_p[:, 2], score(pairs)[0])


def test_localized_beyond_its_length_is_an_error():
    local = exact.localize(ToyDecoder(vocab=3), time=2)
    with pytest.raises(ValueError, match="localized for 2 steps"):
        greedy(local, lengths=torch.tensor([3]))


def test_localized_forbidden_tokens_have_probability_zero():
    local = exact.localize(ToyDecoder(vocab=4), time=3, eos=1, forbidden=(0,))
    log_p, _ = local.step(*local.start())
    assert log_p[0, 0] == float("-inf") and log_p[0, 1:].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("eos", EOS)
def test_samples_of_the_localized_model_follow_the_global_one(eos):
    """Chi-square of ancestral samples against exp(s) / Z: below the 0.999 quantile."""
    n, decoder = 5000, ToyDecoder(vocab=3, scale=0.7)
    space = Space(vocab=3, time=3, eos=eos)
    tokens, log_p = next_all(exact.distribution(exact.scorer(decoder, eos=eos), space))
    decoder.memory = nn.Parameter(decoder.memory.expand(n, -1).clone())
    local = exact.localize(decoder, time=3, eos=eos)
    rng = torch.Generator().manual_seed(0)
    drawn = ancestral_sample(local, lengths=torch.full((n,), 3), eos=eos, rng=rng).tokens[:, 0]
    counts = Counter(tuple(row) for row in drawn.tolist())
    expected = {
        tuple(row): n * p for row, p in zip(tokens.tolist(), log_p.exp()[0].tolist(), strict=True)
    }
    assert not set(counts) - set(expected)
    statistic = sum((counts[key] - e) ** 2 / e for key, e in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def next_all(pairs):
    tokens, log_p = zip(*pairs, strict=True)
    return torch.cat(tokens), torch.cat(log_p, -1)


class Table:
    """A decoder of two steps: scores of the first token, and of the second given the first."""

    def __init__(self, first, second):
        self.first, self.second = torch.tensor([first]).double(), torch.tensor(second).double()
        self.embedding = torch.eye(len(first), dtype=torch.float64)

    def start(self):
        return (torch.zeros(1, 1), 0), torch.zeros(1, len(self.embedding), dtype=torch.float64)

    def step(self, state, emb):
        rows, t = state
        scores = self.first.expand(len(emb), -1) if t == 0 else emb @ self.second
        return scores, (rows, t + 1)


LOOKS_AHEAD = Table([2.0, 0.0, -9.0], [[-3.0, -3.0, -3.0], [0.0, -2.0, -2.0], [0.0, 0.0, 0.0]])
SPREADS = Table([0.0, 1.0, -9.0], [[0.0, 0.0, 0.0], [0.0, -9.0, -9.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("decoder", "raw_finds_it", "local_finds_it"),
    [(LOOKS_AHEAD, False, True), (SPREADS, True, False)],
)
def test_equal_distributions_are_searched_differently(decoder, raw_finds_it, local_finds_it):
    """Thesis, Sec. 5.1: with the same beam either form may miss what the other finds.

    Raw scores pursue a first token whose continuations are all bad; conditional probabilities
    know the future, but prefer a prefix whose mass is spread over many continuations.
    """
    space, lengths = Space(vocab=3, time=2), torch.tensor([2])
    local = exact.localize(decoder, time=2)
    apart = exact.total_variation(exact.scorer(decoder), exact.scorer(local), space)
    assert apart.item() < 1e-12
    truth = exact.best(exact.scorer(decoder), space)[0]
    for form, finds_it in ((decoder, raw_finds_it), (local, local_finds_it)):
        narrow = beam_search(form, k=1, lengths=lengths)
        total = exact.sequence_scores(form, narrow.tokens[0])  # a right search, if a narrow one
        torch.testing.assert_close(narrow.scores, total)
        assert torch.equal(narrow.tokens, truth) == finds_it
        wide = beam_search(form, k=space.size, lengths=lengths)
        torch.testing.assert_close(wide.tokens, truth)
