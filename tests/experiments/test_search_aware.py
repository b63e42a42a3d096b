"""Tables of trained runs: which runs, shared between tables, judged by outputs of their own."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from softbeam.cli import main
from softbeam.experiments.order import Order
from softbeam.experiments.search_aware.cells import lost_starts, training, with_starts
from softbeam.experiments.search_aware.results import Judge, make, runs_of
from softbeam.experiments.search_aware.runs import runs
from softbeam.experiments.search_aware.tables import TABLES, Claim, Place, Table, Value, decoded
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import SelfNormalized
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.reports.records import rounded
from softbeam.reports.verdicts import judged
from softbeam.runtime.cells import read_result, result_path
from softbeam.training.kinds import Scored
from softbeam.training.metrics import mean

PRESETS = ("cpu", "paper", "tiny")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_figure_of_every_table_has_a_run_and_every_claim_its_figures(preset):
    plans = runs(preset)
    for what, table in TABLES.items():
        made = table()
        assert set(runs_of(made)) <= set(plans), what  # every place of a claim is in the table
        columns = {tuple(row) for row in made.rows.values()}
        assert len(columns) == 1 and set(made.published) <= set(made.rows), what
        assert {len(values) for values in made.published.values()} == {len(*columns)}, what
        texts = [claim.text for claim in made.claims]
        assert len(set(texts)) == len(texts) > 0, what


def test_published_figures_bear_out_what_is_claimed():
    """A claim that the printed table contradicts would be a misreading of ours."""
    checked = 0
    for table in TABLES.values():
        made = table()
        for claim in made.claims:
            gap = made.printed(claim)
            if gap is not None:
                checked += 1
                assert gap > 0 if claim.within is None else abs(gap) <= claim.within, claim.text
    assert checked > 50
    table = TABLES["table-4.1"]()
    first = table.claims[0]
    assert table.printed(first) == pytest.approx(82.42 - 80.35), "beam less greedy, as printed"
    assert table.printed(first._replace(better=Value("ner/ce", ("q",)))) is None


@pytest.mark.parametrize("preset", PRESETS)
def test_runs_start_where_the_thesis_says(preset):
    plans = runs(preset)
    for name, plan in plans.items():
        group, kind = name.split("/")
        start = "sn" if kind.startswith("sn-") else "ce"
        if kind != "sn":
            assert plan.start == (None if kind == "ce" else f"{group}/{start}")
        raw = kind.endswith("global")
        assert plan.config.select.normalize is not raw
        objective = plan.config.finetune.objective
        assert (isinstance(objective, DirectLoss) and not objective.normalize) is raw
    for group in ("ccg-uni", "ccg-bi", "mt"):
        plan = plans[f"{group}/sn"]
        stage = plan.config.pretrain if plan.start is None else plan.config.finetune
        assert isinstance(stage.objective, SelfNormalized)
        assert plan.start == (f"{group}/ce" if group == "mt" and preset != "paper" else None)
    encoders = {g: plans[f"ccg-{g}/ce"].config.model for g in ("uni", "bi")}
    assert all(isinstance(m, Lstm) and m.encoder == g for g, m in encoders.items())


@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_own_predictions_are_fed_in_every_run_that_samples(preset):
    """A stage that ends with its epochs of gold would be cross-entropy under another name."""
    stages = [plan.config.finetune for plan in runs(preset).values()]
    sampled = [s for s in stages if isinstance(s.objective, ScheduledSampling)]
    assert len(sampled) == 16 and all(s.epochs > s.objective.gold_epochs for s in sampled)
    for group in ("ner", "mt"):
        other = runs(preset)[f"{group}/soft-argmax-fixed"].config.finetune
        assert runs(preset)[f"{group}/more-ce"].config.finetune.epochs == other.epochs


def test_tables_share_their_runs():
    def names(what: str) -> set[str]:
        return {v.run for row in TABLES[what]().rows.values() for v in row.values()}

    assert {"ccg-uni/ce", "ccg-uni/direct-annealed"} <= names("table-4.1") & names("table-5.2")
    assert names("table-5.5") == names("table-5.6") <= names("table-5.4")


def test_a_cell_depends_on_its_start(monkeypatch):
    one, other = training("cpu", "mt/sn-local", 1), training("cpu", "mt/local", 1)
    assert one.settings != other.settings, "the same second stage, another start"
    assert one.start == training("cpu", "mt/sn", 1) and one.start.start == other.start


def test_every_cell_is_in_one_round_and_after_its_start():
    last, local, other = (training("cpu", f"mt/{n}", 1) for n in ("sn-local", "local", "global"))
    middle, first = last.start, local.start
    assert with_starts([last, local, first, other, middle]) == [
        [first],
        [middle, local, other],
        [last],
    ]
    assert with_starts([last]) == [[first], [middle], [last]] and with_starts([]) == []


@pytest.fixture(scope="module")
def out(tmp_path_factory, short_corpora):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        yield tmp_path_factory.mktemp("tables")


@pytest.mark.slow
def test_a_table_from_beginning_to_end(out, capsys):
    words = ["reproduce", "table-5.3", "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    assert main([*words, "--seeds", "2", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "globally normalized" in shown and "(85.5)" in shown
    record = json.loads((out / "table-5.3.json").read_text())
    assert record["seeds"] == [1, 2] and len(record["cells"]) == 2 * 2 * 6
    for claim in record["claims"]:
        assert claim["over"] == "seeds and sentences"
        low, high = claim["interval"]
        assert claim["repetitions"] == 2 and low <= high and 0 <= claim["p"] <= 1
    assert main(["report", "claims", "table-5.3", "--results", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["claims"]["table-5.3"] == record["claims"]
    assert sum(said["counts"].values()) == len(record["claims"]) == 10


@pytest.mark.slow
def test_finished_runs_are_kept(out, monkeypatch):
    order = Order(folder=out, seeds=[1, 2], preset="tiny", quiet=True)
    first = make("table-5.3", order)
    monkeypatch.setattr(
        "softbeam.experiments.search_aware.cells.train", None
    )  # nothing may be trained
    assert make("table-5.3", order) == first


@pytest.mark.slow
def test_a_table_of_what_is_finished_runs_nothing_and_leaves_out_the_rest(out, tmp_path, capsys):
    order = Order(folder=tmp_path, seeds=[1, 2], preset="tiny", quiet=True)
    whole = make("table-5.3", replace(order, folder=out))
    for part in ("results", "sentences"):
        shutil.copytree(out / part, tmp_path / part)
    result_path(training("tiny", "ccg-uni/sn-local", 2), tmp_path).unlink()
    left = make("table-5.3", replace(order, finished=True))
    assert not (tmp_path / "runs").exists()
    assert "23 of 24 runs are finished" in left["text"]
    row = left["rows"]["locally normalized"]
    assert row["unidirectional"] == [None, None] and None not in row["bidirectional"]
    same = {name for name, row in whole["rows"].items() if left["rows"][name] == row}
    assert same == set(whole["rows"]) - {"locally normalized"}
    claims = {c["claim"]: c["effect"] for c in left["claims"]}
    every = {c["claim"]: c["effect"] for c in whole["claims"]}
    gone = {
        "unidirectional: global training beats local training",
        "unidirectional: local training improves on its start",
    }
    assert claims == {name: effect for name, effect in every.items() if name not in gone}
    assert len(every) == len(claims) + 2
    out_of = ["--preset", "tiny", "--seeds", "2", "--quiet", "--out", str(tmp_path)]
    assert main(["reproduce", "all", "--finished", *out_of]) == 0
    shown = capsys.readouterr().out
    assert "23 of 24 runs" in shown and "table-5.6" in shown and not (tmp_path / "runs").exists()
    words = ["reproduce", "table-6.1", "--finished", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "--finished table-6.1: is for tables of trained runs" in capsys.readouterr().err


@pytest.mark.slow
def test_only_the_runs_that_are_named_are_trained(tmp_path, capsys):
    """Also of all tables; what they start from is trained too, and nothing else."""
    words = ["reproduce", "all", "--preset", "tiny", "--seeds", "1", "--quiet", "--jobs", "1"]
    words += ["--out", str(tmp_path)]
    assert main([*words, "--only", "ccg-uni/sn-*"]) == 0
    shown = capsys.readouterr().out
    trained = {path.parent.name for path in (tmp_path / "runs").glob("*/*/*")}
    assert trained == {"sn", "sn-local", "sn-global"}
    assert "table-5.3" in shown and "3 of 12 runs are finished" in shown
    assert main([*words, "--only", "nothing"]) == 2
    assert "--only nothing: no run has such a name; there are ner/" in capsys.readouterr().err
    words[1] = "table-6.1"
    assert main([*words, "--only", "ner/*"]) == 2
    assert "--only table-6.1: is for tables of trained runs" in capsys.readouterr().err


@pytest.mark.slow
def test_results_tell_all_without_the_runs_and_a_lost_start_is_trained_again(out, tmp_path):
    """What is committed of a folder: results and sentences, without weights and outputs."""
    order = Order(folder=tmp_path / "kept", seeds=[1, 2], preset="tiny", quiet=True)
    first = make("table-5.3", replace(order, folder=out))
    for part in ("results", "sentences"):
        shutil.copytree(out / part, order.folder / part)
    assert make("table-5.3", order)["claims"] == first["claims"]
    assert not (order.folder / "runs").exists()
    cell = training("tiny", "ccg-uni/sn-local", 2)
    result_path(cell, order.folder).unlink()
    assert lost_starts([cell, replace(cell, seed=1)], order.folder) == [cell.start]
    again = make("table-5.3", order)
    assert again["rows"] == first["rows"] and again["claims"] == first["claims"]
    assert {path.name for path in order.folder.glob("runs/*/*")} == {"sn", "sn-local"}


def test_a_claim_is_judged_in_its_own_direction(tmp_path, monkeypatch):
    """Figures without sentences: the larger is better, seed by seed."""
    table = Table(
        title="t",
        rows={"a": {"x": Value("ner/ce", ("q",))}, "b": {"x": Value("ner/more-ce", ("q",))}},
    )
    cells = {
        training("cpu", run, seed): {"q": value * (1 + seed / 500)}
        for run, value in (("ner/ce", 5.0), ("ner/more-ce", 3.0))
        for seed in (1, 2)
    }
    judge = Judge(cells, "cpu", [1, 2], tmp_path)
    a, b = Place("a", "x"), Place("b", "x")
    claim = Claim("a beats b", "here", a, b)
    assert rounded(judge.verdict(claim, table)) == rounded(
        judged("a beats b", [2.004, 2.008], source="here")
    )
    back = judge.verdict(claim._replace(better=b, worse=a), table)
    assert back["verdict"] == "not reproduced" and back["effect"] == pytest.approx(-2.006)
    near = judge.verdict(claim._replace(within=3.0), table)
    assert near["verdict"] == "reproduced" and near["effect"] == pytest.approx(2.006)
    more = judge.verdict(claim._replace(than=(b, a)), table)
    assert more["effect"] == pytest.approx(4.012), "a gains 2 over b, b -2 over a"
    assert judge.verdict(claim._replace(than=(a, b)), table)["effect"] == 0.0


@pytest.mark.parametrize(("metric", "over"), [("bleu", "sentences"), ("chrf", None)])
def test_sentences_judge_the_figure_that_they_are_about(metric, over, tmp_path, monkeypatch):
    def scores(cell, decode, folder):
        return Scored("bleu", [2.0 if cell.run == "mt/ce" else 1.0] * 5, mean)

    monkeypatch.setattr("softbeam.experiments.search_aware.results.sentence_scores", scores)
    monkeypatch.setattr("softbeam.experiments.search_aware.results.has_sentences", lambda *_: True)
    rows = {n: {"x": decoded(f"mt/{r}", "dev beam", metric)} for n, r in (("a", "ce"), ("b", "sn"))}
    cells = {
        training("cpu", run, 1): {"decodes": {"dev beam": {metric: value}}}
        for run, value in (("mt/ce", 2.0), ("mt/sn", 1.0))
    }
    claim = Claim("a beats b", "here", Place("a", "x"), Place("b", "x"))
    told = Judge(cells, "cpu", [1], tmp_path).verdict(claim, Table(title="t", rows=rows))
    assert (told["effect"], told["over"]) == (1.0, over), (
        "one seed alone: nothing is said of others"
    )
    assert told["verdict"] == "undecided"


@pytest.mark.slow
def test_every_figure_of_translations_is_found_again_from_their_sentences(out):
    """Precisions, length ratio and BLEU by source length, as `evaluate` had them of the corpus."""
    for name in ("table-5.4", "table-5.5", "table-5.6"):
        make(name, Order(folder=out, seeds=[1], preset="tiny", quiet=True))
        values = {v for row in TABLES[name]().rows.values() for v in row.values()}
        cells = {training("tiny", value.run, 1) for value in values}
        judge = Judge({c: read_result(c, out) for c in cells}, "tiny", [1], out)
        compared = 0
        for value in values:
            (figure,), parts = judge.figures(value), judge.by_sentence(value)
            assert (parts is None) == (figure is None), value
            if parts is not None:
                rows = np.array(parts[0].scores, dtype=float)
                assert parts[0].statistic(rows) == pytest.approx(figure, abs=1e-6), value
                compared += 1
        assert compared >= 6


def test_gains_are_compared_by_sentences_too(tmp_path, monkeypatch):
    """One draw of sentences for all four: a gain that is the same on each of them is certain."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=40)
    means = {"mt/ce": 0.0, "mt/local": 2.0, "mt/sn": 0.0, "mt/sn-local": 1.0}

    def scores(cell, decode, folder):
        shift = noise if cell.run in ("mt/local", "mt/sn-local") else 0.0 * noise
        return Scored("bleu", list(means[cell.run] * (1 + cell.seed / 99) + 5 * shift), mean)

    monkeypatch.setattr("softbeam.experiments.search_aware.results.sentence_scores", scores)
    monkeypatch.setattr("softbeam.experiments.search_aware.results.has_sentences", lambda *_: True)
    rows = {run: {"x": decoded(run, "dev beam", "bleu")} for run in means}
    cells = {
        training("cpu", run, seed): {"decodes": {"dev beam": {"bleu": value}}}
        for run, value in means.items()
        for seed in (1, 2)
    }
    ce, local, sn, sn_local = (Place(run, "x") for run in means)
    judge, table = Judge(cells, "cpu", [1, 2], tmp_path), Table(title="t", rows=rows)
    gain = judge.verdict(Claim("gains", "here", local, ce), table)
    more = judge.verdict(Claim("gains more", "here", local, ce, than=(sn_local, sn)), table)
    assert gain["interval"][1] - gain["interval"][0] > 1, "sentences differ in what they gain"
    assert more["interval"][1] - more["interval"][0] < 0.2 and more["verdict"] == "reproduced"
    assert more["over"] == "seeds and sentences"


def test_without_sentences_the_seeds_decide(tmp_path):
    """A folder that has kept nothing but the results."""
    rows = {n: {"x": decoded(f"mt/{r}", "dev beam", "bleu")} for n, r in (("a", "ce"), ("b", "sn"))}
    cells = {
        training("cpu", run, seed): {"decodes": {"dev beam": {"bleu": value + seed}}}
        for run, value in (("mt/ce", 2.0), ("mt/sn", 1.0))
        for seed in (1, 2)
    }
    claim = Claim("a beats b", "here", Place("a", "x"), Place("b", "x"))
    found = Judge(cells, "cpu", [1, 2], tmp_path).verdict(claim, Table(title="t", rows=rows))
    assert found == judged("a beats b", [1.0, 1.0], source="here")
    assert (found["over"], found["verdict"], found["p"]) == ("repetitions", "undecided", 0.5)


def test_results_that_are_not_there_are_named(tmp_path, capsys):
    assert main(["report", "claims", "--results", str(tmp_path)]) == 2
    assert "has no results" in capsys.readouterr().err
    assert main(["report", "claims", "table-9.9", "--results", str(tmp_path)]) == 2
    assert "table-9.9" in capsys.readouterr().err
