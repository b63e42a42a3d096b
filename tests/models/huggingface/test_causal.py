"""Hugging Face causal language models: their own forward, their own generate, our conformance."""

import pytest
import torch

from softbeam.errors import UserError
from softbeam.models.huggingface.causal import HfCausalLM
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.schedules import Moment
from softbeam.search.hard import beam_search
from softbeam.types import Batch
from support import conformance
from support.hf_toys import (
    beams_equal_generate,
    ending_beams_equal_generate,
    gpt2,
    greedy_equals_generate,
    llama,
    random,
    sources,
    t5,
)

families = pytest.mark.parametrize("make", [gpt2, llama])
PROMPTS = torch.tensor([[3, 4, 5, 6], [6, 0, 0, 0]])
TARGET = torch.tensor([[5, 2, 3, 8, 4], [6, 3, 9, 2, 7]])


def left(adapter: HfCausalLM, source: torch.Tensor) -> dict[str, torch.Tensor]:
    """The prompts as `generate` wants them: padded on the left."""
    rows = [row[row == 0].tolist() + row[row != 0].tolist() for row in source]
    moved = torch.tensor(rows)
    return {"input_ids": adapter.renumbered(moved), "attention_mask": (moved != 0).long()}


@families
def test_scores_are_those_of_the_models_own_forward(make):
    adapter = HfCausalLM(random(make))
    decoder = adapter(PROMPTS)
    forced = decoder.forced(TARGET)
    for row, n in enumerate((PROMPTS != 0).sum(1).tolist()):
        ids = torch.cat([PROMPTS[row, :n], TARGET[row, :-1]])[None]
        expected = adapter.model(input_ids=adapter.renumbered(ids)).logits[0, n - 1 :]
        torch.testing.assert_close(forced[row], expected[:, adapter.order])
    conformance.steps_equal_all_at_once(decoder, TARGET)


@families
def test_conforms(make):
    decoder = HfCausalLM(random(make))(PROMPTS)
    conformance.a_beam_of_equal_rows_scores_equally(decoder)
    conformance.mixing_with_a_one_hot_gathers(decoder)
    conformance.own_predictions_fed_back_are_the_greedy_path(decoder, time=4)


@pytest.mark.slow
@families
def test_soft_beams_tend_to_the_hard(make):
    adapter = HfCausalLM(random(make))
    with torch.no_grad():
        conformance.soft_beams_tend_to_the_hard(adapter(PROMPTS), time=3, eos=adapter.eos)


@pytest.mark.slow
@families
def test_fast_soft_beams_equal_the_reference(make):
    adapter = HfCausalLM(random(make))
    conformance.fast_soft_beams_equal_the_reference(adapter, PROMPTS, [3, 2], adapter.eos)


@pytest.mark.slow
@families
def test_gradients_through_the_mixed_cache(make):
    conformance.gradients_flow_through_the_mixed_cache(HfCausalLM(random(make)), PROMPTS)


@families
def test_padding_and_the_order_of_the_batch_change_nothing(make):
    conformance.beams_of_a_source_do_not_depend_on_the_batch(HfCausalLM(random(make)), PROMPTS)


@pytest.mark.slow
@families
def test_searches_are_those_of_generate(make):
    """On 200 prompts; with this seed the outputs differ, and some of them end."""
    adapter, source = HfCausalLM(random(make, seed=1)), sources(200)
    greedy_equals_generate(adapter, left(adapter, source), source)
    beams_equal_generate(adapter, left(adapter, source), source)
    ending_beams_equal_generate(adapter, left(adapter, source), source)


@families
def test_an_objective_reaches_every_parameter(make):
    adapter = HfCausalLM(random(make)).train()
    target = torch.cat([TARGET[:, :3], torch.full((2, 1), adapter.eos)], 1)
    batch = Batch.of(PROMPTS, target, eos=adapter.eos)
    objective = DirectLoss(k=2, finish=True)
    objective(adapter, batch, now=Moment(), rng=torch.Generator()).total.backward()
    for name, parameter in adapter.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_errors():
    with pytest.raises(UserError, match="T5ForConditionalGeneration is an encoder-decoder"):
        HfCausalLM(t5())
    model = gpt2()
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    with pytest.raises(UserError, match="GPT2LMHeadModel has no pad_token_id"):
        HfCausalLM(model)
    adapter = HfCausalLM(model, pad_id=11)
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        adapter(torch.tensor([[3, 4], [0, 0]]))
    with pytest.raises(ValueError, match="17 positions; the model's limit is 16"):
        beam_search(adapter(PROMPTS), k=1, lengths=torch.tensor([14, 14]))
