"""The benchmark of exact training runs, and its forms agree."""

import pytest

from softbeam.cli import main
from softbeam.experiments.bench import exact


def test_the_pseudolikelihood_is_timed_against_one_batch():
    row = exact.conditionals(vocab=4, time=3, batch=2, hidden=4, repeats=1)
    assert row["ratio"] == pytest.approx(row["ours_s"] / row["one_batch_s"])


@pytest.mark.slow
def test_the_forms_of_log_z_agree_and_report_their_peak():
    lines: list[str] = []
    found = exact.run(
        repeats=1, vocab=4, time=3, batch=2, hidden=4, spaces=[(3, 4)], progress=lines.append
    )
    (row,) = found["log_z"]
    assert row["sequences"] == 81 and len(lines) == 2
    for form in exact.FORMS:
        assert row[form]["log_z"] == pytest.approx(row["enumerated"]["log_z"], abs=1e-5)
        assert row[form]["seconds"] > 0 and row[form]["peak_mb"] > 0


def test_the_command_checks_its_options(capsys):
    assert main(["bench", "exact", "--repeats", "0"]) == 2
    assert "--repeats 0" in capsys.readouterr().err
