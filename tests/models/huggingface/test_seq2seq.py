"""Hugging Face encoder-decoders: their own forward, their own generate, and our conformance."""

import pytest
import torch

from softbeam.errors import UserError
from softbeam.models.huggingface.fast_steps import OFFSETS
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.objectives.scheduled_sampling import TwoPassScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.schedules import Constant, Moment
from softbeam.search.decoders import stepwise_scores
from softbeam.search.hard import beam_search
from softbeam.types import Batch
from support import conformance
from support.hf_toys import (
    bart,
    beams_equal_generate,
    ending_beams_equal_generate,
    gpt2,
    greedy_equals_generate,
    marian,
    random,
    sources,
    t5,
)

families = pytest.mark.parametrize("make", [marian, bart, t5])
SOURCE = torch.tensor([[3, 4, 5, 6], [6, 2, 0, 0]])
TARGET = torch.tensor([[5, 2, 3, 8, 4], [6, 3, 9, 2, 7]])


def inputs(adapter: HfSeq2Seq, source: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": adapter.renumbered(source), "attention_mask": (source != 0).long()}


@families
def test_scores_are_those_of_the_models_own_forward(make):
    """Through tokens there, through embeddings here: scale, positions, bias and start are right."""
    adapter = HfSeq2Seq(random(make))
    model = adapter.model
    start = torch.full((2, 1), model.config.decoder_start_token_id)
    ids = torch.cat([start, adapter.renumbered(TARGET[:, :-1])], 1)
    expected = model(**inputs(adapter, SOURCE), decoder_input_ids=ids).logits
    decoder = adapter(SOURCE)
    torch.testing.assert_close(decoder.forced(TARGET), expected[..., adapter.order])
    conformance.steps_equal_all_at_once(decoder, TARGET)


@families
def test_numbers_of_padding_and_of_the_end(make):
    adapter = HfSeq2Seq(random(make))
    ids = torch.arange(12)
    assert adapter.renumbered(torch.tensor(adapter.model.config.pad_token_id)) == 0
    assert adapter.renumbered(torch.tensor(adapter.model.config.eos_token_id)) == adapter.eos != 0
    assert torch.equal(adapter.renumbered(adapter.renumbered(ids)), ids)


@families
def test_conforms(make):
    decoder = HfSeq2Seq(random(make))(SOURCE)
    conformance.a_beam_of_equal_rows_scores_equally(decoder)
    conformance.mixing_with_a_one_hot_gathers(decoder)
    conformance.own_predictions_fed_back_are_the_greedy_path(decoder, time=4)


@pytest.mark.slow
@families
def test_soft_beams_tend_to_the_hard(make):
    adapter = HfSeq2Seq(random(make))
    with torch.no_grad():
        conformance.soft_beams_tend_to_the_hard(adapter(SOURCE), time=3, eos=adapter.eos)


@pytest.mark.slow
@families
def test_fast_soft_beams_equal_the_reference(make):
    adapter = HfSeq2Seq(random(make))
    conformance.fast_soft_beams_equal_the_reference(adapter, SOURCE, [3, 2], adapter.eos)


@pytest.mark.slow
@families
def test_gradients_through_the_mixed_cache(make):
    conformance.gradients_flow_through_the_mixed_cache(HfSeq2Seq(random(make)), SOURCE)


@families
def test_looking_up_padding_has_no_gradient_as_in_the_models_own_training(make):
    adapter = HfSeq2Seq(random(make))
    adapter.embedding().sum().backward()
    rows = adapter.tokens.weight.grad.abs().sum(1)
    fixed = adapter.tokens.padding_idx
    assert [i for i, row in enumerate(rows) if row == 0] == ([] if fixed is None else [fixed])


@families
def test_padding_and_the_order_of_the_batch_change_nothing(make):
    conformance.beams_of_a_source_do_not_depend_on_the_batch(HfSeq2Seq(random(make)), SOURCE)


@pytest.mark.slow
@pytest.mark.parametrize("make,seed", [(marian, 6), (bart, 6), (t5, 0)])
def test_searches_are_those_of_generate(make, seed):
    """On 200 sources; with these seeds the outputs differ, and some of them end."""
    adapter, source = HfSeq2Seq(random(make, seed)), sources(200)
    greedy_equals_generate(adapter, inputs(adapter, source), source)
    beams_equal_generate(adapter, inputs(adapter, source), source)
    ending_beams_equal_generate(adapter, inputs(adapter, source), source)


@families
@pytest.mark.parametrize(
    "objective",
    [
        DirectLoss(k=2, finish=True),
        TwoPassScheduledSampling(gold=Constant(value=0.0), gold_epochs=0),
    ],
    ids=lambda o: type(o).__name__,
)
def test_objectives_reach_every_parameter(make, objective):
    adapter = HfSeq2Seq(random(make)).train()
    target = torch.cat([TARGET[:, :3], torch.full((2, 1), adapter.eos)], 1)
    batch = Batch.of(SOURCE, target, eos=adapter.eos)
    objective(adapter, batch, now=Moment(), rng=torch.Generator()).total.backward()
    for name, parameter in adapter.named_parameters():
        shift = name.endswith("k_proj.bias")  # adds the same to all scores of an attention
        unread = name == "model.model.shared.weight"  # by Marian and BART while nothing is tied
        if parameter.requires_grad and not shift and not unread:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("make", [marian, bart])
def test_fast_steps_are_those_of_the_model(make):
    """With the model's weights of now, and only without gradients."""
    adapter, source = HfSeq2Seq(random(make)), sources(5)
    for scale in (1.0, 0.9):
        with torch.no_grad():
            adapter.model.get_decoder().layers[0].fc1.weight.mul_(scale)
            decoder = adapter(source)
            assert decoder.fast is not None
            expected = decoder.forced(source)
            torch.testing.assert_close(stepwise_scores(decoder, source), expected)
        assert stepwise_scores(adapter(source), source).requires_grad


def test_fast_steps_that_differ_are_not_used(monkeypatch):
    adapter, source = HfSeq2Seq(random(marian)), sources(5)
    monkeypatch.setitem(OFFSETS, "MarianMTModel", 1)  # the second position in place of the first
    with torch.no_grad():
        decoder = adapter(source)
        assert decoder.fast is None and adapter(source).fast is None
        torch.testing.assert_close(stepwise_scores(decoder, source), decoder.forced(source))


@families
def test_some_sources_can_be_left_out(make):
    with torch.no_grad():
        conformance.some_sources_can_be_left_out(HfSeq2Seq(random(make))(sources(3)), sources(3))


def test_errors():
    with pytest.raises(UserError, match="GPT2LMHeadModel is not an encoder-decoder"):
        HfSeq2Seq(gpt2())
    model = marian()
    with pytest.raises(ValueError, match="17 positions; the model's limit is 16"):
        beam_search(HfSeq2Seq(model)(SOURCE), k=1, lengths=torch.tensor([17, 17]))
