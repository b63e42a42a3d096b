"""The command `mutants`: variants as they are written, its table, its picture, and the report."""

import csv
import json
import re

import pytest

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.reports.heat_maps import BAND, bands_of, map_of
from softbeam.sampling.texts.mutants import Scored, Variant, listed_variants, spearman
from support.tiny_bert import write_letter_mlm

WILD = "ACDEFGHI"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants")
    write_letter_mlm(folder / "mlm")
    (folder / "two.fasta").write_text(f">one\n{WILD}\n>two\nKLA\n")
    return folder


def run(*words):
    return main(["mutants", "--mlm", "mlm", "--quiet", *words])


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_variants_are_read_in_three_forms():
    plain = listed_variants(["A1C:I8L", "", "AKDEFGHI", "ACDEFGH"], WILD, "f")
    assert [v.mutant for v in plain] == ["A1C:I8L", "C2K", ""]
    assert [v.sequence for v in plain] == ["CCDEFGHL", "AKDEFGHI", "ACDEFGH"]
    lines = ["mutant,mutated_sequence,DMS_score", "A1C,CCDEFGHI,0.5", ",ACDEFGHI,1"]
    assert listed_variants(lines, WILD, "f") == [
        Variant("A1C", "CCDEFGHI", {"DMS_score": "0.5"}),
        Variant("", "ACDEFGHI", {"DMS_score": "1"}),
    ]
    tabs = listed_variants(["DMS_score\tmutant", "1\tA24C"], WILD, "f", first=24)
    assert tabs == [Variant("A24C", "CCDEFGHI", {"DMS_score": "1"})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A1", "'A1' must be substitutions"),
        ("A1C;I8L", "must be substitutions"),
        ("C1A", "C1A: the sequence has A there"),
        ("A9C", "A9C is outside of the sequence, 1 to 8"),
        ("A1C:A1D", "changes one position twice"),
    ],
)
def test_variants_of_another_sequence_are_refused(line, message):
    with pytest.raises(UserError, match=re.escape(message)):
        listed_variants([line], WILD, "f")
    with pytest.raises(UserError, match="does not give its mutated_sequence"):
        listed_variants(["mutant,mutated_sequence", "A1C,ACDEFGHI"], WILD, "f")
    with pytest.raises(UserError, match="f has no variant"):
        listed_variants(["mutant"], WILD, "f")


@pytest.mark.slow
def test_all_single_substitutions_in_proteingyms_columns(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert run("--fasta", "two.fasta") == 0
    printed = capsys.readouterr().out
    rows = table("mutants.csv")
    assert list(rows[0])[:2] == ["mutant", "mutated_sequence"] and list(rows[0])[-1] == "name"
    assert len(rows) == (8 + 3) * 9 and {row["name"] for row in rows} == {"one", "two"}
    best = max(rows, key=lambda row: float(row["masked_marginal"]))
    assert printed.splitlines()[1].split()[0] == best["mutant"]
    record = json.loads((folder / "mutants.json").read_text())
    assert record["variants"] == 99 and record["map"] == "mutants.png"
    assert (folder / "mutants.png").read_bytes()[:4] == b"\x89PNG"
    assert run("--fasta", "two.fasta") == 2, "nothing is overwritten"
    assert main(["report", "mutants.csv", "--out", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 1 and f"of {len(rows)} variants" in page


@pytest.mark.slow
def test_a_list_with_measurements(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "dms.csv").write_text(
        "mutant,mutated_sequence,DMS_score\nA11C,,1\nD13E,,2\nC12K:H17L,,3\n,ACDFGHI,4\n"
    )
    words = ["--text", "acde-FGHI", "--normalize-sequence", "--variants", "dms.csv", "--first"]
    words += ["11", "--out", "own.csv.gz", "--json"]
    assert run(*words) == 2
    assert "need --score pseudo-log-likelihood" in capsys.readouterr().err
    assert run(*words, "--score", "pseudo-log-likelihood,mutant-marginal") == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["variants"] == 4 and set(record["spearman"]) == {*record["scores"]}
    assert {path.name for path in folder.glob("own.*")} == {"own.csv.gz", "own.png", "own.json"}


def test_rank_correlation_leaves_out_what_is_no_number():
    rows = [
        Scored(Variant("", "A", {"DMS_score": text}), {"s": value})
        for text, value in (("1", 1.0), ("2", 5.0), ("3", 9.0), ("x", 0.0), ("4", None))
    ]
    assert spearman(rows) == {"s": pytest.approx(1.0)}
    assert spearman([]) == {}


def test_a_map_has_every_position_once():
    values = [(f"A{i}C", float(-i)) for i in range(1, 2 * BAND)] + [("A1C:C2D", 1.0), ("A5C", None)]
    drawn = map_of("x", values)
    bands = bands_of(drawn)
    assert [p for band in bands for p in band] == list(range(1, 2 * BAND))
    assert max(map(len, bands)) <= BAND and len(bands) == 2 and len(drawn.values) == 2 * BAND - 1
