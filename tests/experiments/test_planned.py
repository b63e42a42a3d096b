"""The preset `full`: equal treatment of its arms, figures that its runs have, and what is left."""

import json
from dataclasses import replace

import pytest

from softbeam.cli import main
from softbeam.experiments.search_aware import planned
from softbeam.experiments.search_aware.cells import compute, searches, training
from softbeam.experiments.search_aware.estimates import expected_seconds
from softbeam.experiments.search_aware.planned import FULL
from softbeam.experiments.search_aware.presets import runs, tables_of
from softbeam.experiments.search_aware.results import runs_of
from softbeam.experiments.search_aware.runs import shrunk
from softbeam.objectives.base import SearchObjective
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.runtime.cells import result_path, settings
from softbeam.schedules import Constant, Moment
from softbeam.training.config import check
from softbeam.training.kinds import kind_of
from softbeam.training.searches import Beam, Greedy

PLANS, TABLES = runs(FULL), tables_of(FULL)


@pytest.mark.parametrize("what", TABLES)
def test_every_figure_has_a_run_and_a_search(what):
    made = TABLES[what]()
    columns = {tuple(row) for row in made.rows.values()}
    assert len(columns) == 1 and {len(v) for v in made.published.values()} <= {len(*columns)}
    texts = [claim.text for claim in made.claims]
    assert len(set(texts)) == len(texts)
    assert set(runs_of(made)) <= set(PLANS)
    places = [made.value(place) for claim in made.claims for place in claim.places]
    for value in [*places, *(v for row in made.rows.values() for v in row.values())]:
        if value.path[:1] == ("decodes",):
            config = PLANS[value.run].config
            cell = training(FULL, value.run, 1)
            ways = searches(cell, kind_of(config.data), config, None)
            assert str(value.path[1]).split()[1] in ways, value
    for claim in made.claims:
        size = made.printed(claim)
        if size is not None:
            assert size > 0 if claim.within is None else abs(size) <= claim.within, claim.text


def test_all_second_stages_of_a_group_are_equally_long():
    """The controls too: data, batches, epochs, patience, warm-up; learning rates may differ."""
    for group in planned.groups():
        alike = {
            (plan.config.data, replace(plan.config.finetune, objective=None, lr=1.0))
            for name, plan in PLANS.items()
            if name.startswith(f"{group}/") and plan.start and not name.startswith(f"{group}/sn-0")
            if name != f"{group}/sn"
        }
        assert len(alike) == 1, (group, alike)
        for plan in PLANS.values():
            check(plan.config)


def test_weights_are_chosen_by_the_search_that_the_table_reports():
    for what, table in TABLES.items():
        made = table()
        for row in made.rows.values():
            for column, value in row.items():
                plan = PLANS[value.run]
                if what in ("table-3.1", "table-3.2") and value.path:
                    assert isinstance(plan.config.select, Greedy), value
                if what == "table-4.1" and column == "hard beam test" and "argmax" not in value.run:
                    assert isinstance(plan.config.select, Beam) and plan.config.select.k == 3
    for plan in PLANS.values():
        objective = plan.config.finetune.objective if plan.start else None
        raw = isinstance(objective, SearchObjective) and not objective.normalize
        assert plan.config.select.normalize is not raw


def test_treatments_are_at_full_strength():
    last = Moment(epoch=planned.EPOCHS - 1)
    for name, plan in PLANS.items():
        objective = plan.config.finetune.objective if plan.start else plan.config.pretrain.objective
        dropout = getattr(objective, "search_dropout", "none")
        searched = isinstance(objective, SearchObjective | ScheduledSampling)
        shared = searched and (name.startswith(("ner", "germ")) or "scratch" in name)
        expected = "shared" if shared else "none"
        if searched and name.startswith("ccg-bi"):
            expected = "independent"
        if "~" in name:
            expected = name.partition("~")[2]
        assert dropout == expected and plan.config.threads == 1, name
        if isinstance(objective, ScheduledSampling) and "scratch" in name:
            assert objective.gold_epochs == 1 and objective.gold(last) < 0.2
            assert plan.config.pretrain.epochs == 18  # as many as of both stages
        elif isinstance(objective, ScheduledSampling) and "/k-" not in name:
            assert objective.gold == Constant(value=0.75 if name.startswith("mt") else 0.0)
        if name.endswith("annealed") and "sampl" not in name and plan.start:
            assert objective.alpha(last) > 50 or name.startswith("mt"), name
    assert PLANS["mt/global"].config.finetune.objective.log_z_penalty == 0
    assert PLANS["mt/local"].config.finetune.objective.cross_entropy <= 0.3
    assert PLANS["mt/local"].config.data.limit is None is PLANS["mt/local"].config.data.max_length


def test_tuning_changes_the_learning_rate_alone():
    assert "more-ce" in planned.FAMILIES, "cross-entropy is tuned as well"
    for name in planned.FAMILIES:
        own = PLANS[f"{planned.TUNED}/{name}"].config
        tried = [PLANS[f"{planned.TUNED}/{name}@{m:g}"].config for m in planned.MULTIPLES]
        lowest, middle, highest = (config.finetune.lr for config in tried)
        assert 4 * lowest == 2 * middle == highest
        same = {replace(c, finetune=replace(c.finetune, lr=1.0)) for c in tried}
        assert same == {replace(own, finetune=replace(own.finetune, lr=1.0))}


