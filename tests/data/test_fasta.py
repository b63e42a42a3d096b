"""FASTA: names and sequences as they stand, and what is refused by name."""

import gzip
import io
import sys
from types import SimpleNamespace

import pytest

from softbeam.data.fasta import Named, as_fasta, is_fasta, normalized, packed, read_named
from softbeam.errors import UserError

TEXT = ">one heavy chain\nEVQL\nVESG\n\n>two\nE[MASK]Q<mask>\n"
RECORDS = [Named("one heavy chain", "EVQLVESG"), Named("two", "E[MASK]Q<mask>")]


@pytest.mark.parametrize("name", ["a.fasta", "a.fa", "a.FAA", "a.fa.gz"])
def test_names_and_sequences_are_read(tmp_path, name):
    (tmp_path / name).write_bytes(packed(name, TEXT.replace("\n", "\r\n")))
    assert is_fasta(name) and read_named(str(tmp_path / name)) == RECORDS


def test_standard_input_is_fasta_if_it_begins_so(monkeypatch):
    def given(data):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return read_named("-")

    assert given(b"\n" + TEXT.encode()) == RECORDS
    assert given(b"EVQ\n>x\n") == [Named(None, "EVQ"), Named(None, ">x")]


def test_other_files_have_a_text_on_each_line(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    assert [text for _, text in read_named(tmp_path / "a.txt")] == TEXT.split("\n")[:-1]
    assert read_named(tmp_path / "a.txt", fasta=True) == RECORDS


def test_what_is_written_is_read_again(tmp_path):
    records = [Named("a\tb", "AC" * 70), Named("c", "D")]
    path = tmp_path / "x.fasta.gz"
    path.write_bytes(packed(path, as_fasta(records)))
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [len(line) for line in lines] == [4, 60, 60, 20, 2, 1]
    assert read_named(path) == [Named("a b", "AC" * 70), Named("c", "D")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">a\nACd\n", "'a' has the lower-case letter 'd' at 3; --normalize-sequence"),
        (">a\nA[MASK]-C\n", "'a' has the character '-' at 3; --normalize-sequence"),
        (">a\nAC*\n", "'a' has the character '*' at 3; --normalize-sequence"),
        (">a\nA C\n", "'a' has the character ' ' at 2; --normalize-sequence"),
        (">a\nA1\n", "'a' has the character '1' at 2; write sequences in capital letters"),
        (">a\n>b\nA\n", "'a' has no sequence"),
        (">a\nA\n>b\n\n", "'b' has no sequence"),
        (">\nA\n", "line 1: expected a name after >"),
        ("A\n>a\nC\n", "line 1: expected > and a name, found 'A'"),
        ("\n\n", "has no sequence"),
    ],
)
def test_what_is_refused_says_where_and_why(tmp_path, text, message):
    (tmp_path / "a.fasta").write_text(text)
    with pytest.raises(UserError) as error:
        read_named(tmp_path / "a.fasta")
    assert message in str(error.value) and "a.fasta" in str(error.value)


def test_normalized_sequences(tmp_path):
    (tmp_path / "a.fasta").write_text(">a\nac.[MASK]\n D-e*\n")
    assert read_named(tmp_path / "a.fasta", normalize=True) == [Named("a", "AC[MASK]DE")]
    assert normalized("A*c-*") == "A*C", "a stop inside is no stop at the end"
