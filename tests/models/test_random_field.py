"""The random field of two LSTMs against plain loops; what it reads, and what it shares."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from softbeam.models.random_field import BiLstmMrf, box_sides
from softbeam.objectives.losses.energy import Field, SharingField, log_phi, one_by_one
from softbeam.types import Energy, MaskedLM

V = 3


def build(vocab: int = V, seed: int = 0, *, embedding: int = 4, hidden: int = 5) -> BiLstmMrf:
    """A model with large weights, so that every context matters."""
    torch.manual_seed(seed)
    model = BiLstmMrf(vocab, embedding=embedding, hidden=hidden).double()
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    return model


def texts(lengths: list[int], *, vocab: int = V, width: int | None = None, fill: int = 0, seed=0):
    """Random tokens and their mask, padded with `fill`."""
    rng = torch.Generator().manual_seed(seed)
    width = max(lengths) if width is None else width
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    tokens = torch.full((len(lengths), width), fill)
    for row, n in enumerate(lengths):
        tokens[row, :n] = torch.randint(vocab, (n,), generator=rng)
    return tokens, mask


def plain_states(lstm, vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """h before each of the vectors, the cell written out."""
    w_ih, w_hh, b_ih, b_hh = lstm.all_weights[0]
    h = c = torch.zeros(lstm.hidden_size, dtype=torch.float64)
    before = []
    for x in vectors:
        before.append(h)
        i, f, g, o = (w_ih @ x + b_ih + w_hh @ h + b_hh).view(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return before


def plain_potentials(model: BiLstmMrf, sequence) -> torch.Tensor:
    """f(v, h(y\\t)) of one sequence: time, vocab."""
    vectors = [model.embed.weight[y] for y in sequence]
    past = plain_states(model.past.lstm, vectors)
    future = plain_states(model.future.lstm, vectors[::-1])[::-1]
    rows = []
    for left, right in zip(past, future, strict=True):
        a = model.past.share.weight @ left + model.past.share.bias
        b = model.future.share.weight @ right + model.future.share.bias
        rows.append(model.output.weight @ (a + b).clamp(min=0) + model.output.bias)
    return torch.stack(rows)


def plain_energy(model: BiLstmMrf, sequence) -> torch.Tensor:
    scores = plain_potentials(model, sequence)
    return -sum(scores[t, y] for t, y in enumerate(sequence))


def gradients(value: torch.Tensor, model: BiLstmMrf) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    pairs = zip(model.parameters(), found, strict=True)
    return [torch.zeros_like(p) if g is None else g for p, g in pairs]


def test_potentials_and_energy_equal_plain_loops():
    model, lengths = build(), [4, 1, 3]
    tokens, mask = texts(lengths)
    found = model.potentials(tokens, mask)
    energy = model.energy(tokens.masked_fill(~mask, model.pad_id))
    for row, n in enumerate(lengths):
        sequence = tokens[row, :n].tolist()
        torch.testing.assert_close(found[row, :n], plain_potentials(model, sequence))
        torch.testing.assert_close(energy[row], plain_energy(model, sequence))
    assert not found[~mask].any()
    torch.testing.assert_close(energy, -log_phi(model, tokens, mask))


def test_the_protocols_are_satisfied():
    model = build()
    assert isinstance(model, Field) and isinstance(model, SharingField)
    assert isinstance(model, MaskedLM) and isinstance(model.energy, Energy)
    assert model.allowed.tolist() == [True] * V and model.pad_id == V


@pytest.mark.parametrize("t", range(4))
def test_a_position_reads_all_others_and_not_itself(t):
    model, (tokens, mask) = build(), texts([4])
    before = model.potentials(tokens, mask)
    for v in range(V):
        changed = tokens.clone()
        changed[0, t] = v
        after = model.potentials(changed, mask)
        torch.testing.assert_close(after[0, t], before[0, t], rtol=0, atol=0)
        if v != tokens[0, t]:
            for s in set(range(4)) - {t}:
                assert (after[0, s] - before[0, s]).abs().max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["potentials", "substituted"])
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    extra=st.integers(0, 2),
    fill=st.integers(0, V + 1),
)
def test_padding_never_changes_a_number(method, lengths, extra, fill):
    """Alone or in a batch, padded with anything, values and gradients are the same."""
    model = build()
    width = max(1, max(lengths)) + extra
    tokens, mask = texts(lengths, width=width, fill=fill)
    together = getattr(model, method)(tokens, mask)
    alone = []
    for row, n in enumerate(lengths):
        one = slice(row, row + 1)
        if n:
            alone.append(getattr(model, method)(tokens[one, :n], mask[one, :n]))
            torch.testing.assert_close(together[one, :n], alone[-1])
    assert not together[~mask].any()
    if alone:
        pairs = zip(
            gradients(together.square().sum(), model),
            gradients(sum(a.square().sum() for a in alone), model),
            strict=True,
        )
        for a, b in pairs:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", ["potentials", "substituted"])
def test_permuting_the_batch_permutes_the_answer(method):
    model, (tokens, mask) = build(), texts([4, 2, 3])
    order = torch.tensor([2, 0, 1])
    found = getattr(model, method)(tokens, mask)
    torch.testing.assert_close(getattr(model, method)(tokens[order], mask[order]), found[order])


def test_padding_elsewhere_is_an_error():
    model, (tokens, _) = build(), texts([3, 3])
    hole = torch.tensor([[True, True, True], [True, False, True]])
    with pytest.raises(ValueError, match="row 1"):
        model.potentials(tokens, hole)


def test_sizes_are_checked():
    for name in ("vocab", "embedding", "hidden"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            BiLstmMrf(**({"vocab": 3, "embedding": 2, "hidden": 2} | {name: 0}))
    with pytest.raises(ValueError, match="time=0"):
        build().log_partition(0)
    with pytest.raises(ValueError, match="chunk=0"):
        build().log_partition(2, chunk=0)


# The masked language model


def masked_logits(model, tokens, masked):
    return model.logits(tokens, masked, torch.zeros(len(tokens), dtype=torch.long))


def test_one_masked_position_gives_the_potentials_whatever_stands_there():
    model, lengths = build(), [4, 2, 3]
    tokens, mask = texts(lengths)
    tokens = tokens.masked_fill(~mask, model.pad_id)
    potentials = model.potentials(tokens, mask)
    for t in range(2):
        masked = torch.zeros_like(mask)
        masked[:, t] = True
        torch.testing.assert_close(masked_logits(model, tokens, masked), potentials[:, t])
        for stands in (0, model.pad_id, model.mask_id):
            other = tokens.masked_fill(masked, stands)
            torch.testing.assert_close(masked_logits(model, other, masked), potentials[:, t])


def test_masked_cells_come_row_by_row_and_hide_what_they_held():
    model = build()
    tokens, _ = texts([4, 4, 4])
    masked = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]).bool()
    found = masked_logits(model, tokens, masked)
    assert found.shape == (5, V)
    torch.testing.assert_close(masked_logits(model, tokens[:1], masked[:1]), found[:2])
    torch.testing.assert_close(masked_logits(model, tokens[2:], masked[2:]), found[2:])
    hidden = tokens.where(~masked, (tokens + 1) % V)
    torch.testing.assert_close(masked_logits(model, hidden, masked), found, rtol=0, atol=0)
    expected = plain_potentials(model, tokens[0].where(~masked[0], model.mask_id).tolist())
    torch.testing.assert_close(found[:2], expected[[1, 3]])
    seen = tokens.where(masked, (tokens + 1) % V)
    assert (masked_logits(model, seen, masked) - found).abs().amin(-1).max() > 1e-6


def test_raw_energy_of_the_masked_language_model_is_the_fields_energy():
    from softbeam.sampling.energies import RawEnergy

    model, (tokens, mask) = build(), texts([4, 2, 3])
    tokens = tokens.masked_fill(~mask, model.pad_id)
    torch.testing.assert_close(RawEnergy(model)(tokens), model.energy(tokens))


# What is shared


@pytest.mark.parametrize("lengths", [[1], [2, 1], [4, 2, 3]])
def test_substitutions_equal_whole_sequences_one_by_one(lengths):
    model = build()
    tokens, mask = texts(lengths)
    found = model.substituted(tokens, mask)
    for row, n in enumerate(lengths):
        for t, v in itertools.product(range(n), range(V)):
            sequence = tokens[row, :n].tolist()
            sequence[t] = v
            torch.testing.assert_close(found[row, t, v], -plain_energy(model, sequence))
    reference = one_by_one(model)(tokens, mask)
    torch.testing.assert_close(found, reference)
    weights = torch.randn(found.shape, dtype=torch.float64)
    for a, b in zip(
        gradients((found * weights).sum(), model),
        gradients((reference * weights).sum(), model),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("time", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 5, 12, None])
def test_log_partition_equals_plain_loops_for_every_chunk(time, chunk):
    model = build()
    sequences = list(itertools.product(range(V), repeat=time))
    scores = torch.stack([-plain_energy(model, sequence) for sequence in sequences])
    expected = scores.exp().sum().log()
    found = model.log_partition(time, chunk=chunk)
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients(found, model), gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b)


def test_a_box_is_in_the_order_of_its_tokens():
    model = build(4)
    box = [torch.tensor([1, 3]), torch.tensor([2]), torch.tensor([0, 1, 2])]
    found = model.box_scores(box)
    for i, sequence in enumerate(itertools.product(*(side.tolist() for side in box))):
        torch.testing.assert_close(found[i], -plain_energy(model, sequence))


@given(vocab=st.integers(1, 50), time=st.integers(1, 7), chunk=st.integers(1, 10**6))
def test_boxes_keep_within_the_chunk(vocab, time, chunk):
    sides = box_sides(vocab, time, chunk)
    assert len(sides) == time and all(1 <= side <= vocab for side in sides)
    assert math.prod(sides) <= chunk
    if vocab**time <= chunk:
        assert sides == [vocab] * time


def test_single_precision_follows_double():
    model, (tokens, mask) = build(), texts([4, 2, 3])
    double = model.substituted(tokens, mask).float(), model.log_partition(3)
    single = model.float()
    torch.testing.assert_close(single.substituted(tokens, mask), double[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.log_partition(3), double[1], rtol=1e-5, atol=1e-5)
    assert single.log_partition(3).dtype == torch.float64