def test_starts_are_tried_at_rates_that_fall_to_0():
    made = TABLES["starts"]()
    assert {*made.rows} == {*planned.groups()}
    for group in made.rows:
        own = PLANS[f"{group}/ce"].config
        tried = [PLANS[f"{group}/ce@{lr:g}"].config for lr in planned.RATES]
        assert [c.pretrain.lr for c in tried] == [*planned.RATES]
        assert {c.pretrain.schedule for c in tried} == {"linear"}
        same = {replace(c, pretrain=own.pretrain) for c in tried}
        assert same == {own} and len({c.pretrain.epochs for c in [own, *tried]}) == 1


def test_trials_of_dropout_change_the_dropout_alone():
    made = TABLES["dropout"]()
    assert len(made.rows) == 7 and {*made.rows["ner, direct-annealed"]} == {*planned.KINDS}
    for name in ("ccg-uni/bso", "ccg-bi/direct-annealed", "ner/soft-argmax-annealed"):
        own = PLANS[name].config
        tried = [PLANS[planned.dropped(name, kind)].config for kind in planned.KINDS]
        assert [c.finetune.objective.search_dropout for c in tried] == [*planned.KINDS]
        same = {replace(c, finetune=own.finetune) for c in tried}
        assert same == {own} and own in tried
        assert sum(f"{name}~{kind}" in PLANS for kind in planned.KINDS) == 2, "none is run twice"


def test_every_second_stage_has_the_rate_of_one_family():
    for name, plan in PLANS.items():
        run = name.partition("/")[2]
        kin = [key for key, names in planned.FAMILIES.items() if run.startswith(names)]
        second = plan.start is not None and run != "sn" and not run.startswith("sn-0")
        assert len(kin) == second, name
    group = planned.groups()["ccg-uni"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "MULTIPLE", {"global": 2.0, "direct-annealed": 0.5})
        others = planned.runs.__wrapped__()
    tried = ("more-ce", "direct-annealed")
    rates = {name: others[f"ccg-uni/{name}"].config.finetune.lr for name in tried}
    assert rates == {"more-ce": group.second.lr, "direct-annealed": group.second.lr / 2}
    tried = f"{planned.TUNED}/global@1"
    assert others[tried] == PLANS[tried], "what is tried does not depend on what was chosen"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tuning"], "--preset cpu: has no tuning; give --preset full"),
        (["figure-3.1", "--preset", "full"], "--preset full: has no figure-3.1; give --preset cpu"),
        (["table-6.1", "--list"], "--list table-6.1: is for tables of trained runs"),
    ],
)
def test_what_a_preset_lacks_is_said(words, sentence, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err


def test_cells_are_listed_with_what_is_left(short_corpora, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    words = ["reproduce", "table-5.1", "--preset", "tiny", "--seeds", "2", "--out", str(tmp_path)]
    assert main([*words, "--list"]) == 0
    first = capsys.readouterr().out
    assert first.count("to do") == 8 and "8 cells, 0 done; about 0.0 hours" in first
    cell = training("tiny", "ccg-bi/ce", 1)
    (path := result_path(cell, tmp_path)).parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(settings(cell) | {"seconds": 7200.0, "result": {"decodes": {}}}))
    assert main([*words, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 cells, 1 done; about 2.1 hours" in lines[-1] or "about 2.0 hours" in lines[-1]
    assert [line.split()[-2:] for line in lines if "ccg-bi/ce" in line] == [
        ["done", "120.0"],
        ["do", "120.0"],  # as long as the other seed took
    ]
    assert not (tmp_path / "runs").exists(), "nothing was run"


def test_beams_cost_more_than_cross_entropy(short_corpora, monkeypatch):
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    names = ("more-ce", "hard-argmax", "direct-annealed", "direct-k10")
    seconds = [expected_seconds(PLANS[f"ccg-uni/{name}"].config) for name in names]
    assert seconds == sorted(seconds) and len(set(seconds)) == 4


@pytest.mark.slow
def test_cells_of_the_plan_can_be_computed(short_corpora, tmp_path, monkeypatch):
    """In sizes for tests: a start, and a wider beam from it."""
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    small = {name: shrunk(group) for name, group in planned.groups().items()}
    monkeypatch.setattr(planned, "groups", lambda: small)
    monkeypatch.setattr("softbeam.experiments.search_aware.cells.SENTENCES", {FULL: 6})
    planned.runs.cache_clear()
    try:
        found = {}
        for name in ("ccg-uni/ce", "ccg-uni/direct-k5"):
            found[name] = compute(training(FULL, name, 1), tmp_path)["decodes"]
    finally:
        planned.runs.cache_clear()
    assert {"test beam5", "test raw", "test soft"} <= set(found["ccg-uni/direct-k5"])
    assert "test beam5" not in found["ccg-uni/ce"]
    json.dumps(found)
