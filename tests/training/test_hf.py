"""Searches inside `generate`, against transformers' own and against lists of all outputs."""

import itertools

import pytest
import torch

import softbeam
from softbeam.errors import UserError
from softbeam.models.huggingface.causal import HfCausalLM
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.hard import beam_search
from softbeam.training.hf import to_the_left, utilities
from support.hf_toys import VOCAB, bart, gpt2, llama, marian, random, t5

TEXTS = (marian, bart, t5)
CAUSAL = (gpt2, llama)


def inputs(model):
    """Sources or prompts of unequal lengths, as a tokenizer pads them."""
    rng = torch.Generator().manual_seed(0)
    config = model.config
    special = {config.pad_token_id, config.eos_token_id}
    special |= {getattr(config, "decoder_start_token_id", None)}
    usual = torch.tensor([t for t in range(VOCAB) if t not in special])
    ids = usual[torch.randint(len(usual), (3, 5), generator=rng)]
    mask = torch.ones_like(ids)
    for row, n in enumerate((5, 3, 4)):
        away = slice(n, None) if config.is_encoder_decoder else slice(0, 5 - n)
        ids[row, away], mask[row, away] = config.pad_token_id, 0
    return {"input_ids": ids, "attention_mask": mask}


SETTINGS = {
    "plain": {},
    "several, short ones preferred": {"num_return_sequences": 2, "length_penalty": -1.0},
    "long ones preferred": {"length_penalty": 2.0, "early_stopping": "never"},
    "first k": {"early_stopping": True},
    "processors": {"no_repeat_ngram_size": 2, "min_new_tokens": 3, "repetition_penalty": 1.3},
    "forbidden words": {"bad_words_ids": [[4], [5, 6]]},
}


@pytest.mark.parametrize("make", TEXTS + CAUSAL)
@pytest.mark.parametrize("name", SETTINGS)
def test_beams_are_those_of_generate(make, name):
    model = random(make, seed=3)
    knobs = {"num_beams": 3, "max_new_tokens": 6, "return_dict_in_generate": True}
    knobs |= SETTINGS[name] | {"output_scores": True} | inputs(model)
    expected = model.generate(**knobs)
    ours = model.generate(**knobs, custom_generate=softbeam.hf.beam)
    assert ours.sequences.tolist() == expected.sequences.tolist()
    assert type(ours) is type(expected)
    torch.testing.assert_close(ours.sequences_scores.float(), expected.sequences_scores)
    alone = model.generate(
        **knobs | {"return_dict_in_generate": False}, custom_generate=softbeam.hf.beam
    )
    assert torch.equal(alone, ours.sequences)


@pytest.mark.parametrize("make", [marian, gpt2])
def test_a_sharp_soft_beam_is_a_hard_one(make):
    model = random(make, seed=1)
    kind = HfSeq2Seq if model.config.is_encoder_decoder else HfCausalLM
    adapter, given = kind(model), inputs(model)
    source = to_the_left(adapter.renumbered(given["input_ids"]), given["attention_mask"].bool())
    four = int(adapter.renumbered(torch.tensor(4)))
    decoder = Forbidding(LocallyNormalized(adapter(source)), [four])
    hard = beam_search(decoder, k=3, lengths=torch.full((3,), 4), eos=adapter.eos, nbest=2)
    knobs = given | {"num_beams": 3, "max_new_tokens": 4, "bad_words_ids": [[4]]}
    knobs |= {"num_return_sequences": 2, "custom_generate": softbeam.hf.soft_beam}
    soft, mild = (model.generate(**knobs, alpha=alpha) for alpha in (1e4, 0.01))
    new = adapter.renumbered(soft[:, -int(hard.lengths.max()) :]).unflatten(0, (3, 2))
    for row, beam, n in zip(
        new.flatten(0, 1), hard.tokens.flatten(0, 1), hard.lengths.flatten(), strict=True
    ):
        assert row[:n].tolist() == beam[:n].tolist()
    assert soft.tolist() != mild.tolist()
    with pytest.raises(UserError, match="cannot apply NoRepeatNGram"):
        model.generate(**knobs, no_repeat_ngram_size=2)


@torch.no_grad()
def continuations(model, prompt, new):
    """All continuations of a prompt with their log-probabilities, by the model's own forward."""
    tokens = torch.tensor(list(itertools.product(range(VOCAB), repeat=new)))
    ids = torch.cat([torch.tensor([prompt]).expand(len(tokens), -1), tokens], 1)
    logits = model(ids).logits[:, len(prompt) - 1 : -1].log_softmax(-1)
    scores = logits.gather(2, tokens[:, :, None]).sum((1, 2))
    return zip(scores.tolist(), map(tuple, tokens.tolist()), strict=True)


