"""Files of samples: whole, streamed, and the same bytes however often they were interrupted."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from softbeam.cli import main
from softbeam.errors import Interrupted, UserError
from softbeam.sampling.texts import files
from softbeam.sampling.texts.files import (
    checkpoint_of,
    make_header,
    read_header,
    read_samples,
    write_samples as write,
)
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.sampling.texts.summary import as_text, chains_by_text, finish, finished, summary
from support.tiny_bert import letter_mlm, write_letter_mlm

TEXTS = ["AC[MASK]DE", "[MASK][MASK]KLA", "<mask>"]
SMALL = SamplingConfig(chains=2, sweeps=6, burn_in=2, at_once=4)  # two groups of texts


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm(torch.float32)


def header_of(config=SMALL, texts=TEXTS, threads=1):
    return make_header("letters", texts, config, threads)


@pytest.mark.slow
def test_a_row_for_each_chain_after_each_sweep(mlm, tmp_path):
    out = tmp_path / "new" / "s.jsonl"
    assert write(mlm, header_of(), SMALL, out, quiet=True) > 0
    header = read_header(out)
    assert header == header_of() and header["texts"] == TEXTS
    assert header["settings"]["burn_in"] == 2 and header["versions"]["torch"]
    rows = list(read_samples(out))
    assert len(rows) == 3 * 2 * 6
    keys = {(row["index"], row["chain"], row["sweep"]) for row in rows}
    assert keys == {(i, c, s) for i in range(3) for c in range(2) for s in range(6)}
    for row in rows:
        assert row["phase"] == ("burn-in" if row["sweep"] < 2 else "sample")
        assert row["proposals"] == TEXTS[row["index"]].lower().count("mask")
        assert row["accepted"] == row["repeated"] + row["novel"]
        alone = mlm.encode(row["text"]).tokens[0].tolist()
        assert row["tokens"] == alone, "no padding in it"


class Killed(Exception):
    """Stands for a kill: nothing is cleaned up."""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["mh", "gibbs", "exact-gibbs"])
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_after_a_kill_the_same_bytes_go_on(mlm, tmp_path, monkeypatch, kernel, every):
    """Killed again and again in both groups, each time with half a line at the end."""
    config = SamplingConfig(chains=2, sweeps=4, burn_in=1, at_once=4, kernel=kernel, block=1)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    write(mlm, header_of(config), config, whole, quiet=True)
    plain, left = files.as_line, [0]

    def dying(value):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return plain(value)

    sittings = 0
    monkeypatch.setattr(files, "as_line", dying)
    while True:
        left[0] = 11 if every == 0 else 10**6 if sittings else 11  # lines before it dies
        sittings += 1
        try:
            write(mlm, header_of(config), config, out, every=every, resume=True, quiet=True)
            break
        except Killed:
            with out.open("ab") as file:
                file.write(b'{"index": 0, "chain"')
    assert sittings > 1 and out.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(mlm, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    write(mlm, header_of(), SMALL, whole, quiet=True)
    plain = files.sample_rows

    def stopping(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(*args)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sample_rows", stopping)
        with pytest.raises(Interrupted, match="--resume continues"):
            write(mlm, header_of(), SMALL, out, quiet=True)
    assert checkpoint_of(out).exists() and len(out.read_text().splitlines()) == 5
    write(mlm, header_of(), SMALL, out, resume=True, quiet=True)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_another_seed_is_another_file_and_the_same_seed_the_same(mlm, tmp_path):
    paths = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        config = SamplingConfig(chains=2, sweeps=6, burn_in=2, seed=seed)
        write(mlm, header_of(config), config, path, quiet=True)
    first, again, other = (list(read_samples(path)) for path in paths)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert first == again and first != other


@pytest.mark.slow
def test_going_on_with_other_settings_is_refused(mlm, tmp_path):
    out = tmp_path / "s.jsonl"
    write(mlm, header_of(), SMALL, out, every=0.0, quiet=True)
    other = SamplingConfig(chains=2, sweeps=6, burn_in=2, at_once=4, seed=9)
    with pytest.raises(UserError, match=r"started with seed 1, not 9; give another --out"):
        write(mlm, header_of(other), other, out, resume=True, quiet=True)
    with pytest.raises(UserError, match="started with texts"):
        write(mlm, header_of(texts=["[MASK]"]), SMALL, out, resume=True, quiet=True)
    out.write_text("rubbish\n")
    with pytest.raises(UserError, match="not a file of samples"):
        write(mlm, header_of(), SMALL, out, resume=True, quiet=True)


@pytest.mark.slow
def test_a_file_cut_behind_its_checkpoint_is_refused(mlm, tmp_path):
    out = tmp_path / "s.jsonl"
    write(mlm, header_of(), SMALL, out, every=0.0, quiet=True)
    assert checkpoint_of(out).exists()
    os.truncate(out, out.stat().st_size - 10)
    with pytest.raises(UserError, match="the checkpoint says"):
        write(mlm, header_of(), SMALL, out, resume=True, quiet=True)


def test_an_unwritable_place_is_a_sentence(mlm, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(mlm, header_of(), SMALL, tmp_path / "file" / "s.jsonl", quiet=True)


# The report


@pytest.mark.slow
def test_the_summary_is_of_the_sweeps_after_the_burn_in(mlm, tmp_path):
    out = tmp_path / "s.jsonl"
    config = SamplingConfig(chains=4, sweeps=30, burn_in=6)
    seconds = write(mlm, header_of(config), config, out, quiet=True)
    rows = list(read_samples(out))
    for i, found in enumerate(map(summary, chains_by_text(rows))):
        own = [row for row in rows if row["index"] == i and row["phase"] == "sample"]
        proposals = sum(row["proposals"] for row in own)
        assert found["accept"] == pytest.approx(sum(r["accepted"] for r in own) / proposals)
        assert found["self"] + found["novel"] == pytest.approx(found["accept"])
        assert found["samples"] == len(own) == 96
        assert found["unique"] == len({row["text"] for row in own}) / 96
        best = min(own, key=lambda row: row["energy"])
        assert found["lowest_energy"] == best["energy"] and found["lowest_text"] == best["text"]
        assert found["rhat"] > 0.9 and 1 < found["ess"] and found["ess_per_s"] is None
    counts = summary(chains_by_text(rows)[1], features={"K": lambda text: text.count("K")})[
        "features"
    ]
    own = [row["text"].count("K") for row in rows if row["index"] == 1 and row["sweep"] >= 6]
    assert counts["K"]["mean"] == pytest.approx(sum(own) / 96) and counts["K"]["rhat"] > 0.9
    made = finish(out, header_of(config), seconds=seconds)
    shown = as_text(made)
    assert "R-hat" in shown and "ESS/s" in shown and "stuck" not in shown
    assert (tmp_path / "s.png").stat().st_size > 10_000
    assert finished(out, header_of(config)) == made
    with pytest.raises(UserError, match="started with threads 1, not 2"):
        finished(out, header_of(config, threads=2))


@pytest.mark.slow
def test_what_is_stuck_and_what_disagrees_is_said(mlm, tmp_path):
    config = SamplingConfig(chains=4, sweeps=12, burn_in=2, nucleus=0.3, start="random")
    out = tmp_path / "s.jsonl"
    write(mlm, header_of(config), config, out, quiet=True)
    shown = as_text(finish(out, header_of(config), seconds=1.0))
    assert "stuck" in shown.splitlines()[0] and "--epsilon 0.05 solves" in shown
    assert re.search(
        r"R-hat above 1\.\d\d \(text 0.*; of (energy|token \d+ at position \d+)\)", shown
    )


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_letter_mlm(tmp_path_factory.mktemp("letters"))


def words(folder: Path, out: Path, *more: str) -> list[str]:
    made = ["sample", "--mlm", str(folder), "--text", "AC[MASK]D[MASK]E", "--chains", "4"]
    return [*made, "--sweeps", "12", "--burn-in", "3", "--out", str(out), "--quiet", *more]


def last_json(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


@pytest.mark.slow
def test_the_command_shows_a_table_and_json(folder, tmp_path, capsys):
    out = tmp_path / "s.jsonl"
    assert main(words(folder, out, "--json")) == 0
    shown = capsys.readouterr().out
    table = shown.splitlines()[0].split()
    assert table[:7] == ["text", "accept", "self", "novel", "R-hat", "ESS", "ESS/s"]
    found = last_json(shown)
    assert found["texts"][0]["samples"] == 36 and found["texts"][0]["ess_per_s"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"s.jsonl", "s.json", "s.png"}
    before = out.stat().st_mtime_ns
    assert main(words(folder, out, "--resume", "--json")) == 0
    assert last_json(capsys.readouterr().out) == found and out.stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_command_takes_many_texts_and_all_settings(folder, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("A[MASK]C\n[MASK][MASK]KL\nACDEF[MASK]G\n")
    (tmp_path / "words.txt").write_text("A\nCA\n\n")
    (tmp_path / "tokens.txt").write_text("A\nC\nK\n")
    made = ["sample", "--mlm", str(folder), "--input", str(tmp_path / "in.txt"), "--chains", "2"]
    made += ["--sweeps", "5", "--burn-in", "2", "--forced", "1", "--energy", "raw"]
    made += ["--anneal", "1.0,-0.1,0.5", "--block", "random", "--order", "sequential"]
    made += ["--nucleus", "0.9", "--epsilon", "0.1", "--proposal-temperature", "0.9"]
    made += ["--start", "random", "--near", "self", "--near-weight", "0.5", "--seed", "3"]
    made += ["--lexicon", str(tmp_path / "words.txt"), "--lexicon-weight", "2"]
    made += ["--allowed", str(tmp_path / "tokens.txt"), "--dtype", "float64", "--rows", "8"]
    out = tmp_path / "s.jsonl"
    assert main([*made, "--out", str(out), "--quiet", "--json"]) == 0
    settings = read_header(out)["settings"]
    assert settings["anneal"] == [1.0, -0.1, 0.5] and settings["lexicon"] == ["A", "CA"]
    assert settings["allowed"] == ["A", "C", "K"] and settings["block"] == "random"
    rows = list(read_samples(out))
    assert {row["phase"] for row in rows} == {"forced", "burn-in", "sample"}
    assert [row["temperature"] for row in rows[::6]] == [1.0, 0.9, 0.8, 0.7, 0.6]
    assert {row["text"][1] for row in rows if row["index"] == 0} <= set("ACK")
    assert "note: --anneal" in capsys.readouterr().out


@pytest.mark.slow
def test_a_text_of_gaps(folder, tmp_path, capsys):
    out = tmp_path / "s.jsonl"
    made = ["sample", "--mlm", str(folder), "--length", "5", "--chains", "2", "--sweeps", "4"]
    made += ["--burn-in", "1", "--kernel", "gibbs"]
    assert main([*made, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "accepts every proposal" in said.err and "accepts every proposal" in said.out
    assert {len(row["text"]) for row in read_samples(out)} == {5}


BAD = {
    "no model": (["sample", "--text", "[MASK]"], "mlm"),
    "not a model": (["sample", "--mlm", "/no/such", "--text", "[MASK]"], "neither a folder"),
    "no text": (["sample", "--mlm", "M"], "either --text TEXT or --input FILE"),
    "two texts": (["sample", "--mlm", "M", "--text", "A", "--input", "F"], "either --text"),
    "both": (["sample", "--mlm", "M", "--text", "A", "--length", "3"], "--length makes"),
    "no length": (["sample", "--mlm", "M", "--length", "0"], "--length 0: must be at least 1"),
    "no gap": (["sample", "--mlm", "M", "--text", "ACD"], "text 0 has no [MASK]"),
    "unknown token": (["sample", "--mlm", "M", "--text", "A?[MASK]"], "has no token for"),
    "too long": (["sample", "--mlm", "M", "--length", "60"], "the model's limit is 40"),
    "kernel": (["sample", "--mlm", "M", "--text", "[MASK]", "--kernel", "frob"], "exact-gibbs"),
    "block": (["sample", "--mlm", "M", "--text", "[MASK]", "--block", "some"], "block"),
    "anneal": (["sample", "--mlm", "M", "--text", "[MASK]", "--anneal", "1,2"], "anneal"),
    "burn-in": (["sample", "--mlm", "M", "--text", "[MASK]", "--burn-in", "50"], "below 50"),
    "missing input": (["sample", "--mlm", "M", "--input", "/no/such"], "cannot be read"),
    "empty input": (["sample", "--mlm", "M", "--input", "EMPTY"], "has no line"),
    "empty lexicon": (
        ["sample", "--mlm", "M", "--text", "[MASK]", "--lexicon", "EMPTY"],
        "has no line",
    ),
    "threads": (["sample", "--mlm", "M", "--text", "[MASK]", "--threads", "0"], "--threads 0"),
    "scored gap": (["score", "--mlm", "M", "--text", "A[MASK]"], "text 0 has 1 gaps"),
    "scored nothing": (["score", "--mlm", "M", "--text", ""], "text 0 has no token"),
    "score rows": (["score", "--mlm", "M", "--text", "A", "--rows", "0"], "--rows 0"),
    "no samples": (["infill", "--mlm", "M", "--text", "[MASK]", "--samples", "0"], "--samples 0"),
    "nothing to fill": (["infill", "--mlm", "M", "--text", "ACD"], "text 0 has no [MASK]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_use_is_one_sentence(case, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("")
    places = {"M": str(folder), "EMPTY": str(tmp_path / "empty")}
    given, expected = BAD[case]
    code = main([places.get(word, word) for word in given])
    shown = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(shown) == 1 and expected in shown[0], shown
    assert not (tmp_path / "samples.jsonl").exists()
