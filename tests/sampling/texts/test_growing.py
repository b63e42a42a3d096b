"""`softbeam sample --lengths`: rows of different lengths, their energies, and resuming."""

import json

import pytest

from softbeam.cli import main
from softbeam.sampling.texts import files
from softbeam.sampling.texts.api import score
from support.tiny_bert import letter_mlm, write_letter_mlm

WORDS = ["sample", "--mlm", "mlm", "--lengths", "2-5", "--length-offset", "-2.5", "--quiet"]
WORDS += ["--chains", "6", "--sweeps", "6", "--burn-in", "2", "--dtype", "float64"]


@pytest.mark.slow
def test_lengths_change_within_their_range_and_a_stopped_run_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_letter_mlm(tmp_path / "mlm")
    assert main([*WORDS, "--out", "a.jsonl"]) == 0
    assert "R-hat" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()[1:]]
    assert {len(row["text"]) for row in rows} == {2, 3, 4, 5}
    assert all(len(row["tokens"]) == len(row["text"]) + 2 for row in rows), "cls and sep"
    last = {row["chain"]: row for row in rows}
    scored = score(letter_mlm(), [row["text"] for row in last.values()])
    for row, own in zip(last.values(), scored, strict=True):
        assert row["energy"] == pytest.approx(-own.score - 2.5 * len(row["text"]), abs=1e-4)

    whole = files.sample_rows

    def stopping(mlm, record, config, group):
        if record.sweep == 3:
            raise KeyboardInterrupt
        return whole(mlm, record, config, group)

    monkeypatch.setattr(files, "sample_rows", stopping)
    assert main([*WORDS, "--out", "b.jsonl"]) == 130
    monkeypatch.setattr(files, "sample_rows", whole)
    assert main([*WORDS, "--out", "b.jsonl", "--resume"]) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