@pytest.mark.slow
def test_constraints_are_exact_on_a_small_case():
    model = random(gpt2, seed=2)
    prompt = [3, 7]
    model.generation_config.eos_token_id = None  # outputs are as long as they may be
    model.config.eos_token_id = None
    keep = {"must_occur": [[5, 6]], "must_not_occur": [[6, 6], [1]]}
    ours = model.generate(
        torch.tensor([prompt]),
        num_beams=VOCAB**3,
        max_new_tokens=3,
        custom_generate=softbeam.hf.constrained_beam,
        **keep,
    )
    allowed = [
        (score, tokens)
        for score, tokens in continuations(model, prompt, 3)
        if any(tokens[i : i + 2] == (5, 6) for i in (0, 1)) and 1 not in tokens
        if all(tokens[i : i + 2] != (6, 6) for i in (0, 1))
    ]
    assert ours[0].tolist() == [*prompt, *max(allowed)[1]]


@pytest.mark.parametrize("make", TEXTS + CAUSAL)
def test_phrases_occur_or_do_not(make):
    model = random(make, seed=5)
    knobs = {"num_beams": 2, "max_new_tokens": 7} | inputs(model)
    search = softbeam.hf.constrained_beam
    found = model.generate(**knobs, custom_generate=search, must_occur=[[4, 5], [6]])
    for row in found.tolist():
        assert any(row[i : i + 2] == [4, 5] for i in range(len(row))) and 6 in row
    plain = model.generate(**knobs, custom_generate=softbeam.hf.beam)
    new = plain[0, -1 if model.config.is_encoder_decoder else inputs(model)["input_ids"].shape[1]]
    if int(new) not in (model.config.eos_token_id, model.config.pad_token_id):
        other = model.generate(**knobs, custom_generate=search, must_not_occur=[[int(new)]])
        start = 1 if model.config.is_encoder_decoder else inputs(model)["input_ids"].shape[1]
        assert int(new) not in other[0, start:].tolist()
    with pytest.raises(UserError, match="no output of at most 7 tokens holds all"):
        model.generate(**knobs, custom_generate=search, must_occur=[[4] * 8])
    with pytest.raises(UserError, match="constrained_beam: phrase"):
        model.generate(**knobs, custom_generate=search, must_occur=[[]])


def test_the_least_risk_is_that_of_plain_loops():
    texts = ["a b c", "a b d", "x y", "a b c"]
    table = utilities(texts, "edit")
    assert table.tolist()[0] == pytest.approx([1, 1 - 1 / 3, 1 - 3 / 2, 1])
    assert utilities(texts, "chrf").diagonal().tolist() == pytest.approx([1.0] * 4)
    assert utilities(texts, "bleu")[0, 2] < 0.2
    model = random(marian, seed=1)
    knobs = {"num_beams": 4, "max_new_tokens": 5} | inputs(model)
    beams = model.generate(**knobs, num_return_sequences=4, return_dict_in_generate=True)
    chosen = model.generate(**knobs, custom_generate=softbeam.hf.mbr, candidates=4, utility="edit")
    for row, source in enumerate(chosen.tolist()):
        outputs = [beams.sequences[4 * row + i].tolist() for i in range(4)]
        assert source[: len(outputs[0])] in [o[: len(source)] for o in outputs]


def test_samples_vote_and_the_most_frequent_one_wins():
    """With a sharp model nearly all samples are the same, and so is the answer."""
    model = random(marian, seed=1)
    knobs = {"max_new_tokens": 5} | inputs(model)
    torch.manual_seed(0)
    cold = model.generate(
        **knobs, do_sample=True, temperature=1e-3, custom_generate=softbeam.hf.mbr, candidates=3
    )
    greedy = model.generate(**knobs, do_sample=False)
    assert cold.tolist() == greedy.tolist()
    with pytest.raises(UserError, match="utility 'taste'"):
        model.generate(**knobs, custom_generate=softbeam.hf.mbr, utility="taste")


def test_what_is_not_supported_is_named():
    model = random(marian)
    knobs = inputs(model) | {"num_beams": 2, "max_new_tokens": 4}
    with pytest.raises(UserError, match="MaxTimeCriteria"):
        model.generate(**inputs(model), num_beams=2, max_time=9.0, custom_generate=softbeam.hf.beam)
    with pytest.raises(UserError, match="needs a single one"):
        model.generate(**knobs, eos_token_id=[0, 1], custom_generate=softbeam.hf.beam)


def test_prompts_move_to_the_left():
    tokens = torch.tensor([[9, 9, 1, 2], [3, 4, 5, 6]])
    real = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool()
    assert to_the_left(tokens, real).tolist() == [[1, 2, 0, 0], [3, 4, 5, 6]]
