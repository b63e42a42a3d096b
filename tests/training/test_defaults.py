"""Settings that depend on the data: chosen when a run begins, recorded, never against the user."""

import json
import math
from dataclasses import fields, replace

import pytest

from softbeam.data.batches import Batches, Encoded
from softbeam.data.tasks import Tagging, Translation
from softbeam.models.specs import Lstm, Transformer
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.training import defaults
from softbeam.training.config import AUTO, RunConfig, Stage, from_yaml, in_effect
from softbeam.training.defaults import choices, settled, with_chosen, with_recorded
from softbeam.training.loop import train
from softbeam.training.recipes import RECIPES, tagging, translation
from support.small_data import write_tagging


def examples(n: int, length: int = 15) -> list[Encoded]:
    return [Encoded([1] * (length - i % 5), [1] * (length - i % 5)) for i in range(n)]


def updates_in(stage: Stage, train: list[Encoded]) -> int:
    """Count the updates of an epoch as training makes them."""
    chosen = settled(stage)
    return math.ceil(
        len(Batches(train, tokens=chosen.tokens, seed=1).plan(0)) / chosen.accumulation
    )


@pytest.mark.parametrize("n", [300, 1000, 3000, 30_000])
@pytest.mark.parametrize("recipe", [tagging, translation])
def test_budgets_are_counted_in_updates(recipe, n):
    usual = defaults.TAGGING if recipe is tagging else defaults.TEXTS
    corpus = examples(n)
    stage = with_chosen(recipe(), corpus, examples(100)).pretrain
    epoch = updates_in(stage, corpus)
    assert usual.updates <= stage.epochs * epoch < usual.updates + usual.passes * epoch
    assert usual.smallest <= stage.tokens <= usual.largest
    assert usual.patience <= stage.patience * epoch <= usual.patience + 3 * epoch


def test_batches_grow_with_the_corpus():
    sizes = [with_chosen(tagging(), examples(n), examples(50)).pretrain.tokens for n in (300, 5000)]
    assert sizes[0] < sizes[1]


def test_a_large_dev_split_is_scored_less_often_than_a_small_one():
    corpus = examples(300)
    small, large = (with_chosen(tagging(), corpus, examples(n)).pretrain for n in (50, 6000))
    assert small.score_every == 1
    assert large.score_every * 300 >= defaults.DEV_SHARE * 6000
    assert large.patience >= defaults.FEWEST_SCORES * large.score_every


def test_what_was_given_stays():
    given = {"epochs": 7, "lr": 0.5, "tokens": 33, "patience": 2, "score_every": 4, "warmup": 3}
    for name, value in given.items():
        config = replace(tagging(), pretrain=Stage(objective=CrossEntropy(), **{name: value}))
        chosen = with_chosen(config, examples(300), examples(50)).pretrain
        assert getattr(chosen, name) == value
        assert not [f.name for f in fields(chosen) if getattr(chosen, f.name) == AUTO]
    whole = replace(tagging(), pretrain=Stage(objective=CrossEntropy(), **given), threads=2)
    assert with_chosen(whole, examples(300), examples(50)) == whole
    assert not choices(whole, whole)


def test_epochs_that_were_given_are_all_run_and_scored():
    config = replace(tagging(), pretrain=Stage(objective=CrossEntropy(), epochs=30))
    stage = with_chosen(config, examples(300), examples(5000)).pretrain
    assert stage.patience is None and stage.score_every == 1


def test_a_second_stage_is_shorter_and_slower():
    config = replace(tagging(), finetune=Stage(objective=DirectLoss()))
    chosen = with_chosen(config, examples(3000), examples(50))
    assert chosen.finetune.epochs < chosen.pretrain.epochs
    assert chosen.finetune.lr < chosen.pretrain.lr


def test_the_learning_rate_is_the_models():
    rates = {
        type(model): with_chosen(
            replace(tagging(), model=model), examples(9), examples(9)
        ).pretrain.lr
        for model in (Lstm(), Transformer())
    }
    assert rates == {Lstm: Lstm().usual_lr, Transformer: Transformer().usual_lr}
    assert Lstm().usual_lr != Transformer().usual_lr


