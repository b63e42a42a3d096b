"""Table 6.1 and Figure 6.1, whole, on a preset that takes seconds."""

import json
from dataclasses import asdict

import pytest

from softbeam import energy_tables, reproduce, sampling_tables, training_tables
from softbeam.cells import key
from softbeam.cli import main
from softbeam.energy_tables import (
    PRESETS,
    checks_of,
    claims_of,
    figure_cells,
    row_name,
    table_cells,
)


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """The folder of a table and a figure, and what the commands printed."""
    out = tmp_path_factory.mktemp("reproduce")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBEAM_DATA", str(data_dir))
        for what in ("table-6.1", "figure-6.1"):
            assert main(command(what, out)) == 0
    return out


def command(what, out):
    words = ["reproduce", what, "--preset", "tiny", "--out", str(out), "--jobs", "1"]
    return [*words, "--seeds", "2", "--quiet"]


@pytest.mark.slow
def test_the_workers_of_a_queue_give_the_same_cells(finished, data_dir, tmp_path, monkeypatch):
    """Projections wait until the models that they project are there."""
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    storage = ["--storage", f"sqlite:///{tmp_path}/queue.db"]
    assert main([*command("table-6.1", tmp_path), *storage]) == 0
    alone, queued = (
        {cell["key"]: without_time(cell["result"]) for cell in record(out, "table-6.1")["cells"]}
        for out in (finished, tmp_path)
    )
    assert alone == queued and len(alone) > 20


def without_time(result):
    return {name: value for name, value in result.items() if "seconds" not in name}


def record(out, what):
    return json.loads((out / f"{what}.json").read_text())


@pytest.mark.slow
def test_the_table_has_a_row_for_each_dataset_and_says_how_it_was_normalized(finished):
    found = record(finished, "table-6.1")
    names = ["p-50", "h-50", "h-50+", "phoneme"]
    assert [row["row"] for row in found["rows"]] == names
    small, words = found["rows"][0], found["rows"][-1]
    assert set(small["nll"]) == {"True", "LL", "PLL", "MLM", "KL", "KL+PLL", "NCE", "PCD"}
    assert set(words["nll"]) == {"PLL", "MLM"}
    assert small["log_z"] == "exact"
    assert words["log_z"].startswith("exact to length 3, AIS at 4, 5, 6 (adds a standard error")
    text = (finished / "table-6.1.txt").read_text()
    assert all(name in text for name in names) and "LL is left out there" in text
    assert "p-50: NLL(LL) <= NLL(PLL)" in text and "phoneme: AIS agrees with exact" in text


@pytest.mark.slow
def test_every_number_has_its_birth_certificate(finished):
    found = record(finished, "table-6.1")
    assert {"commit", "packages", "started", "command"} <= set(found["environment"])
    assert found["seeds"] == [1, 2] and found["preset"] == "tiny"
    cell = found["cells"][0]
    assert {"key", "data", "objective", "size", "seed", "hidden", "result"} <= set(cell)
    values = [c["result"]["nll"] for c in found["cells"] if row_is(c, "palindromes", 50, "LL")]
    row = found["rows"][0]["nll"]["LL"]
    assert len(values) == 2 and row["mean"] == pytest.approx(sum(values) / 2, rel=1e-5)
    digits = 1e-5 * max(values)  # a record has six
    assert row["spread"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5, abs=digits)


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
def test_only_what_is_missing_is_run_again(finished, data_dir, monkeypatch, capsys):
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    before = record(finished, "table-6.1")
    files = {path: path.stat().st_mtime_ns for path in (finished / "results").iterdir()}
    gone = finished / "results" / f"{before['cells'][-1]['key']}.json"
    gone.unlink()
    assert main([*command("table-6.1", finished), "--json"]) == 0
    after = json.loads(capsys.readouterr().out.splitlines()[-1])
    changed = {path for path, when in files.items() if path.stat().st_mtime_ns != when}
    assert changed == {gone}
    assert after["rows"] == before["rows"]


# Without running anything


def test_the_command_line_knows_the_presets_and_targets():
    assert list(reproduce.PRESETS) == list(PRESETS)
    assert list(reproduce.PRESETS) == list(sampling_tables.PRESETS)
    for what in reproduce.ENERGY_BASED:
        assert hasattr(energy_tables, what.replace("-", "_").replace(".", "_"))
    assert list(reproduce.SAMPLED) == list(sampling_tables.CELLS)
    assert list(reproduce.TRAINING) == list(training_tables.TABLES)


def test_wrong_words_are_one_sentence(tmp_path, capsys):
    for words, expected in (
        (
            ["table-9.9"],
            f"no table or figure 'table-9.9'; there are all, {', '.join(reproduce.TARGETS)}",
        ),
        (["table-6.1", "--preset", "huge"], "no preset 'huge'; there are cpu, paper, tiny"),
        (["table-6.1", "--jobs", "0"], "--jobs 0: must be at least 1"),
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
    return [{"nll": value, **others} for value in values]


def test_orderings_are_judged_by_the_mean_and_counted_by_dataset():
    by = {"LL": results(1.0, 2.0), "PLL": results(1.5, 1.9), "MLM": results(1.0, 1.0)}
    first, second = claims_of("p-1k", by)
    assert first["claim"] == "p-1k: NLL(LL) <= NLL(PLL)" and first["right"] == 1
    assert first["effect"] == pytest.approx(0.2) and first["verdict"] == "undecided"
    assert second["right"] == 0 and second["effect"] == pytest.approx(-0.7)


def test_a_model_below_the_truth_is_noticed():
    for expected, holds in ((5.1, True), (4.9, False)):
        by = {"LL": results(5.0, expected_nll=expected, entropy=5.0)}
        assert checks_of("p-1k", by)[0]["holds"] is holds


def test_sampling_that_disagrees_with_enumeration_is_noticed():
    for log_z, holds in ((10.02, True), (10.5, False)):
        check = {"log_z": log_z, "exact": 10.0, "error": 0.01}
        by = {"PLL": results(5.0, ais_check=check)}
        assert checks_of("phoneme", by)[0]["holds"] is holds
