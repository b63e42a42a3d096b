"""Pseudo-log-likelihoods against a plain loop, and how they are shown."""

import json

import pytest
import torch

from softbeam.cli import main
from softbeam.sampling.texts import score
from softbeam.sampling.texts.score import score_texts
from support.tiny_bert import letter_mlm, write_letter_mlm

TEXTS = ["ACDE", "K", "LLLLLLAAC", "GH"]


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm()


def plain(mlm, text: str, energy: str) -> list[float]:
    """One forward pass of the bare model for each token."""
    ids = torch.tensor(mlm.tokenizer(text)["input_ids"])
    found = []
    for i in range(1, len(ids) - 1):
        row = ids.clone()
        row[i] = mlm.mask_id
        logits = mlm.model(input_ids=row[None]).logits[0, i]
        table = logits.log_softmax(-1) if energy == "local" else logits
        found.append(float(table[ids[i]]))
    return found


@pytest.mark.parametrize("energy", ["local", "raw"])
@pytest.mark.parametrize("rows", [1, 3, 256])
def test_scores_are_those_of_a_plain_loop(mlm, energy, rows):
    for one, text in zip(score_texts(mlm, TEXTS, energy=energy, rows=rows), TEXTS, strict=True):
        expected = plain(mlm, text, energy)
        assert one.text == text and one.tokens == list(text)
        assert one.scores == pytest.approx(expected, abs=1e-9)
        assert one.score == pytest.approx(sum(expected), abs=1e-9)


@pytest.mark.slow
def test_the_model_never_gets_more_than_the_bound(mlm, monkeypatch):
    monkeypatch.setattr(score, "TOKENS", 30)
    seen, logits = [], mlm.logits

    def watched(tokens, masked, owner):
        seen.append(tokens.numel())
        return logits(tokens, masked, owner)

    monkeypatch.setattr(mlm, "logits", watched)
    list(score_texts(mlm, ["A" * 20, "C" * 9] * 3))
    assert max(seen) <= 30 and len(seen) > 20


def test_many_texts_come_in_order_and_one_after_another(mlm, monkeypatch):
    monkeypatch.setattr(score, "TOGETHER", 3)
    texts = ["A" * (1 + i % 7) for i in range(20)]
    assert [one.text for one in score_texts(mlm, texts)] == texts
    first = next(score_texts(mlm, [*texts, "A?"]))  # the last cannot be read
    assert first.text == "A"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_letter_mlm(tmp_path_factory.mktemp("letters"))


@pytest.mark.slow
def test_the_command(folder, mlm, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    made = ["score", "--mlm", str(folder), "--input", str(tmp_path / "in.txt"), "--quiet"]
    expected = [one.score for one in score_texts(mlm, TEXTS)]
    assert main([*made, "--format", "jsonl", "--per-token"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS and [row["line"] for row in rows] == [0, 1, 2, 3]
    assert [row["score"] for row in rows] == pytest.approx(expected, abs=1e-4)
    assert rows[0]["token_scores"][1][0] == "C"
    assert sum(s for _, s in rows[0]["token_scores"]) == pytest.approx(rows[0]["score"])
    assert main([*made, "--format", "tsv"]) == 0
    names, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert names == ["line", "score", "tokens", "per_token", "text"] and len(lines) == 4
    assert float(lines[2][1]) == pytest.approx(expected[2], abs=1e-4) and lines[2][2] == "9"
    assert main(["score", "--mlm", str(folder), "--text", "ACDE", "--per-token", "--quiet"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 5 and shown[0].endswith("a token  ACDE") and shown[2].split()[1] == "C"


@pytest.mark.slow
def test_infilling_by_the_command(folder, capsys):
    made = ["infill", "--mlm", str(folder), "--text", "AC[MASK][MASK]D", "--samples", "40"]
    assert main([*made, "--burn-in", "3", "--json", "--show", "2", "--quiet"]) == 0
    shown = capsys.readouterr().out.splitlines()
    found = json.loads(shown[-1])["fillings"]
    assert shown[0].split() == ["share", "energy", "text"] and shown[1].split()[2].startswith("AC")
    assert sum(one["share"] for one in found) == pytest.approx(1.0)
    assert shown[-2] == f"and {len(found) - 2} others"
    assert all(len(one["tokens"]) == 2 for one in found)


def test_infilling_shows_how_far_it_is(folder, capsys, monkeypatch):
    """A line a minute where there is no terminal; here a minute is over at once."""
    monkeypatch.setattr("softbeam.runtime.progress.EVERY", 0.0)
    words = ["infill", "--mlm", str(folder), "--text", "A[MASK]D", "--samples", "3"]
    words += ["--chains", "1", "--burn-in", "1"]
    assert main(words) == 0
    lines = [" ".join(line.split()[:2]) for line in capsys.readouterr().err.splitlines()]
    assert lines == [f"infill {done}" for done in ("0.2/1", "0.5/1", "0.8/1", "1.0/1", "1/1")]
