"""Models that read audio: against transformers, lists of all outputs, and rows by themselves."""

import itertools

import pytest
import torch
from transformers import Seq2SeqTrainingArguments

import softbeam
from softbeam.errors import UserError
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.training.huggingface import SearchAwareTrainer, padded, search_aware_loss
from support.hf_toys import PIECES, VOCAB, ToyTokenizer, bart, marian, random, whisper

WER = {"metric": "wer", "candidates": "beam"}


def audio(count: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 8, 10, generator=rng, dtype=torch.float64)


def spoken() -> dict:
    """Labels of unequal lengths."""
    labels = torch.tensor([[3, 7, 8, 2], [5, 2, -100, -100], [8, 6, 2, -100]])
    return {"input_features": audio(3), "labels": labels}


SETTINGS = {
    "plain": {},
    "suppressed tokens": {"suppress_tokens": [6, 1], "begin_suppress_tokens": [5, 2]},
    "forced tokens": {"forced_decoder_ids": [[1, 7], [2, 9]]},
    "several": {"num_return_sequences": 2, "length_penalty": -1.0},
    "processors": {"no_repeat_ngram_size": 2, "forced_decoder_ids": [[1, 3]]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_beams_are_those_of_generate(name):
    model = random(whisper, seed=3)
    knobs = {"input_features": audio(3), "num_beams": 3, "max_new_tokens": 6}
    for setting, value in SETTINGS[name].items():
        if "tokens" in setting or setting == "forced_decoder_ids":
            setattr(model.generation_config, setting, value)
        else:
            knobs[setting] = value
    knobs |= {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**knobs)
    ours = model.generate(**knobs, custom_generate=softbeam.hf.beam)
    assert ours.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(ours.sequences_scores.float(), expected.sequences_scores)
    forced = [token for _, token in SETTINGS[name].get("forced_decoder_ids", [])]
    assert all(row[1 : 1 + len(forced)] == forced for row in ours.sequences.tolist())
    assert len({*map(tuple, ours.sequences.tolist())}) > 1


@pytest.mark.parametrize("make, seed", [(marian, 6), (bart, 5)])
def test_outputs_may_begin_with_given_tokens(make, seed):
    model = random(make, seed=seed)
    start = torch.tensor([[model.config.decoder_start_token_id, 4, 7]]).expand(2, -1)
    knobs = {"input_ids": torch.tensor([[3, 4, 5], [6, 7, 8]]), "num_beams": 3}
    knobs |= {"max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**knobs, decoder_input_ids=start)
    ours = model.generate(**knobs, decoder_input_ids=start, custom_generate=softbeam.hf.beam)
    assert ours.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(ours.sequences_scores.float(), expected.sequences_scores)
    without = model.generate(**knobs).sequences
    assert without[:, 1:].tolist() != expected.sequences[:, 3:].tolist()


@pytest.mark.parametrize("prefix", [0, 1])
def test_cross_entropy_is_the_models_own_loss(prefix):
    model, inputs = random(whisper), spoken()
    ours = search_aware_loss(model, inputs, CrossEntropy(), prefix=prefix)
    labels = inputs["labels"].clone()
    logits = model(**inputs).logits
    labels[:, :prefix] = -100
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours.total / ours.size, expected)
    assert ours.size == int((labels != -100).sum())


@pytest.mark.parametrize(
    "objective",
    [
        DirectLoss(k=2),
        DirectLoss(k=2, finish=True),
        MinimumRisk(n=4, finish=True, extra=1, **WER),
        Reinforce(metric="wer", baseline="greedy", cross_entropy=0.1),
    ],
    ids=lambda o: type(o).__name__,
)
def test_a_batch_is_its_rows(objective):
    """Random choices apart: a sample of one row would take another's numbers."""
    model, inputs = random(whisper), spoken()
    rows = range(1) if isinstance(objective, Reinforce) else range(3)

    def loss(some):
        part = {name: value[some] for name, value in inputs.items()}
        return search_aware_loss(model, part, objective, tokenizer=ToyTokenizer()).total

    alone = torch.stack([loss([row]) for row in rows]).sum()
    assert alone.isfinite()
    torch.testing.assert_close(loss(list(rows)), alone)
    gradients = torch.autograd.grad(alone, model.model.encoder.conv1.weight)[0]
    assert gradients.isfinite().all() and gradients.abs().max() > 0


def text(row) -> str:
    return "".join(PIECES[i] for i in row if i > 2).strip()


def edits(a: list[str], b: list[str]) -> int:
    """The edit distance, by its recursion."""
    if not a or not b:
        return len(a) + len(b)
    last = edits(a[:-1], b[:-1]) + (a[-1] != b[-1])
    return min(last, edits(a[:-1], b) + 1, edits(a, b[:-1]) + 1)


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_risk_is_the_expected_word_error_rate(prefix):
    """Over all outputs of two tokens; the loss and its gradient."""
    model = random(whisper, seed=1)
    gold = torch.tensor([[9, 3, 8][1 - prefix :]])
    inputs = {"input_features": audio(1), "labels": gold}
    objective = MinimumRisk(n=VOCAB**2, **WER)
    ours = search_aware_loss(model, inputs, objective, tokenizer=ToyTokenizer(), prefix=prefix)
    weights = [p for p in model.parameters() if p.requires_grad]
    ours_gradient = torch.autograd.grad(ours.total, weights, allow_unused=True)
    every = torch.tensor(list(itertools.product(range(VOCAB), repeat=2)))
    start = [1, *gold[0, :prefix].tolist()]
    fed = torch.cat([torch.tensor([start]).expand(len(every), -1), every[:, :1]], 1)
    features = audio(1).expand(len(every), -1, -1)
    logits = model(input_features=features, decoder_input_ids=fed).logits[:, -2:].log_softmax(-1)
    probabilities = logits.gather(2, every[:, :, None]).sum((1, 2)).exp()
    right = text(gold[0, prefix:].tolist()).split()
    rates = [edits(text(row).split(), right) / max(len(right), 1) for row in every.tolist()]
    expected = 2 * (probabilities * torch.tensor(rates)).sum()  # a sentence counts by its tokens
    torch.testing.assert_close(ours.total, expected)
    plain_gradient = torch.autograd.grad(expected, weights, allow_unused=True)
    for a, b in zip(ours_gradient, plain_gradient, strict=True):
        torch.testing.assert_close(0 if a is None else a, 0 if b is None else b)


def pairs(count: int) -> list[dict]:
    """Audio that says one of four words, as a feature extractor and a tokenizer make it."""
    words = [[3, 2], [4, 2], [3, 6, 2], [8, 2]]
    features = audio(4).float()
    return [
        {"input_features": features[i % 4].numpy(), "labels": words[i % 4], "text": "left out"}
        for i in range(count)
    ]


@pytest.mark.slow
def test_training_lowers_the_expected_word_error_rate(tmp_path):
    torch.manual_seed(0)
    model = whisper()
    knobs = {"max_steps": 25, "logging_steps": 1, "save_strategy": "no", "report_to": []}
    knobs |= {"lr_scheduler_type": "constant"}
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        learning_rate=3e-2,
        use_cpu=True,
        disable_tqdm=True,
        **knobs,
    )
    trainer = SearchAwareTrainer(
        model,
        arguments,
        train_dataset=pairs(4),
        processing_class=ToyTokenizer(),
        objective=MinimumRisk(n=6, finish=True, cross_entropy=0.1, **WER),
    )
    trainer.train()
    risks = [row["objective_risk"] for row in trainer.state.log_history if "loss" in row]
    assert risks[-1] < 0.5 * risks[0], risks
    batch = padded(pairs(4), pad=2, main="input_features")
    found = model.eval().generate(batch["input_features"], num_beams=6, max_new_tokens=3)
    said = ToyTokenizer().batch_decode(found.tolist(), skip_special_tokens=True)
    assert sum(a == text(p["labels"]) for a, p in zip(said, pairs(4), strict=True)) >= 3


def test_what_is_missing_is_named():
    model, inputs = random(whisper), spoken()
    with pytest.raises(UserError, match="a batch needs input_features; it has labels"):
        search_aware_loss(model, {"labels": inputs["labels"]}, CrossEntropy())
    with pytest.raises(UserError, match="wer compares texts: give the tokenizer"):
        search_aware_loss(model, inputs, MinimumRisk(n=2, **WER))
    with pytest.raises(UserError, match="prefix=2: row 1 of a batch has no more labels"):
        search_aware_loss(model, inputs, CrossEntropy(), prefix=2)
