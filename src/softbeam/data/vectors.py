"""Read word vectors in the text formats of word2vec, GloVe and fastText."""

import math
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from softbeam.data.readers import numbered_lines
from softbeam.errors import UserError

HEADER = re.compile(r"\d{1,9} +\d{1,6}")  # the number of words and of dimensions


class Vectors(NamedTuple):
    """The vectors of words."""

    width: int
    rows: dict[str, tuple[float, ...]]
    repeated: int  # lines of words that an earlier line has

    def of(self, word: str) -> tuple[float, ...] | None:
        """Return the vector of a word, or of its lower-case form."""
        return self.rows.get(word) or self.rows.get(word.lower())


def read_vectors(path: str, words: Iterable[str]) -> Vectors:
    """Read the vectors of words, and of their lower-case forms, from a file, plain or .gz.

    A line is a word and its numbers, with a space or a tab between. The first line may hold the
    number of words and of dimensions instead; without it the first word says how many there are.
    The first of several lines of a word counts.

    Raises UserError if a line has too few numbers, if a number is none, if there are fewer words
    than the first line says, or if none of the words has a vector.
    """
    wanted = frozenset(form for word in words for form in (word, word.lower()))
    facts = os.stat(path) if os.path.isfile(path) else None
    return _read(path, wanted, facts and (facts.st_size, facts.st_mtime_ns))


@lru_cache(maxsize=1)  # the vocabulary and the weights are made from the same vectors
def _read(path: str, wanted: frozenset[str], version: tuple[int, int] | None) -> Vectors:
    rows: dict[str, tuple[float, ...]] = {}
    width = promised = count = repeated = 0
    for line in numbered_lines(path):
        # a word that is not UTF-8 is no word of the corpus
        text = line.raw.decode("utf-8", "replace").replace("\t", " ").strip(" ")
        if line.number == 1 and HEADER.fullmatch(text):
            promised, width = map(int, text.split())
            continue
        if not text:
            continue
        count += 1
        spaces = text.count(" ")
        width = width or spaces or 1
        if spaces < width:
            place = f"{path}, line {line.number}"
            raise UserError(f"{place}: expected a word and {width} numbers, found {text[:60]!r}")
        if spaces == width and text.partition(" ")[0] not in wanted:
            continue  # most lines: no number is read
        word, *parts = text.rsplit(" ", width)
        word = word.strip(" ")
        if word in rows:
            repeated += 1
        elif word in wanted:
            rows[word] = _numbers(parts, f"{path}, line {line.number}")
    if count < promised:
        raise UserError(f"{path} has {count:,} words, but its first line says {promised:,}")
    if not rows:
        raise UserError(f"{path} has a vector for no word of train or dev")
    return Vectors(width, rows, repeated)


def _numbers(parts: list[str], place: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, parts))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{place}: expected a word and {len(parts)} finite numbers")
    return numbers
