"""FASTA files, plain or gzipped: sequences with names, and what a sequence may hold."""

import gzip
import re
from collections.abc import Iterator, Sequence
from os import fspath
from typing import NamedTuple

from softbeam.data.readers import FilePath, read_texts
from softbeam.errors import UserError

SUFFIXES = (".fasta", ".fa", ".faa")
MASK = r"\[MASK\]|<mask>"
SYMBOL = re.compile(rf"{MASK}|.", re.S)
WIDTH = 60  # letters of a line that is written


class Named(NamedTuple):
    """A text and its name; the name is None if the file has no names."""

    name: str | None
    text: str


def is_fasta(path: FilePath) -> bool:
    """Tell whether a file is one of FASTA, by its name."""
    return fspath(path).lower().removesuffix(".gz").endswith(SUFFIXES)


def read_named(path: FilePath, *, fasta: bool = False, normalize: bool = False) -> list[Named]:
    """Read the records of a FASTA file, or the lines of any other file; `-` is standard input.

    Standard input is FASTA if its first line begins with `>`.

    Args:
        path: the file.
        fasta: read it as FASTA whatever its name is.
        normalize: write sequences in upper case, without gaps and a stop at the end. Otherwise
            a sequence of FASTA that has them is refused.
    """
    lines = read_texts(path)
    begins = next((line for line in lines if line.strip()), "")
    if not (fasta or is_fasta(path) or (path == "-" and begins.startswith(">"))):
        return [Named(None, normalized(line) if normalize else line) for line in lines]
    origin = "standard input" if path == "-" else fspath(path)
    texts = list(records(lines, origin))
    if not texts:
        raise UserError(f"{origin} has no sequence; one begins with a line of > and its name")
    if normalize:
        texts = [Named(name, normalized(text)) for name, text in texts]
    for record in texts:
        check_sequence(record, origin)
    return texts


def records(lines: Sequence[str], origin: str) -> Iterator[Named]:
    """Yield the records of lines of FASTA. Raises UserError if a name or a sequence is missing."""
    name: str | None = None
    parts: list[str] = []
    for number, line in enumerate([*lines, ">"], 1):
        line = line.strip()
        if not line.startswith(">"):
            if line and name is None:
                what = f"expected > and a name, found {line[:40]!r}"
                raise UserError(f"{origin}, line {number}: {what}")
            parts.append(line)
            continue
        if name is not None:
            if not any(parts):
                raise UserError(f"{origin}: {name!r} has no sequence")
            yield Named(name, "".join(parts))
        name, parts = line[1:].strip(), []
        if not name and number <= len(lines):
            raise UserError(f"{origin}, line {number}: expected a name after >, found none")


def normalized(text: str) -> str:
    """Write a sequence in upper case, without white space, gaps (- and .) and a stop at its end."""
    symbols = SYMBOL.findall(text.strip().removesuffix("*"))
    return "".join(
        symbol if len(symbol) > 1 else symbol.upper()
        for symbol in symbols
        if symbol not in "-." and not symbol.isspace()
    )


def check_sequence(record: Named, origin: str) -> None:
    """Raise UserError if a sequence has anything but capital letters and masks."""
    for place, symbol in enumerate(SYMBOL.findall(record.text), 1):
        if len(symbol) > 1 or "A" <= symbol <= "Z":
            continue
        what = "the lower-case letter" if symbol.islower() else "the character"
        hint = "write sequences in capital letters"
        if symbol.islower() or symbol in "-.*" or symbol.isspace():
            hint = "--normalize-sequence writes upper case and removes gaps and a stop at the end"
        raise UserError(f"{origin}: {record.name!r} has {what} {symbol!r} at {place}; {hint}")


def as_fasta(texts: Sequence[Named]) -> str:
    """Write records as FASTA, 60 letters on a line."""
    lines = []
    for name, text in texts:
        lines.append(f">{' '.join((name or '').split())}")
        lines += [text[i : i + WIDTH] for i in range(0, len(text), WIDTH)]
    return "\n".join([*lines, ""])


def packed(path: FilePath, text: str) -> bytes:
    """Encode the content of a file; one whose name ends in .gz is compressed."""
    data = text.encode("utf-8")
    return gzip.compress(data, mtime=0) if fspath(path).endswith(".gz") else data
