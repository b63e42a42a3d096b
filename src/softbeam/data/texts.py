"""Texts to train masked language models on: lines of a file, or the sequences of a FASTA file."""

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Literal

from softbeam.data.readers import read_texts
from softbeam.errors import UserError

Units = Literal["characters", "words"]  # tokens of a text
Form = Literal["plain", "diffusion", "hollow"]  # of a masked language model of texts


def read_sequences(path: str | PathLike[str]) -> list[str]:
    """Read the texts of a file, plain or .gz; blank lines are left out.

    A file whose first line begins with > is FASTA: a record's lines are joined, in upper case.
    Raises UserError if there is no text.
    """
    lines = [line.strip() for line in read_texts(path)]
    lines = [line for line in lines if line]
    texts = list(records(lines)) if lines and lines[0].startswith(">") else lines
    if not texts:
        raise UserError(f"{path} has no text")
    return texts


def records(lines: Sequence[str]) -> Iterator[str]:
    """Join the lines of each record of FASTA; records without a sequence are left out."""
    parts: list[str] = []
    for line in [*lines, ">"]:
        if not line.startswith(">"):
            parts.append(line.upper())
        elif parts:
            yield "".join(parts)
            parts = []
