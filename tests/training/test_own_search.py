"""The search of a run: what it was trained for, unless the user says otherwise."""

import json
from dataclasses import replace

import pytest

from softbeam.errors import UserError
from softbeam.objectives import BeamCrf, CrossEntropy, DirectLoss, ScheduledSampling
from softbeam.schedules import Linear
from softbeam.training.config import RunConfig, Stage
from softbeam.training.own_search import (
    fitting,
    own_search,
    search_title,
    trained_alpha,
    training_title,
)
from softbeam.training.searches import (
    AncestralSample,
    Beam,
    Greedy,
    MaskPredict,
    SoftBeamSearch,
)

RAW = Beam(k=3, normalize=False, length_penalty=0.5)
GLOBAL = RunConfig(
    finetune=Stage(
        objective=DirectLoss(
            k=4, normalize=False, alpha=Linear(start=1.0, slope=0.5, unit="update")
        )
    ),
    select=RAW,
)


@pytest.fixture
def folder(tmp_path):
    """A run whose best epoch was its second, after 7 updates of the second stage."""
    rows = [
        {"kind": "train", "stage": "finetune", "epoch": 1, "update": 6},
        {"kind": "dev", "stage": "pretrain", "epoch": 1, "update": 90},
        {"kind": "dev", "stage": "finetune", "epoch": 0, "update": 3},
        {"kind": "dev", "stage": "finetune", "epoch": 1, "update": 7},
        {"kind": "dev", "stage": "finetune", "epoch": 2, "update": 11},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "summary.json").write_text('{"epoch": 1}')
    return tmp_path


def test_nothing_asked_is_the_search_that_chose_the_weights(folder):
    assert own_search(folder, GLOBAL) == RAW


CHANGES = {
    "a beam of another size": (GLOBAL, None, {"k": 5}, replace(RAW, k=5)),
    "the same search by name": (GLOBAL, "beam", {}, RAW),
    "greedy, still with raw scores": (GLOBAL, "greedy", {}, Greedy(normalize=False)),
    "other scores": (GLOBAL, None, {"normalize": True}, replace(RAW, normalize=True)),
    "a beam makes a beam search": (RunConfig(), None, {"k": 3}, Beam(k=3)),
    "an n-best list does too": (RunConfig(), None, {"nbest": 2}, Beam(k=5, nbest=2)),
    "a temperature samples": (
        RunConfig(select=Greedy(normalize=False)),
        None,
        {"temperature": 0.7},
        AncestralSample(temperature=0.7, normalize=False),
    ),
    "the beam of training": (replace(GLOBAL, select=Greedy()), "beam", {}, Beam(k=4)),
    "the alpha of training": (  # 1 + 6 / 2 at the last update of the best epoch, the seventh
        GLOBAL,
        "soft-beam",
        {},
        SoftBeamSearch(k=3, alpha=4.0, normalize=False),
    ),
    "another alpha": (
        GLOBAL,
        None,
        {"alpha": 2.0},
        SoftBeamSearch(k=3, alpha=2.0, normalize=False),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_is_asked_changes_only_itself(case, folder):
    config, name, settings, expected = CHANGES[case]
    assert own_search(folder, config, name, settings) == expected


@pytest.mark.parametrize(
    ("config", "name", "settings", "message"),
    [
        (RunConfig(), "greedy", {"k": 3}, "--beam 3: is no setting of the search greedy"),
        (RunConfig(), "bee", {}, "--search bee: there are greedy, beam"),
        (RunConfig(select=MaskPredict()), None, {"k": 3}, "--beam 3: is no setting of the search"),
        (RunConfig(), None, {"temperature": 1.0, "alpha": 2.0}, "no setting of the search greedy"),
    ],
)
def test_what_no_search_has_is_refused(config, name, settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        own_search(tmp_path, config, name, settings)


def test_alpha_is_of_a_soft_beam_and_of_a_run_with_a_log(folder, tmp_path_factory):
    assert trained_alpha(folder, GLOBAL) == 4.0
    assert trained_alpha(tmp_path_factory.mktemp("empty"), GLOBAL) is None
    sampled = replace(GLOBAL, finetune=Stage(objective=ScheduledSampling()))
    assert trained_alpha(folder, sampled) is None and trained_alpha(folder, RunConfig()) is None


def test_titles_say_what_matters(folder):
    assert search_title(RAW) == "beam 3, length penalty 0.5" and search_title(Greedy()) == "greedy"
    assert training_title(folder, GLOBAL) == "direct-loss, beam 4, raw scores, alpha 4"
    assert training_title(folder, RunConfig()) == "cross-entropy"


@pytest.mark.parametrize(
    ("search", "objective", "expected"),
    [
        (Greedy(), DirectLoss(k=4), Beam(k=4)),
        (Greedy(), DirectLoss(k=4, normalize=False), Beam(k=4, normalize=False)),
        (Beam(k=3), BeamCrf(), Beam(k=3, normalize=False)),
        (Greedy(), CrossEntropy(), Greedy()),
        (Beam(k=3, normalize=False), CrossEntropy(), Beam(k=3, normalize=False)),
        (AncestralSample(), DirectLoss(), AncestralSample()),
        (Greedy(), None, Greedy()),
    ],
)
def test_dev_is_searched_as_the_objective_searches(search, objective, expected):
    assert fitting(search, objective) == expected


def test_a_summary_says_alpha_and_old_summaries_leave_it_to_the_log(folder):
    path = folder / "summary.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"alpha": 9.8}))
    assert trained_alpha(folder, GLOBAL) == 9.8
    path.write_text(json.dumps(json.loads(before) | {"alpha": None}))
    assert trained_alpha(folder, GLOBAL) is None
    path.write_text(before)
    assert trained_alpha(folder, GLOBAL) == 4.0
