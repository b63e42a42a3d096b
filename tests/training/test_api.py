"""Training and using a run from Python, on lists in memory."""

import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.training.api import train
from softbeam.training.config import Stage
from softbeam.training.recipes import tagging
from softbeam.training.runs import load_run
from softbeam.training.searches import Beam, Greedy

TAGS = {"the": "D", "a": "D", "dog": "N", "cat": "N", "runs": "V", "sleeps": "V"}
WORDS = [f"{d} {n} {v}" for d in ("the", "a") for n in ("dog", "cat") for v in ("runs", "sleeps")]
EXAMPLES = [(text.split(), [TAGS[word] for word in text.split()]) for text in WORDS]
SMALL = {
    "model": Lstm(embedding=8, hidden=8),
    "pretrain": Stage(objective=CrossEntropy(), epochs=12, lr=0.05, tokens=20),
    "quiet": True,
}


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return train("tagging", out=tmp_path_factory.mktemp("api") / "run", examples=EXAMPLES, **SMALL)


@pytest.mark.slow
def test_a_tagger_is_trained_on_lists_and_decodes(tagger):
    assert tagger.decode(["the cat runs"])[0][0].tokens == ["D", "N", "V"]
    outputs = tagger.decode([["a", "dog"], "the cat"], Beam(k=3, nbest=2))
    assert [len(ranked) for ranked in outputs] == [2, 2]
    assert outputs[0][0].tokens == ["D", "N"] and outputs[0][0].score > outputs[0][1].score


class Dataset:
    """A class of the user's own: no list, and iterated by its numbers alone."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __getitem__(self, number):
        words, tags = self.pairs[number]
        return tuple(words), iter(tags)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["generator", "dataset"])
def test_any_iterable_of_pairs_trains_the_same_and_is_not_needed_later(tagger, tmp_path, form):
    examples = (pair for pair in EXAMPLES) if form == "generator" else Dataset(EXAMPLES)
    run = train("tagging", tmp_path / "run", examples=examples, test=iter(EXAMPLES[:3]), **SMALL)
    same = load_file(tmp_path / "run" / "model.safetensors")
    assert_close(same, load_file(tagger.folder / "model.safetensors"), rtol=0, atol=0)
    assert len(run.evaluate("test").outputs) == 3
    text = "".join(p.read_text() for p in run.folder.glob("*.*") if p.suffix in (".yaml", ".json"))
    assert "Dataset" not in text and __name__ not in text
    assert load_run(tmp_path / "run").decode(["the cat runs"])[0][0].tokens == ["D", "N", "V"]


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"words": ["a"], "tags": ["D"]}, r"expected a pair \(words, tags\) .* of type dict"),
        ("a D", "found a value of type str"),
        ((["a"], ["D"], ["x"]), "found 3 values"),
        (7, "found a value of type int"),
        ((["a"], [3]), "3 is a token of type int; tokens are strings"),
        ((["a"], 3), "'3' is of type int, not a text or a list"),
    ],
)
def test_an_example_that_is_no_pair_is_named(tmp_path, example, said):
    with pytest.raises(UserError, match=f"train example 2: .*{said}"):
        train("tagging", tmp_path / "run", examples=[EXAMPLES[0], example], **SMALL)


def test_a_run_evaluates_itself_as_it_was_selected(tagger):
    evaluation = tagger.evaluate()
    assert evaluation.metrics == tagger.summary["metrics"] and evaluation.search == Greedy()
    assert evaluation.record()["sentences"] == len(evaluation.outputs)


def test_a_run_compares_itself_with_another(tagger, tmp_path):
    hardly = SMALL | {"pretrain": Stage(objective=CrossEntropy(), epochs=1, lr=1e-6)}
    other = train("tagging", out=tmp_path / "other", examples=EXAMPLES, dev=EXAMPLES, **hardly)
    better = tagger.compare(other, "train")
    assert better.metric == "accuracy" and better.difference > 0
    assert tagger.compare(tagger).difference == 0.0


def test_the_folder_works_wherever_it_is(tagger, tmp_path):
    shutil.copytree(tagger.folder, tmp_path / "moved")
    moved = load_run(str(tmp_path / "moved"))
    (tmp_path / "gone").mkdir()
    assert moved.config == tagger.config and moved.config.data.folder == str(tmp_path / "moved")
    assert moved.decode(WORDS) == tagger.decode(WORDS)
    assert moved.evaluate().metrics == tagger.evaluate().metrics


@pytest.mark.slow
def test_the_same_call_resumes_and_other_examples_are_refused(tmp_path):
    out = tmp_path / "run"
    first = train("tagging", out=out, examples=EXAMPLES, **SMALL)
    weights = (out / "model.safetensors").read_bytes()
    again = train("tagging", out=out, examples=EXAMPLES, resume=True, **SMALL)
    assert again.summary == first.summary
    assert (out / "model.safetensors").read_bytes() == weights
    with pytest.raises(UserError, match="a run on other examples"):
        train("tagging", out=out, examples=EXAMPLES[:5], resume=True, **SMALL)
    assert len(load_run(out).problems("train").sources) == len(first.problems("train").sources)
    (out / "examples.jsonl").write_text("")
    with pytest.raises(UserError, match="holds other examples than the run's"):
        load_run(out).evaluate()


@pytest.mark.slow
def test_a_configuration_gives_what_its_recipe_gives(tagger, tmp_path):
    fields = {name: value for name, value in SMALL.items() if name != "quiet"}
    config = replace(tagging(), **fields)
    train(config, tmp_path / "run", examples=EXAMPLES, quiet=True)
    same = load_file(tmp_path / "run" / "model.safetensors")
    assert_close(same, load_file(tagger.folder / "model.safetensors"), rtol=0, atol=0)


@pytest.mark.slow
def test_an_objective_is_of_the_second_stage_and_a_seed_of_the_run(tmp_path):
    out, objective = tmp_path / "run", DirectLoss(k=2)
    run = train("tagging", out, objective=objective, seed=5, examples=EXAMPLES, **SMALL)
    assert run.config.finetune.objective == objective and run.config.seed == 5


@pytest.mark.slow
def test_a_translation_is_trained_on_texts(tmp_path):
    pairs = [(text, " ".join(reversed(text.split()))) for text in WORDS]
    small = SMALL | {"model": Lstm(attention="bahdanau", embedding=16, hidden=16)}
    run = train("translation", tmp_path / "run", examples=pairs, dev=pairs, **small)
    assert "bleu" in run.summary["metrics"] and {*run.decode(["the cat runs"])[0][0].tokens} <= {
        *TAGS
    }


def test_wrong_arguments_say_what_is_right(tmp_path):
    with pytest.raises(UserError, match="no recipe 'frob'; there are tagging"):
        train("frob", tmp_path)
    with pytest.raises(TypeError, match="'frob'; a configuration has data, model, pretrain"):
        train("tagging", tmp_path, examples=EXAMPLES, frob=1)
    with pytest.raises(UserError, match="train example 2: 2 tokens but 1 labels"):
        train("tagging", tmp_path, examples=[EXAMPLES[0], ("the cat", "D")])
    with pytest.raises(UserError, match="dev example 1: the source is empty"):
        train("tagging", tmp_path, examples=EXAMPLES, dev=[("", "")])
    with pytest.raises(TypeError, match="give examples too"):
        train("stress", tmp_path, dev=EXAMPLES)