def test_with_limited_time_the_epochs_are_not_counted():
    timed, free = (
        with_chosen(replace(tagging(), minutes=m), examples(300), examples(50)).pretrain
        for m in (3.0, None)
    )
    assert timed.epochs == defaults.MOST_EPOCHS > free.epochs
    assert timed.patience > free.patience


def test_a_stage_that_does_not_run_is_left_alone():
    chosen = with_chosen(tagging(), examples(300), examples(50))
    assert chosen.finetune == tagging().finetune and in_effect(chosen).finetune == Stage()
    with pytest.raises(ValueError, match="epochs='auto'"):
        settled(chosen.finetune)


def test_recorded_values_are_taken_and_given_ones_are_kept():
    before = with_chosen(replace(tagging(), threads=4), examples(300), examples(50))
    assert with_recorded(tagging(), before) == before
    asked = replace(tagging(), pretrain=Stage(objective=CrossEntropy(), lr=0.5), threads=1)
    taken = with_recorded(asked, before)
    assert taken.pretrain.lr == 0.5 and taken.threads == 1
    assert taken.pretrain.epochs == before.pretrain.epochs


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_for_packaged_data_state_their_numbers(name):
    """Only files of any size, and a learning rate that suits the model, leave them to the data."""
    config = RECIPES[name]()
    own_files = isinstance(config.data, Tagging | Translation) or name in ("ccg", "ner")
    stated = [getattr(config.pretrain, field) != AUTO for field in ("epochs", "lr", "tokens")]
    assert all(stated) or own_files


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on data of one's own, its configuration as asked, and its folder."""
    folder = tmp_path_factory.mktemp("chosen")
    config = RunConfig(
        data=Tagging(
            train=write_tagging(folder / "a.conll", 60, 1),
            dev=write_tagging(folder / "b.conll", 10, 2),
        ),
        model=Lstm(embedding=8, hidden=8),
        pretrain=Stage(objective=CrossEntropy(), lr=0.02),
        threads=1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults, "TAGGING", defaults.TAGGING._replace(updates=40, patience=10))
        summary = train(config, folder / "run", quiet=True)
    return config, folder / "run", summary


@pytest.mark.slow
def test_a_run_records_what_was_chosen(run):
    asked, out, summary = run
    recorded = from_yaml(out / "config.yaml")
    names = [f"pretrain.{name}" for name in ("epochs", "tokens", "patience", "score_every")]
    assert set(summary["chosen"]) == set(names)
    values = {name: getattr(recorded.pretrain, name.split(".")[1]) for name in names}
    assert summary["chosen"] == values and AUTO not in values.values()
    end = summary["stages"]["pretrain"]
    assert end["updates"] >= 10 and end["ended"].startswith(("all ", "no better"))
    assert end["score"] == summary["score"]
    assert json.loads((out / "summary.json").read_text()) == summary


@pytest.mark.slow
def test_a_recorded_run_trains_again_to_the_same_weights_whatever_the_defaults_are(run, tmp_path):
    asked, out, summary = run
    again = train(from_yaml(out / "config.yaml"), tmp_path / "again", quiet=True)
    assert again["stages"] == summary["stages"] and again["chosen"] == {}
    weights = [(folder / "model.safetensors").read_bytes() for folder in (out, tmp_path / "again")]
    assert weights[0] == weights[1]


def test_a_run_goes_on_with_its_own_values_if_the_data_would_now_give_others(run):
    """The defaults of the fixture are gone; the run is found complete all the same."""
    asked, out, summary = run
    assert train(asked, out, quiet=True, resume=True) == summary


def test_baselines_are_in_the_summary(run):
    figures = run[2]["baselines"]
    assert list(figures) == ["most frequent label", "most frequent label of each word"]
    assert 0 < figures["most frequent label"] <= 100


def test_a_second_stage_warms_up():
    """Its optimizer knows nothing of the weights yet: a tenth of the updates, 100 at most."""
    config = replace(tagging(), finetune=Stage(objective=CrossEntropy(), epochs=2, tokens=100))
    few = with_chosen(config, examples(60), examples(50))
    total = 2 * updates_in(few.finetune, examples(60))
    assert few.pretrain.warmup == 0 and few.finetune.warmup == int(0.1 * total) > 0
    many = replace(config, finetune=replace(config.finetune, epochs=500))
    assert with_chosen(many, examples(60), examples(50)).finetune.warmup == 100
