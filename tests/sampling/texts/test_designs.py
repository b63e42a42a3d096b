"""Designs: which positions are sampled, what may stand there, terms of one's own, ranked files."""

import csv
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from softbeam.cli import main
from softbeam.data.fasta import read_named
from softbeam.errors import UserError
from softbeam.runtime.allowed import allowing
from softbeam.sampling.texts.designs import changes
from softbeam.sampling.texts.own_terms import OwnTerm
from softbeam.sampling.texts.sampler import sampler
from softbeam.sampling.texts.settings import SamplingConfig
from support.text_laws import SMALL, distance, joint, run
from support.tiny_bert import letter_mlm, write_letter_mlm

OWN = """
calls = []

def score(texts):
    calls.extend(texts)
    return [0.7 * text.count("A") for text in texts]

def broken(texts):
    return [1.0]

def infinite(texts):
    return [float("inf")] * len(texts)
"""


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "own_stability.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_stability"
    sys.modules.pop("own_stability", None)


def freed(mlm, text, **settings):
    """The free positions of a text, from 1."""
    made = sampler(mlm, [text], replace(SMALL, **settings))
    return made.free[0].nonzero()[:, 0].tolist()


def test_positions_are_counted_from_one(mlm):
    assert freed(mlm, "ACDEF", free="2-3,5") == [2, 3, 5]
    assert freed(mlm, "ACDEF", free="all", fix="1,4-5") == [2, 3]
    assert freed(mlm, "ACDEF", fix="2-5") == [1]
    assert freed(mlm, "A[MASK]DEF", free="2") == [2]
    for settings, message in (
        ({"free": "4-6"}, "--free 4-6: text 0 has 5 positions"),
        ({"fix": "1-5"}, "text 0 has no token to sample"),
    ):
        with pytest.raises(UserError, match=message):
            freed(mlm, "ACDEF", **settings)
    with pytest.raises(UserError, match="--free 1: text 0 has a gap at 2"):
        freed(mlm, "A[MASK]DEF", free="1")
    with pytest.raises(UserError, match="--fix 2: text 0 has a gap at 2"):
        freed(mlm, "A[MASK]DEF", fix="2")


@pytest.mark.parametrize("free", ["", "3-2", "0", "a", "1-", "1,,2", "-3"])
def test_what_is_no_list_of_positions(free):
    with pytest.raises(UserError, match="--free"):
        SamplingConfig(free=free)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["mh", "exact-gibbs"])
@pytest.mark.parametrize("start", ["in-turn", "random"])
def test_sets_of_positions(mlm, kernel, start):
    config = replace(SMALL, free="1-3", kernel=kernel, start=start)
    config = replace(config, allowed_at=("1 AC", "2-3 D E"), allowed=("K", "L"))
    _, records = run(mlm, ["FFFFA", "GGGG"], replace(config, free="1-4"))
    for record in records:
        for text in mlm.decode(record.state.tokens):
            assert text[0] in "AC" and {*text[1:3]} <= {*"DE"} and text[3] in "KL"
            assert text[4:] in ("A", "")
    for lines, message in ((("1",), "must be positions and tokens"), (("1 Z",), "no token of")):
        with pytest.raises(UserError, match=message):
            run(mlm, ["FFFF"], replace(config, allowed_at=lines))


@pytest.mark.slow
def test_terms_of_ones_own_and_repetitions_change_the_law(mlm, own):
    """Against enumeration: a sum, a hard limit, and the phrases that occur again."""
    text = "A[MASK]A"
    many = replace(SMALL, chains=300, sweeps=40, burn_in=24, proposal="uniform")
    own_score = f"{own}:score"

    def law(config, weight):
        with allowing([own]):
            _, records = run(mlm, [text], config)
        found = Counter(t for r in records[24:] for t in mlm.decode(r.state.tokens))
        assert distance(found, joint(mlm, text, weight)) < 0.05
        return found

    summed = replace(many, term=(own_score,), term_weight=(-6.0,))
    law(summed, lambda t: -4.2 * t.count("A"))
    limit = replace(many, term=(own_score,), term_limit=(1.5,))
    found = law(limit, lambda t: float("inf") if t.count("A") > 2 else 0.0)
    assert max(t.count("A") for t in found) == 2
    again = replace(many, repetition_weight=-4.0, repetition_size=1)
    found = law(again, lambda t: -4.0 * (3 - len({*t})))
    assert distance(found, joint(mlm, text)) > 0.05, "the term matters"


def test_a_term_gets_each_text_once(mlm, own):
    import own_stability

    own_stability.calls.clear()
    term = OwnTerm("x:score", own_stability.score, mlm.decode)
    rows = mlm.encode(["AAC", "CAC", "AAC"]).tokens
    assert term(rows).tolist() == pytest.approx([1.4, 0.7, 1.4])
    assert term(rows).tolist() == pytest.approx([1.4, 0.7, 1.4])
    assert own_stability.calls == ["AAC", "CAC"]
    assert OwnTerm("x", own_stability.score, mlm.decode, limit=1)(rows).tolist() == [
        float("inf"), 0.0, float("inf"),
    ]  # fmt: skip


