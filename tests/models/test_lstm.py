"""Conformance: step by step equals all at once, and padding never changes a number."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softbeam.data.batches import collate
from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.schedules import Moment
from softbeam.search.decoders import LocallyNormalized, forced_scores, stepwise_scores
from softbeam.search.hard import beam_search
from softbeam.search.soft.beam import REFERENCE, Form
from softbeam.search.soft.loop import soft_beam_loss
from softbeam.tensors import gather, mix
from softbeam.types import Decoder, FusedDecoder
from support.small_data import examples

KINDS = [
    {"encoder": "uni", "attention": "fixed"},
    {"encoder": "bi", "attention": "fixed", "layers": 2},
    {"encoder": "bi", "attention": "bahdanau"},
    {"encoder": "uni", "attention": "bahdanau", "layers": 2, "tied": True},
]


def build(options: dict, seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(9, 7, embedding=5, hidden=6, **options).double().eval()


@pytest.mark.parametrize("options", KINDS)
def test_step_by_step_equals_all_at_once(options):
    model, batch = build(options), collate(examples([5, 5, 5]))
    decoder = model(batch.source)
    assert isinstance(decoder, Decoder) and isinstance(decoder, FusedDecoder)
    torch.testing.assert_close(decoder.forced(batch.target), stepwise_scores(decoder, batch.target))
    wrapped = LocallyNormalized(decoder)
    torch.testing.assert_close(
        forced_scores(wrapped, batch.target), stepwise_scores(wrapped, batch.target)
    )


@pytest.mark.parametrize("options", KINDS)
def test_outputs_may_be_longer_than_the_source(options):
    model = build(options)
    decoder = model(torch.tensor([[3, 4]]))
    target = torch.tensor([[1, 2, 3, 4, 5]])
    torch.testing.assert_close(decoder.forced(target), stepwise_scores(decoder, target))


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS)
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), extra=st.integers(0, 3))
def test_padding_never_changes_a_number(options, lengths, extra):
    """Memory, loss, gradient and decode of a sentence, alone and in a padded batch."""
    model, data = build(options), examples(lengths)
    batch = collate(data)
    padding = torch.zeros(len(data), extra, dtype=torch.long)
    batch = batch._replace(
        source=torch.cat([batch.source, padding], 1),
        target=torch.cat([batch.target, padding], 1),
        mask=torch.cat([batch.mask, padding.bool()], 1),
    )
    rng = torch.Generator()

    def gradients(one) -> list[torch.Tensor]:
        loss = CrossEntropy()(model, one, now=Moment(), rng=rng).total
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    together = gradients(batch)
    alone = [gradients(collate([e])) for e in data]
    for i, value in enumerate(together):
        torch.testing.assert_close(value, sum(a[i] for a in alone))

    limits = torch.tensor([len(e.source) for e in data])
    found = beam_search(model(batch.source), k=3, lengths=limits)
    for row, example in enumerate(data):
        single = collate([example])
        memory = model(single.source).encoded.memory
        inside = model(batch.source).encoded.memory[row, : len(example.source)]
        torch.testing.assert_close(memory[0], inside)
        one = beam_search(model(single.source), k=3, lengths=limits[row : row + 1])
        assert one.tokens[0, 0].tolist() == found.tokens[row, 0, : limits[row]].tolist()
        torch.testing.assert_close(one.scores[0], found.scores[row])


@pytest.mark.parametrize("options", KINDS)
def test_order_of_the_batch_does_not_matter(options):
    model, batch = build(options), collate(examples([2, 6, 4]))
    order = torch.tensor([2, 0, 1])
    scores = model(batch.source).forced(batch.target)
    permuted = model(batch.source[order]).forced(batch.target[order])
    torch.testing.assert_close(scores[order], permuted)


@pytest.mark.parametrize("options", KINDS)
def test_a_beam_of_equal_rows_scores_equally(options):
    """Rows are batch-major: n rows for each source need no copy of its memory."""
    model, batch = build(options), collate(examples([4, 3]))
    decoder = model(batch.source)
    state, emb = decoder.start()
    scores, after = decoder.step(state, emb)
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    wide, wide_after = decoder.step(gather(state, rows), emb[rows])
    torch.testing.assert_close(wide, scores[rows])
    again, _ = decoder.step(after, emb)
    again_wide, _ = decoder.step(wide_after, emb[rows])
    torch.testing.assert_close(again_wide, again[rows])


@pytest.mark.parametrize("options", KINDS)
def test_mixing_with_a_one_hot_gathers(options):
    decoder = build(options)(collate(examples([4, 3])).source)
    state, emb = decoder.start()
    _, state = decoder.step(gather(state, torch.tensor([0, 0, 1, 1])), emb[[0, 0, 1, 1]])
    back = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]).double()
    mixed, chosen = mix(state, back), gather(state, torch.tensor([1, 0, 2, 2]))
    for (h, c), (h2, c2) in zip(mixed[0], chosen[0], strict=True):
        torch.testing.assert_close(h, h2)
        torch.testing.assert_close(c, c2)
    assert mixed[1] == chosen[1] == 1


@pytest.mark.parametrize("options", KINDS)
def test_gradient_reaches_every_parameter(options):
    model, batch = build(options), collate(examples([4, 3, 5]))
    CrossEntropy()(model, batch, now=Moment(), rng=torch.Generator()).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_unidirectional_encoder_sees_only_the_past():
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 8]])
    target = torch.tensor([[1, 1, 1, 1]])
    for options, same in ((KINDS[0], True), (KINDS[1], False)):
        model = build(options)
        first, second = model(a).forced(target)[:, :3], model(b).forced(target)[:, :3]
        assert torch.equal(first, second) == same


def test_tied_embeddings_need_equal_widths():
    with pytest.raises(ValueError, match="tied"):
        Seq2Seq(9, 7, embedding=5, hidden=6, tied=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("wrap", [lambda d: d, LocallyNormalized], ids=["raw", "local"])
@pytest.mark.parametrize("eos", [None, 1])
def test_fast_soft_beams_equal_the_reference_on_every_model(options, wrap, eos):
    """Values to 1e-6 and gradients to 1e-5, dense and over a pool of candidates."""
    model, batch = build(options), collate(examples([4, 2, 3]))
    costs = torch.rand(3, 4, 7, generator=torch.Generator().manual_seed(1)).double()
    lengths = batch.mask.sum(1)

    def value_and_gradient(form: Form) -> list[torch.Tensor]:
        decoder = wrap(model(batch.source))
        loss = soft_beam_loss(
            decoder, costs, k=3, alpha=2.0, lengths=lengths, eos=eos, form=form
        ).sum()
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    expected = value_and_gradient(REFERENCE)
    for form in (Form(), Form(candidates=4, tolerance=1e-9), Form(checkpoint=True)):
        found = value_and_gradient(form)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6)
        for a, b in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
