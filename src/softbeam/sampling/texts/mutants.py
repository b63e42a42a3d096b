"""Variants of sequences: how they are written, and their scores in a table."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.errors import UserError
from softbeam.sampling.texts.designs import changes
from softbeam.sampling.texts.score import TOKENS
from softbeam.sampling.texts.settings import check_choice
from softbeam.sampling.variants import (
    masked_marginals,
    mutant_marginals,
    pseudo_log_likelihoods,
    wild_type_marginals,
)
from softbeam.types import TextModel

PLL = "pseudo-log-likelihood"
MARGINALS: dict[str, Callable[..., Tensor]] = {
    "masked-marginal": masked_marginals,
    "wild-type-marginal": wild_type_marginals,
    "mutant-marginal": mutant_marginals,
}
SCORES = (*MARGINALS, PLL)
TOGETHER = 64  # variants in a batch
CHANGE = re.compile(r"([A-Z])(-?\d{1,9})([A-Z])")
COLUMNS = ("mutant", "mutated_sequence")  # of ProteinGym


class Variant(NamedTuple):
    """A variant of a sequence."""

    mutant: str  # as S31T:Y32F; empty if letters are inserted or deleted
    sequence: str
    more: Mapping[str, str]  # other columns of the file that it is from


class Scored(NamedTuple):
    """A variant and its scores; a marginal is None if letters are inserted or deleted."""

    variant: Variant
    scores: dict[str, float | None]


# Variants


def single_substitutions(
    sequence: str, letters: Iterable[str], positions: Iterable[int], *, first: int = 1
) -> list[Variant]:
    """List all substitutions of one letter at these positions, position by position.

    Positions are counted from `first`.
    """
    return [
        Variant(
            f"{sequence[p - first]}{p}{letter}",
            sequence[: p - first] + letter + sequence[p - first + 1 :],
            {},
        )
        for p in positions
        for letter in letters
        if letter != sequence[p - first]
    ]


def listed_variants(
    lines: Sequence[str], sequence: str, origin: str, *, first: int = 1
) -> list[Variant]:
    """Read variants: a table with the columns of ProteinGym, or one variant on a line.

    A table has the column mutant (S31T:Y32F) or mutated_sequence; its other columns are kept.
    Without a header line, each line is a mutant or a whole sequence.

    Raises UserError if a variant is malformed, or is none of this sequence.
    """
    filled = [line for line in lines if line.strip()]
    if len(filled) < 1 + bool({*COLUMNS} & {*re.split("[,\t]", filled[0] if filled else "")}):
        raise UserError(f"{origin} has no variant")
    separator = "\t" if filled and "\t" in filled[0] else ","
    header = next(csv.reader(filled[:1], delimiter=separator), [])
    if not {*COLUMNS} & {*header}:
        return [variant(line.strip(), "", sequence, origin, {}, first) for line in filled]
    rows = csv.DictReader(filled, delimiter=separator, restval="", restkey="")
    return [
        variant(
            row.get("mutant") or "",
            row.get("mutated_sequence") or "",
            sequence,
            origin,
            {k: v for k, v in row.items() if k and k not in COLUMNS},
            first,
        )
        for row in rows
    ]


def variant(
    mutant: str, mutated: str, sequence: str, origin: str, more: Mapping[str, str], first: int
) -> Variant:
    """Make a variant of what a line says: a mutant, a whole sequence, or both."""
    if not (mutant or mutated):
        raise UserError(f"{origin}: a line has neither a mutant nor a mutated_sequence")
    if mutant and re.fullmatch("[A-Z]+", mutant) and not mutated:
        mutant, mutated = "", mutant
    made = mutated or substituted(sequence, mutant, origin, first=first)
    if mutant and mutated and made != substituted(sequence, mutant, origin, first=first):
        raise UserError(f"{origin}: {mutant} does not give its mutated_sequence {mutated[:40]!r}")
    return Variant(mutant or changes(sequence, made, first=first), made, more)


def substituted(sequence: str, mutant: str, origin: str, *, first: int) -> str:
    """Apply substitutions, as S31T:Y32F. Raises UserError if the sequence has other letters."""
    letters, seen = list(sequence), set[int]()
    for part in mutant.split(":") if mutant else ():
        match = CHANGE.fullmatch(part.strip())
        if match is None:
            raise UserError(f"{origin}: {mutant[:60]!r} must be substitutions, as S31T:Y32F")
        old, place, new = match[1], int(match[2]) - first, match[3]
        last = first + len(sequence) - 1
        if not 0 <= place < len(sequence):
            raise UserError(f"{origin}: {part} is outside of the sequence, {first} to {last}")
        if sequence[place] != old:
            raise UserError(
                f"{origin}: {part}: the sequence has {sequence[place]} there (its letters are "
                f"{first} to {last}; --first is the number of the first one)"
            )
        if place in seen:
            raise UserError(f"{origin}: {mutant[:60]!r} changes one position twice")
        seen.add(place)
        letters[place] = new
    return "".join(letters)


# Scores


class Plan(NamedTuple):
    """What is to be scored: the tokens of a sequence and of its variants."""

    wild: Int[Tensor, " time"]
    variants: Sequence[Variant]
    tokens: Int[Tensor, "same time"]  # of the variants of the same length
    same: Sequence[int]  # their numbers
    scores: Sequence[str]

    def rows(self) -> int:
        """Count the rows that the model gets, before those that are equal are left out."""
        changed = self.tokens != self.wild
        count = {
            "masked-marginal": len(changed.unique(dim=0)),
            "wild-type-marginal": 1,
            "mutant-marginal": len(changed),
            PLL: sum(len(v.sequence) for v in self.variants),
        }
        return sum(count[name] for name in self.scores)


def plan(mlm: TextModel, sequence: str, variants: Sequence[Variant], scores: Sequence[str]) -> Plan:
    """Check what is to be scored, and convert it to tokens.

    Raises UserError if a score does not exist or does not suit a variant, or if tokens of the model
    are not letters.
    """
    for name in scores:
        check_choice("--score", name, SCORES)
        if name.startswith(("wild", "mutant")) and not hasattr(mlm, "read"):
            raise UserError(f"--score {name}: this model scores only what is masked")
    wild = mlm.encode([sequence])
    if int((~wild.frozen).sum()) != len(sequence) or bool(wild.hidden.any()):
        raise UserError(
            f"mutants are of sequences whose tokens are letters, without gaps: {sequence[:40]!r}"
        )
    same = [i for i, v in enumerate(variants) if len(v.sequence) == len(sequence)]
    if len(same) < len(variants) and PLL not in scores:
        other = next(v for v in variants if len(v.sequence) != len(sequence))
        raise UserError(
            f"{other.sequence[:40]!r} has {len(other.sequence)} letters and the sequence "
            f"{len(sequence)}: insertions and deletions need --score {PLL}"
        )
    tokens = wild.tokens[:0]
    if same:
        tokens = mlm.encode([variants[i].sequence for i in same]).tokens
    return Plan(wild.tokens[0], variants, tokens, same, scores)


def scored(
    mlm: TextModel, given: Plan, *, rows: int, on_done: Callable[[int], object] = bool
) -> list[Scored]:
    """Score all variants; `on_done` is called with the number of variants that got a score.

    Args:
        mlm: the model.
        given: what to score.
        rows: the largest number of rows that the model gets at once.
        on_done: for a progress line.
    """
    limit = max(1, min(rows, TOKENS // len(given.wild)))
    table: dict[str, list[float | None]] = {}
    for name in given.scores:
        values: list[float | None] = [None] * len(given.variants)
        if name == PLL:
            values[:] = pll_differences(mlm, given, rows, on_done).tolist()
        else:
            own = MARGINALS[name](mlm, given.wild, given.tokens, rows=limit)
            for i, value in zip(given.same, own.tolist(), strict=True):
                values[i] = value
            on_done(len(given.variants))
        table[name] = values
    return [
        Scored(v, {name: values[i] for name, values in table.items()})
        for i, v in enumerate(given.variants)
    ]


def pll_differences(
    mlm: TextModel, given: Plan, rows: int, on_done: Callable[[int], object]
) -> Float[Tensor, " variant"]:
    """Compute each variant's pseudo-log-likelihood minus that of the sequence, in batches."""

    def of(tokens: Tensor) -> Tensor:
        limit = max(1, min(rows, TOKENS // tokens.shape[1]))
        return pseudo_log_likelihoods(mlm, tokens, rows=limit)

    parts = [of(given.wild[None])]
    for start in range(0, len(given.variants), TOGETHER):
        texts = [v.sequence for v in given.variants[start : start + TOGETHER]]
        parts.append(of(mlm.encode(texts).tokens))
        on_done(len(texts))
    return torch.cat(parts[1:]) - parts[0] if len(parts) > 1 else parts[0][:0]


def table_rows(name: str, rows: Iterable[Scored]) -> Iterator[list[str | float | None]]:
    """Yield the rows of a table: mutant, sequence, scores, other columns, and the name."""
    for v, scores in rows:
        yield [v.mutant, v.sequence, *scores.values(), *v.more.values(), name]


def spearman(rows: Sequence[Scored], column: str = "DMS_score") -> dict[str, float]:
    """Correlate each score with a column of measurements, by ranks, where both are numbers."""
    from scipy.stats import spearmanr

    figures = {}
    for name in rows[0].scores if rows else ():
        pairs = [
            (value, float(row.variant.more[column]))
            for row in rows
            if (value := row.scores[name]) is not None and is_number(row.variant.more.get(column))
        ]
        if len(pairs) > 2:
            figures[name] = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return figures


def is_number(text: str | None) -> bool:
    """Tell whether a cell of a table is a finite number."""
    try:
        return text is not None and abs(float(text)) < float("inf")
    except ValueError:
        return False
