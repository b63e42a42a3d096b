"""Table 6.1 and Figure 6.1, whole, on a preset that takes seconds."""

import gzip
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.data import task
from softbeam.experiments import reproduce
from softbeam.experiments.energies import results as energy_results, tables as energy_tables
from softbeam.experiments.energies.claims import checks_of, claims_of, growth_claims
from softbeam.experiments.energies.results import row_name
from softbeam.experiments.energies.tables import PRESETS, figure_cells, table_cells
from softbeam.experiments.samplers import (
    cells as sampling_cells,
    comparisons,
    finished as sampling_figures,
    results as sampling_results,
    tables as sampling_tables,
)
from softbeam.experiments.search_aware import tables as training_tables
from softbeam.reports.page import write_report
from softbeam.reports.verdicts import judged, verdict_counts
from softbeam.runtime.cells import key
from support.toys import three_tokens


@pytest.fixture(scope="module")
def finished(short_corpora, tmp_path_factory):
    """The folder of a table and a figure, and what the commands printed."""
    out = tmp_path_factory.mktemp("reproduce")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(short_corpora))
        for what in ("table-6.1", "figure-6.1"):
            assert main(command(what, out)) == 0
    return out


def command(what, out):
    words = ["reproduce", what, "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    return [*words, "--seeds", "2", "--quiet"]


@pytest.mark.slow
def test_a_cluster_gives_the_same_cells(finished, short_corpora, farm, tmp_path, monkeypatch):
    """Projections wait until the models that they project are there."""
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    scheduler = farm.scheduler()
    farm.worker(scheduler, warm=True, variables={"SOFTBEAM_DATA": str(short_corpora)})
    cluster = ["--cluster", scheduler.address, "--seeds", "1"]
    assert main([*command("table-6.1", tmp_path), *cluster]) == 0
    alone, shared = (
        {cell["key"]: without_time(cell["result"]) for cell in record(out, "table-6.1")["cells"]}
        for out in (finished, tmp_path)
    )
    assert shared.items() <= alone.items() and len(shared) > 20


def without_time(result):
    return {name: value for name, value in result.items() if "seconds" not in name}


def record(out, what):
    return json.loads((out / f"{what}.json").read_text())


@pytest.mark.slow
def test_the_table_has_a_row_for_each_dataset_and_says_how_it_was_normalized(finished):
    found = record(finished, "table-6.1")
    names = ["p-50", "h-50", "h-50+", "phoneme"]
    assert list(found["rows"]) == names
    small, words = found["rows"]["p-50"], found["rows"]["phoneme"]
    methods = ["True", "LL", "PLL", "MLM", "KL", "KL+PLL", "NCE", "PCD"]
    assert list(small) == list(words) == [*methods, "-PLL", "-MLM"]
    assert all(len(values) == 2 for values in small.values())
    assert {name for name, values in words.items() if values} == {"PLL", "MLM", "-PLL", "-MLM"}
    log_z = found["log_z"]
    assert log_z["p-50"] == "exact"
    assert log_z["phoneme"].startswith("exact to length 3, AIS at 4, 5, 6 (adds a standard error")
    text = (finished / "table-6.1.txt").read_text()
    assert all(name in text for name in names) and "LL is left out there" in text
    assert "p-50: NLL(LL) < NLL(PLL)" in text and "phoneme: AIS agrees with exact" in text
    assert found["published"] == {"phoneme": [None, None, 14.58, 18.2, *[None] * 4, 13.31, 13.12]}


@pytest.mark.slow
def test_every_number_has_its_birth_certificate(finished):
    found = record(finished, "table-6.1")
    assert {"commit", "packages", "started", "command"} <= set(found["environment"])
    assert found["seeds"] == [1, 2] and found["preset"] == "tiny"
    cell = found["cells"][0]
    assert {"key", "data", "objective", "size", "seed", "hidden", "result"} <= set(cell)
    values = [c["result"]["nll"] for c in found["cells"] if row_is(c, "palindromes", 50, "LL")]
    assert len(values) == 2 and found["rows"]["p-50"]["LL"] == values
    assert all(c["seconds"] > 0 for c in found["cells"])


def row_is(cell, data, size, objective):
    return (cell["data"], cell["size"], cell["objective"]) == (data, size, objective)


@pytest.mark.slow
def test_the_figure_is_drawn_and_tabled(finished):
    found = record(finished, "figure-6.1")
    assert [p["data"] for p in found["panels"]] == [
        "palindromes",
        "hmm-low",
        "hmm-high",
        "phonemes",
    ]
    for panel in found["panels"]:
        assert all(len(line) == len(panel["sizes"]) for line in panel["lines"].values())
        assert set(panel["lines"]) == {"PLL", "MLM", "KL", "KL+PLL"}
    assert (finished / "figure-6.1.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (finished / "figure-6.1.svg").read_text()
    text = (finished / "figure-6.1.txt").read_text()
    assert "HMM, low entropy: MLM of 200" in text and "palindromes, 30: NLL(KL) < NLL(PLL)" in text


@pytest.mark.slow
def test_only_what_is_missing_is_run_again(finished, short_corpora, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    before = record(finished, "table-6.1")
    files = {path: path.stat().st_mtime_ns for path in (finished / "results").iterdir()}
    gone = finished / "results" / f"{before['cells'][-1]['key']}.json"
    gone.unlink()
    assert main([*command("table-6.1", finished), "--json"]) == 0
    after = json.loads(capsys.readouterr().out.splitlines()[-1])
    changed = {path for path, when in files.items() if path.stat().st_mtime_ns != when}
    assert changed == {gone}
    assert after["rows"] == before["rows"]


@pytest.fixture
def other_words(short_corpora, tmp_path) -> Path:
    """The same data directory without the last words of the dictionary."""
    folder, place = tmp_path / "other-words", Path("cmudict_0.7b", "cmudict-0.7b.gz")
    (folder / place.parent).mkdir(parents=True)
    lines = gzip.decompress((short_corpora / place).read_bytes()).splitlines(keepends=True)
    (folder / place).write_bytes(gzip.compress(b"".join(lines[:-5])))
    return folder


@pytest.mark.slow
def test_results_of_another_dictionary_are_not_mixed(
    finished, other_words, tmp_path, monkeypatch, capsys
):
    copy = shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.setenv("SOFTBEAM_DATA", str(other_words))
    words = command("table-6.1", copy)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{copy} was begun with other content of cmudict ({other_words}" in said
    assert main([*words, "--accept-changed-inputs"]) == 0
    (accepted,) = json.loads((copy / "inputs.json").read_text())["accepted"]
    assert list(accepted["changed"]) == ["cmudict"]
    assert record(copy, "table-6.1")["rows"] == record(finished, "table-6.1")["rows"]


@pytest.mark.slow
def test_all_targets_from_one_command(
    finished, short_corpora, other_words, tmp_path, monkeypatch, capsys
):
    """Trained runs first, then every target; the last line counts cells, hours and verdicts."""
    out = shutil.copytree(finished, tmp_path / "out")  # has the cells of Table 6.1
    monkeypatch.setenv("SOFTBEAM_DATA", str(short_corpora))
    few = ("table-3.2", "figure-3.1", "table-6.1", "table-6.6")  # one of each kind, for time
    monkeypatch.setattr(reproduce, "TRAINING", {few[0]: ""})
    monkeypatch.setattr(sampling_figures, "DRAWS", 50)  # samples of bootstraps
    monkeypatch.setattr(sampling_cells, "likeliest_lengths", three_tokens)
    monkeypatch.setattr(reproduce, "TARGETS", {what: reproduce.TARGETS[what] for what in few})
    words = ["reproduce", "all", "--preset", "tiny", "--seeds", "2", "--jobs", "1", "--quiet"]
    assert main([*words, "--out", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("all: 4 targets, ") and " cells of " in last
    records = {what: record(out, what) for what in few}
    judged = [f"{n} {v}" for v, n in verdict_counts(claims_of_all(records)).items()]
    assert f"claims: {', '.join(judged)}" in last
    assert {what for what, found in records.items() if not found["claims"]} == {"figure-3.1"}
    page = write_report([out], out / "report.html").read_text()
    for what in few:
        name = what.capitalize().replace("-", " ")
        assert f"<h3>{name}: {reproduce.TARGETS[what]}" in page
    monkeypatch.setenv("SOFTBEAM_DATA", str(other_words))
    monkeypatch.setattr(task, "LOADED", {})  # as in a new process
    assert main(["reproduce", few[-1], *words[2:], "--out", str(out)]) == 2
    assert "was begun with other content of data.dictionary (" in capsys.readouterr().err


def claims_of_all(records):
    return [claim for found in records.values() for claim in found["claims"]]


# Without running anything


def test_the_preset_paper_needs_a_published_model(tmp_path, capsys):
    for what in ("all", "table-6.4"):
        words = ["reproduce", what, "--preset", "paper", "--out", str(tmp_path / "out")]
        assert main(words) == 2
        assert "convert it to a run with softbeam models convert" in capsys.readouterr().err


def test_cells_that_targets_share_are_counted_once():
    claim = judged("a > b", [1.0, 1.1])
    cells = [{"key": "a", "seconds": 1800.0}, {"key": "b", "seconds": 5400.0}]
    records = [{"cells": cells, "claims": [claim]}, {"cells": cells[:1], "claims": [claim]}]
    assert reproduce.totals([*records, {"claims": []}]) == (
        "3 targets, 2 cells of 2.0 hours of one core; "
        "claims: 2 reproduced, 0 reproduced smaller, 0 not reproduced, 0 published size excluded, "
        "0 undecided"
    )


def test_the_command_line_knows_the_presets_and_targets():
    assert set(reproduce.PRESETS) == set(PRESETS) == set(sampling_tables.PRESETS)
    assert list(reproduce.ENERGY_BASED) == list(energy_results.TARGETS)
    chains = [*reproduce.SAMPLED, *reproduce.ORDERS]
    assert chains == list(sampling_results.TARGETS)
    assert [*chains, *reproduce.TEXTS] == list(sampling_tables.CELLS)
    assert set(reproduce.COMPARED) == set(comparisons.COMPARED)
    assert list(reproduce.TRAINING) == list(training_tables.TABLES)


def test_wrong_words_are_one_sentence(tmp_path, capsys):
    for words, expected in (
        (
            ["table-9.9"],
            f"no table or figure 'table-9.9'; there are all, {', '.join(reproduce.TARGETS)}",
        ),
        (["table-6.1", "--preset", "huge"], "no preset 'huge'; there are cpu, paper, full, tiny"),
        (["table-6.1", "--jobs", "0"], "--jobs 0: must be at least 1 and at most 1024"),
        (["table-6.1", "--seeds", "0"], "--seeds 0: must be at least 1"),
    ):
        assert main(["reproduce", *words, "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err.strip() == f"softbeam reproduce: {expected}"


def test_the_table_consists_of_the_thesis_s_rows():
    cells = table_cells(PRESETS["cpu"], [1, 2, 3, 4, 5], distinct=False)
    assert len({key(cell) for cell in cells}) == len(cells)
    expected = {"p-1k", "p-10k", "h-1k", "h-10k", "h-1k+", "h-10k+", "phoneme"}
    assert {row_name(cell) for cell in cells} == expected == set(energy_tables.PRINTED)
    for row in expected - {"phoneme"}:
        for method in ("LL", "PLL", "MLM"):
            mine = [c for c in cells if (row_name(c), c.objective) == (row, method)]
            assert sorted(c.seed for c in mine) == [1, 2, 3, 4, 5]


def test_objectives_of_a_row_differ_in_the_objective_alone():
    cells = table_cells(PRESETS["cpu"], [1], distinct=False)
    row = [asdict(c) for c in cells if row_name(c) == "p-1k" and c.teacher is None]
    assert [c["objective"] for c in row] == ["PLL", "LL", "MLM", "NCE", "PCD"]
    for cell in row:
        assert {**cell, "objective": "LL"} == {**row[0], "objective": "LL"}


def test_projections_start_from_the_mlm_of_their_row_and_take_fewer_updates():
    cells = table_cells(PRESETS["cpu"], [1], distinct=False)
    plain = {row_name(c): c for c in cells if c.objective == "MLM"}
    projected = [c for c in cells if c.teacher is not None]
    assert {c.objective for c in projected} == {"KL", "KL+PLL"}
    for cell in projected:
        assert cell.teacher == plain[row_name(cell)] and cell.updates < cell.teacher.updates


def test_table_and_figure_share_their_cells():
    preset = PRESETS["cpu"]
    table = {key(c) for c in table_cells(preset, [1], distinct=False)}
    figure = {key(c) for c in figure_cells(preset, [1], distinct=False)}
    assert len(table & figure) == 3 * 2 * 2  # datasets, sizes 1k and 10k, PLL and MLM


def test_teachers_are_large_and_trained_on_sequences_of_their_own():
    cells = figure_cells(PRESETS["cpu"], [1], distinct=True)
    students = [c for c in cells if c.teacher is not None]
    assert students and all(c.teacher.reserved and not c.reserved for c in students)
    assert {c.teacher.size for c in students if c.data == "palindromes"} == {100_000}
    assert {c.data for c in cells} == {"palindromes", "hmm-low", "hmm-high", "phonemes-distinct"}


def results(*values, **others):
    return [{"nll": value, "pll": 5.0, "mlm": 5.2, **others} for value in values]


def test_orderings_are_judged_by_the_mean_and_counted_by_dataset():
    by = {"LL": results(1.0, 2.0), "PLL": results(1.5, 1.9), "MLM": results(1.0, 1.0)}
    first, second, third, near = claims_of("p-1k", by)
    assert first["claim"] == "p-1k: NLL(LL) < NLL(PLL)" and first["right"] == 1
    assert first["effect"] == pytest.approx(0.2) and first["verdict"] == "undecided"
    assert second["right"] == 0 and second["effect"] == pytest.approx(-0.7)
    assert third["claim"] == "p-1k: NLL(LL) < NLL(MLM)" and third["effect"] == -0.5
    assert near["effect"] == pytest.approx(0.2) and near["right"] == 2
    del by["LL"]
    assert len(claims_of("phoneme", by)) == 2


def test_more_data_brings_objectives_together_or_not():
    few = {"LL": results(1.0, 1.0), "PLL": results(1.5, 1.6), "MLM": results(3.0, 3.0)}
    many = {"LL": results(1.0, 1.0), "PLL": results(1.1, 1.1), "MLM": results(3.0, 3.2)}
    closer, apart = growth_claims({"h-1k+": few, "h-10k+": many, "phoneme": few})
    assert closer["claim"] == "h-10k+: NLL(PLL) is nearer to NLL(LL) than with h-1k+"
    assert closer["effect"] == pytest.approx(0.45)
    assert apart["effect"] == pytest.approx(-0.55), "1.45 before, 2.0 after"


def test_a_model_below_the_truth_is_noticed():
    for expected, holds in ((5.1, True), (4.9, False)):
        by = {"LL": results(5.0, expected_nll=expected, entropy=5.0)}
        assert checks_of("p-1k", by)[0]["holds"] is holds


def test_sampling_that_disagrees_with_enumeration_is_noticed():
    for log_z, holds in ((10.02, True), (10.5, False)):
        check = {"log_z": log_z, "exact": 10.0, "error": 0.01}
        by = {"PLL": results(5.0, ais_check=check)}
        assert checks_of("phoneme", by)[0]["holds"] is holds