def test_terms_that_cannot_be_used(mlm, own):
    def attempt(allow=True, **settings):
        with allowing([own] if allow else []), pytest.raises(UserError) as error:
            made = sampler(mlm, ["A[MASK]"], replace(SMALL, **settings))
            list(made.run(torch.Generator().manual_seed(0)))
        return str(error.value)

    assert "add --allow-module own_stability" in attempt(False, term=(f"{own}:score",))
    assert own not in sys.modules, "code that is not allowed is not even imported"
    assert "must be module:function" in attempt(term=("own_stability",))
    assert "cannot be loaded" in attempt(term=(f"{own}:nothing",))
    assert "1 numbers for" in attempt(term=(f"{own}:broken",))
    assert "inf for" in attempt(term=(f"{own}:infinite",))
    message = attempt(term=(f"{own}:score",), term_limit=(0.1,))
    assert "no start within it in 20 tries (own_stability:score is " in message
    for settings in ({"term_weight": (1.0,)}, {"term": ("a:b",), "term_limit": (1.0, 2.0)}):
        with pytest.raises(UserError, match="numbers and --term"):
            SamplingConfig(**settings)
    with pytest.raises(UserError, match="--kernel gibbs and --forced"):
        SamplingConfig(term=("a:b",), term_limit=(1.0,), kernel="gibbs")


def test_changes_are_named():
    assert changes("ACDE", "ACKL") == "D3K:E4L"
    assert changes("A[MASK]D<mask>", "ACDA") == "_2C:_4A"
    assert changes("ACD", "AC") == "" == changes("ACD", "ACD")
    assert changes("ACD", "ALD", first=30) == "C31L"


@pytest.mark.slow
def test_designs_are_ranked_and_distinct(tmp_path, own, monkeypatch, capsys):
    """From FASTA to CSV and FASTA, with all options, in a folder of a new user."""
    monkeypatch.chdir(tmp_path)
    write_letter_mlm(tmp_path / "mlm")
    (tmp_path / "in.fa").write_text(">first chain\nacdefg\n>second\nKL-AC\n")
    (tmp_path / "sets.txt").write_text("# loop\n2-3 ACDE\n")
    words = ["sample", "--mlm", "mlm", "--input", "in.fa", "--normalize-sequence", "--free", "2-4"]
    words += ["--fix", "4", "--allowed-at", "sets.txt", "--chains", "3", "--sweeps", "6"]
    words += ["--burn-in", "1", "--term", f"{own}:score", "--term-weight", "2"]
    words += ["--allow-module", own, "--out", "designs.csv"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert (
        "rows of the model, less than 1 MB of samples)" in captured.err
        and "first chain" in captured.out
    )
    with open("designs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["name", "sequence", "energy", "changes", "chain"]
    assert {row["name"] for row in rows} == {"first chain", "second"}
    for name, wild in (("first chain", "ACDEFG"), ("second", "KLAC")):
        own_rows = [row for row in rows if row["name"] == name]
        energies = [float(row["energy"]) for row in own_rows]
        assert energies == sorted(energies)
        sequences = [row["sequence"] for row in own_rows]
        assert len({*sequences}) == len(sequences)
        for row, sequence in zip(own_rows, sequences, strict=True):
            assert sequence[0] == wild[0] and sequence[3:] == wild[3:]
            assert row["changes"] == changes(wild, sequence)
    assert main(words) == 2, "nothing is overwritten"
    before = (tmp_path / "designs.csv").read_bytes()
    assert main([*words, "--resume"]) == 0 and (tmp_path / "designs.csv").read_bytes() == before
    words[-1] = "designs.fasta.gz"
    assert main([*words, "--overwrite"]) == 0
    records = read_named(tmp_path / "designs.fasta.gz")
    assert [text for _, text in records] == [row["sequence"] for row in rows]
    assert records[0].name.startswith("first chain energy=")


@pytest.mark.slow
def test_names_of_scores_and_fillings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_letter_mlm(tmp_path / "mlm")
    (tmp_path / "in.fa").write_text(">one x\nACDE\n>two\nKLAC\n")
    score = ["score", "--mlm", "mlm", "--quiet", "--input", "in.fa", "--format"]
    assert main([*score, "tsv"]) == 0
    head, *body = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert head[-1] == "name" and [cells[-1] for cells in body] == ["one x", "two"]
    assert main([*score, "text"]) == 0 and capsys.readouterr().out.count("one x") == 1
    infill = ["infill", "--mlm", "mlm", "--quiet", "--input", "in.fa", "--free", "2-3"]
    infill += ["--samples", "8", "--burn-in", "1", "--out", "fillings.csv"]
    assert main(infill) == 0
    assert "energy  one x" in capsys.readouterr().out
    with open("fillings.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["name", "sequence", "energy", "changes", "share"]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(2.0)
    assert all(row["sequence"][0] in "AK" and row["sequence"][3] in "EC" for row in rows)
