"""What training for the search could gain: against plain loops, and the advice that follows."""

import shutil
from pathlib import Path

import pytest
import torch

from softbeam.cli import main
from softbeam.reports.headroom import advice, as_text, headroom
from softbeam.training.runs import load_run

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_before_packages"


@pytest.fixture
def run(tmp_path, monkeypatch):
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return load_run(Path("finished"))


def fed(run, example, *, gold: bool) -> list[bool]:
    """Whether each label is right, one step at a time, after gold labels or own ones.

    The vocabulary of the run has nothing but labels.
    """
    decoder = run.model.eval()(torch.tensor([example.source]))
    state, emb = decoder.start()
    right = []
    for label in example.target:
        scores, state = decoder.step(state, emb)
        mine = int(scores[0].argmax())
        right.append(mine == label)
        emb = decoder.embedding[[label if gold else mine]]
    return right


@torch.inference_mode()
def test_figures_are_those_of_plain_loops(run):
    found = headroom(run, "dev", sentences=6)
    examples = run.encoded("dev")[:6]
    for name, gold in (("gold_fed", True), ("own_fed", False)):
        marks = [mark for example in examples for mark in fed(run, example, gold=gold)]
        assert found[name] == pytest.approx(100 * sum(marks) / len(marks))
    assert found["gap"] == pytest.approx(found["gold_fed"] - found["own_fed"])
    assert found["sentences"] == 6 and found["beam"] == run.config.select.k
    outputs = [o[0].tokens for o in run.decode(run.problems("dev").sources[:6])]
    right = sum(
        list(g[0]) == o for g, o in zip(run.problems("dev").references, outputs, strict=False)
    )
    wrong = found["search_errors"] + found["model_errors"]
    assert wrong == pytest.approx(100 * (6 - right) / 6)
    assert found["fell"] <= wrong + 1e-9 or found["fell"] <= 100


def test_train_and_evaluate_print_it(run, capsys):
    assert main(["evaluate", "finished", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "to gain (dev, " in said and "\nadvice: " in said


FIGURES = {
    "sentences": 300,
    "gold_fed": 80.0,
    "own_fed": 68.0,
    "gap": 12.0,
    "beam": 3,
    "fell": 40.0,
    "search_errors": 1.0,
    "model_errors": 60.0,
}
CASES = {
    "own errors, past alone": ({}, True, False, "normalize false"),
    "own errors, whole input": ({}, False, False, "more cross-entropy at a tuned rate was as good"),
    "own errors, own end": ({}, False, True, "with cross_entropy and finish"),
    "little": ({"gap": 2.5}, True, False, "has little to gain"),
    "between": ({"gap": 4.0}, False, False, "compare search-aware training"),
    "search errors": ({"search_errors": 20.0, "gap": 1.0}, False, False, "a wider beam"),
    "translation": ({"gap": None, "own_fed": None}, False, True, "more cross-entropy first"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_advice_follows_from_the_figures(case):
    change, past, ends, words = CASES[case]
    figures = FIGURES | change
    line = advice(figures, sees_past=past, ends=ends)
    assert words in line and "\n" not in line
    text = as_text("dev", figures | {"advice": line})
    assert text.count("\n") == 1 and ("after own" in text) == (figures["gap"] is not None)
