"""What a trained Hugging Face model carries: a beam that `generate` uses, and a card."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, Seq2SeqTrainingArguments

from softbeam.objectives.hard_beam import BeamCrf
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.training import trained_models
from softbeam.training.huggingface import SearchAwareTrainer
from support.hf_toys import bart, gpt2, llama, marian, random

SOURCES = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 0], [9, 3, 4, 0]])


def pairs(count: int) -> list[dict]:
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randint(3, 10, (count, 6), generator=rng).tolist()
    return [{"input_ids": [*row[:4], 0], "labels": [*row[4:], 0]} for row in drawn]


def right_tokens(prediction) -> dict:
    """The share of outputs whose first token is even as the label is, or odd as it is."""
    first = (np.asarray(prediction.predictions)[:, 1] - prediction.label_ids[:, 0]) % 2 == 0
    return {"first": float(100 * first.mean()), "rows": len(first)}


def trainer_of(model, folder, objective, **knobs) -> SearchAwareTrainer:
    named = {name: knobs.pop(name) for name in ("compute_metrics",) if name in knobs}
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        max_steps=1,
        **knobs,
    )
    data = {"train_dataset": pairs(4), "eval_dataset": pairs(6)}
    return SearchAwareTrainer(model, arguments, objective=objective, **data, **named)


def test_a_saved_model_searches_with_the_beam_it_was_trained_with(tmp_path):
    model = random(marian, seed=1).float()
    trainer_of(model, tmp_path, DirectLoss(k=3), generation_max_length=6).save_model()
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    settings = again.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.max_length) == (3, 0.0, 6)
    plain = {"do_sample": False, "max_length": 6, "length_penalty": 0.0}
    expected, greedy = (
        model.generate(SOURCES, GenerationConfig(num_beams=k, **plain, **special(model)))
        for k in (3, 1)
    )
    assert again.generate(SOURCES).tolist() == expected.tolist()
    assert expected.tolist() != greedy.tolist(), "else a beam would not be noticed"


def special(model) -> dict:
    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    return {name: getattr(model.config, name) for name in names}


@pytest.mark.parametrize("make", [gpt2, llama, bart])
@pytest.mark.parametrize("objective", [BeamCrf(k=4), DirectLoss(k=1)], ids=["beam", "greedy"])
def test_settings_of_sampling_do_not_stand_in_the_way(tmp_path, make, objective):
    """Saving refuses a temperature without samples, and a length penalty without a beam."""
    model = make()
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9, top_k=20)
    model.generation_config.update(num_beams=2, length_penalty=2.0, early_stopping=True)
    trainer_of(model, tmp_path, objective).save_model()
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.num_beams == objective.k and not saved.do_sample
    assert (saved.temperature, saved.top_p, saved.top_k) == (None, None, None)
    saved.validate(strict=True)


def test_settings_of_the_user_stay(tmp_path):
    own = GenerationConfig(num_beams=7, **special(bart()))
    trainer = trainer_of(bart(), tmp_path, DirectLoss(k=3), generation_config=own)
    assert trainer.model.generation_config.num_beams == 7
    trainer = trainer_of(bart(), tmp_path, CrossEntropy())
    assert trainer.model.generation_config.num_beams is None


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A model after a step, and an evaluation of it."""
    torch.manual_seed(0)
    knobs = {"predict_with_generate": True, "generation_max_length": 5, "learning_rate": 0.01}
    folder = tmp_path_factory.mktemp("trained") / "my-model"
    trainer = trainer_of(
        marian(), folder, DirectLoss(k=2, normalize=False), compute_metrics=right_tokens, **knobs
    )
    trainer.train()
    trainer.evaluate()
    trainer.predict(pairs(3))  # of no interest to the card
    return trainer


@pytest.mark.slow
def test_the_card_has_the_figures_of_the_evaluation_with_intervals(evaluated, tmp_path):
    evaluated.save_model(str(tmp_path / "saved"))
    card = ModelCard.load(tmp_path / "saved" / "README.md")
    results = {result.metric_type: result for result in card.data.eval_results}
    [row] = [r for r in evaluated.state.log_history if "eval_loss" in r]
    assert results["loss"].metric_value == row["eval_loss"] and "runtime" not in results
    predictions, labels = evaluated.evaluated
    assert len(labels) == 6
    hits = [
        p[1] % 2 == g[0] % 2 for p, g in zip(predictions.tolist(), labels.tolist(), strict=True)
    ]
    assert results["first"].metric_value == pytest.approx(100 * sum(hits) / 6)
    assert 0 < sum(hits) < 6
    rng = np.random.default_rng(0)
    shares = [100 * sum(hits[i] for i in rng.integers(6, size=6)) / 6 for _ in range(200)]
    assert results["first"].metric_args == {
        "interval_95": pytest.approx([*np.percentile(shares, [2.5, 97.5])])
    }
    assert results["loss"].metric_args is None
    text = card.text
    said = ["`DirectLoss(k=2, normalize=False)`", "| train examples | 4 |", "| updates | 1 |"]
    said += ["| beam size | 2 |", "raw (globally normalized); `generate` normalizes them"]
    said += ["num_beams=2, length_penalty=0.0", "goyal2019empirical", "| softbeam |"]
    said += ["MarianMTModel", 'AutoModelForSeq2SeqLM.from_pretrained(".")', "bootstrap"]
    assert [words for words in said if words not in text] == []
    assert card.data.library_name == "transformers" and card.data.model_name == "saved"


@pytest.mark.slow
def test_slow_metrics_have_no_intervals(evaluated, monkeypatch):
    def slow(prediction):
        time.sleep(0.01)
        return right_tokens(prediction)

    monkeypatch.setattr(trained_models, "LONGEST", 1.0)
    assert trained_models.intervals_of(slow, evaluated.evaluated) == {}
    assert trained_models.intervals_of(None, evaluated.evaluated) == {}
    assert trained_models.intervals_of(right_tokens, None) == {}
    assert {*trained_models.intervals_of(right_tokens, evaluated.evaluated)} == {"first", "rows"}


@pytest.mark.slow
def test_pushing_uploads_model_and_card(evaluated, tmp_path, monkeypatch):
    def upload(*, repo_id, folder_path, **_):
        shutil.copytree(folder_path, tmp_path / repo_id)

    api = SimpleNamespace(
        upload_folder=upload, create_repo=lambda name, **_: SimpleNamespace(repo_id=f"me/{name}")
    )
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda: api)
    evaluated.push_to_hub(license="mit", dataset="wmt", dataset_tags="org/wmt", tasks="translation")
    folder = tmp_path / "me" / "my-model"
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.datasets) == ("mit", ["org/wmt"])
    assert card.data.pipeline_tag == "translation" and card.data.model_name == "my-model"
    assert 'from_pretrained("me/my-model")' in card.text
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config.num_beams == 2
    assert Path(evaluated.args.output_dir, "README.md").is_file()
