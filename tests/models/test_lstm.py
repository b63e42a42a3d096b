"""Conformance: step by step equals all at once, and padding never changes a number."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from softbeam.data.batches import collate
from softbeam.models.lstm import Seq2Seq
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.schedules import Moment
from softbeam.search.decoders import stepwise_scores
from support import conformance
from support.small_data import examples

KINDS = [
    {"encoder": "uni", "attention": "fixed"},
    {"encoder": "bi", "attention": "fixed", "layers": 2},
    {"encoder": "bi", "attention": "bahdanau"},
    {"encoder": "uni", "attention": "bahdanau", "layers": 2, "tied": True},
    {"encoder": "uni", "attention": "fixed", "shortcut": True},
    {"encoder": "bi", "attention": "bahdanau", "shortcut": True},
]


def build(options: dict, seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    return Seq2Seq(9, 7, embedding=5, hidden=6, **options).double().eval()


@pytest.mark.parametrize("options", KINDS)
def test_step_by_step_equals_all_at_once(options):
    batch = collate(examples([5, 5, 5]))
    conformance.steps_equal_all_at_once(build(options)(batch.source), batch.target)


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
    model, data = build(options), examples(lengths)
    batch = conformance.padding_never_changes_a_number(model, data, extra)
    for row, example in enumerate(data):
        memory = model(collate([example]).source).encoded.memory
        inside = model(batch.source).encoded.memory[row, : len(example.source)]
        torch.testing.assert_close(memory[0], inside)


@pytest.mark.parametrize("options", KINDS)
def test_some_sources_can_be_left_out(options):
    batch = collate(examples([5, 2, 4]))
    conformance.some_sources_can_be_left_out(build(options)(batch.source), batch.target)


@pytest.mark.parametrize("options", KINDS)
def test_order_of_the_batch_does_not_matter(options):
    batch = collate(examples([2, 6, 4]))
    conformance.the_order_of_the_batch_does_not_matter(build(options), batch)


@pytest.mark.parametrize("options", KINDS)
def test_conforms(options):
    decoder = build(options)(collate(examples([4, 3])).source)
    conformance.a_beam_of_equal_rows_scores_equally(decoder)
    conformance.mixing_with_a_one_hot_gathers(decoder)
    conformance.own_predictions_fed_back_are_the_greedy_path(decoder, time=4)


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
@pytest.mark.parametrize("eos", [None, 1])
def test_fast_soft_beams_equal_the_reference(options, eos):
    source = collate(examples([4, 2, 3])).source
    conformance.fast_soft_beams_equal_the_reference(build(options), source, [4, 2, 3], eos)


@pytest.mark.parametrize("options", KINDS)
def test_other_outputs_are_seen_in_training_alone(options):
    """With all of them exchanged within a batch, only the first step sees what it should."""
    model = build(options | {"label_noise": 1.0})
    batch = collate(examples([5, 5, 5]))
    decoder = model(batch.source)
    gold = decoder.forced(batch.target)
    conformance.steps_equal_all_at_once(decoder, batch.target)
    model.train()
    noisy = decoder.forced(batch.target)
    torch.testing.assert_close(noisy[:, 0], gold[:, 0])
    assert not torch.equal(noisy, gold)
    same = torch.full_like(batch.target, 3)  # there is no other one
    torch.testing.assert_close(decoder.forced(same), model.eval()(batch.source).forced(same))


def test_the_share_of_other_outputs():
    torch.manual_seed(0)
    model = Seq2Seq(9, 10_000, embedding=5, hidden=6, label_noise=0.3).train()
    target = torch.arange(10_000).reshape(100, 100)
    seen = (model.remembered(target) == model.embed(target)).all(-1)
    assert 0.68 < seen.double().mean() < 0.72
    others = model.remembered(target)[~seen]
    assert (others[:, None] == model.embed(target.flatten()[:500])[None]).all(-1).any()
