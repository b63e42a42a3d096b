"""Designs: the distinct texts among samples, ranked by energy, with what was changed."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.errors import UserError
from softbeam.sampling.texts.files import read_header, read_samples
from softbeam.sampling.texts.infill import Filling

SYMBOL = re.compile(r"\[MASK\]|<mask>|.", re.S)


class Design(NamedTuple):
    """A text that was sampled."""

    name: str  # of the text that was given
    sequence: str
    energy: float
    changes: str  # as S31T:Y32F; _ is a gap
    chain: int  # that reached it first


def designs(path: Path) -> list[Design]:
    """Rank the distinct texts of each prompt in a file of samples after the burn-in."""
    header = read_header(path)
    texts, names = header["texts"], header.get("names")
    first: dict[tuple[int, str], tuple[float, int]] = {}
    for row in read_samples(path):
        if row["phase"] == "sample":
            first.setdefault((row["index"], row["text"]), (row["energy"], row["chain"]))
    most = max((index for index, _ in first), default=-1)
    if most >= len(texts) or (isinstance(names, list) and most >= len(names)):
        raise UserError(f"{path}: its rows have more texts than its first line")
    ranked = sorted(
        (index, energy, text, chain) for (index, text), (energy, chain) in first.items()
    )
    return [
        Design(
            str(names[index] if isinstance(names, list) else index),
            text,
            energy,
            changes(str(texts[index]), text),
            chain,
        )
        for index, energy, text, chain in ranked
    ]


def changes(before: str, after: str, *, first: int = 1) -> str:
    """List the letters that differ, as S31T:Y32F; `_31T` if there was a gap.

    The result is empty if the texts have different lengths. `first` is the number of the first
    letter.
    """
    old, new = SYMBOL.findall(before), SYMBOL.findall(after)
    if len(old) != len(new):
        return ""
    pairs = enumerate(zip(old, new, strict=True), first)
    return ":".join(f"{a if len(a) == 1 else '_'}{i}{b}" for i, (a, b) in pairs if a != b)


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as comma-separated values; numbers have nine digits, None is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(f"{cell:.9g}" if isinstance(cell, float) else cell for cell in row)
    return out.getvalue()


class FilledDesign(NamedTuple):
    """A text whose gaps were filled."""

    name: str
    sequence: str
    energy: float
    changes: str
    share: float  # of the samples


def filled(name: str, text: str, filling: Filling) -> FilledDesign:
    """Describe a filling of a text as a design."""
    made = filling.text
    return FilledDesign(name, made, filling.energy, changes(text, made), filling.share)
