"""What a task is: examples from files, in splits, and the kind of its outputs."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from softbeam.data import readers
from softbeam.data.pairs import sides_of
from softbeam.data.readers import BadLines, Example
from softbeam.errors import UserError, check_range

KindName = Literal["tagging", "transcription", "translation"]
Side = str | Sequence[str]  # a text, or its tokens
Pair = tuple[Side, Side]


@dataclass
class Corpus:
    """The splits of a task, the files read for them, and the bad lines that were skipped.

    All code of a process that loads the same task shares one corpus, and never changes it.
    """

    splits: dict[str, list[Example]]
    files: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    bad: BadLines = field(default_factory=BadLines)

    def split(self, name: str) -> list[Example]:
        """Return the examples of a split; raises UserError if there are none."""
        if not self.splits.get(name):
            names = ", ".join(k for k, v in self.splits.items() if v)
            raise UserError(f"there is no split {name!r}; this task has {names}")
        return self.splits[name]

    @property
    def described(self) -> dict[str, str]:
        """Name the files of each split; those of parallel text are joined by a plus."""
        return {k: v if isinstance(v, str) else " + ".join(v) for k, v in self.files.items()}

    def origin(self, split: str) -> str:
        """Name the files of a split, or what it was held out of."""
        files = self.described
        return files.get(split) or f"held out of {files.get('train') or ', '.join(files.values())}"

    def identity(self) -> list[tuple[str, int, int]]:
        """Return path, size and time of change of every file, as they are now."""
        return [identity_of(str(path)) for path in self.paths.values()]

    @property
    def paths(self) -> dict[str, Path]:
        """The files by what they are for: data.train, or data.train.source and .target.

        Those of a second pair of files end in 2.
        """
        return {
            f"data.{split}{end}": Path(path)
            for split, files in self.files.items()
            for end, path in (
                [("", files)] if isinstance(files, str) else zip(SIDES, files, strict=False)
            )
        }


SIDES = (".source", ".target", ".source2", ".target2")


def identity_of(path: str) -> tuple[str, int, int]:
    try:
        facts = os.stat(path)
    except OSError:
        return path, -1, -1  # reading says what is wrong
    return path, facts.st_size, facts.st_mtime_ns


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Examples and what an output is: labels of equal length, a transcription, a translation.

    Args:
        max_length: leave out training examples with more source or target tokens than this.
        limit: number of training examples to use, from the first.
        skip_bad: count and report malformed lines instead of stopping at the first.
    """

    kind: ClassVar[KindName]
    max_length: int | None = None
    limit: int | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        check_range("max_length", self.max_length, least=1)
        check_range("limit", self.limit, least=1)

    @abstractmethod
    def read(self, bad: BadLines | None) -> Corpus:
        """Read all splits as they are in the files."""

    @property
    def corpus_name(self) -> str | None:
        """The name of the corpus of the catalogue that is read; None for files of the user's."""
        return None

    def tokens(self, line: str) -> tuple[str, ...]:
        """Split a user's input line into source tokens."""
        return tuple(line.split())

    def read_labelled(self, path: str, bad: BadLines | None = None) -> list[Example]:
        """Read new examples from a file: columns for tagging, else a TSV of source and target."""
        if self.kind == "tagging":
            return readers.read_columns(path, bad=bad)
        pairs = readers.read_tsv(path, bad=bad)
        return [Example(self.tokens(" ".join(e.source)), e.target) for e in pairs]

    def read_new(self, files: Sequence[str], bad: BadLines | None = None) -> list[Example]:
        """Read new examples from one file, or from two with a side each.

        Raises UserError if the task has no such files.
        """
        if len(files) > 1:
            raise UserError(f"{files[0]}: a file of sources alone is for translation")
        return self.read_labelled(files[0], bad)

    def load(self) -> Corpus:
        """Return the splits, the training split limited as asked and never empty.

        The files are read once a process, and again if they have changed.
        """
        name = repr(self)  # equal for equal settings, also if they cannot be hashed
        corpus, identity = LOADED.pop(name, (None, []))
        if corpus is None or corpus.identity() != identity:
            corpus = self.load_anew()
        LOADED[name] = corpus, corpus.identity()
        while len(LOADED) > KEPT:
            del LOADED[next(iter(LOADED))]
        return corpus

    def load_anew(self) -> Corpus:
        """Read the files."""
        bad = BadLines()
        corpus = self.read(bad if self.skip_bad else None)
        train = corpus.splits["train"]
        if self.max_length is not None:
            train = [e for e in train if max(len(e.source), len(e.target)) <= self.max_length]
        train = train[: self.limit]
        if not train:
            raise UserError(
                f"no training example is left with max_length={self.max_length}, limit={self.limit}"
            )
        corpus.splits["train"] = train
        corpus.bad = bad
        return corpus


KEPT = 4  # corpora in memory, the last ones loaded
LOADED: dict[str, tuple[Corpus, list[tuple[str, int, int]]]] = {}


def held_out(examples: Sequence[Example], share: float) -> dict[str, list[Example]]:
    """Split into train and dev by a hash of the source: the same sentence is never in both."""
    dev = [e for e in examples if fraction(" ".join(e.source)) < share]
    train = [e for e in examples if fraction(" ".join(e.source)) >= share]
    return {"train": train, "dev": dev}


def with_held_out(splits: dict[str, list[Example]], share: float, option: str) -> None:
    """Hold out the split dev from the training split.

    Raises UserError, which names the option that gives a file instead, if one would be empty.
    """
    examples = splits["train"]
    splits |= held_out(examples, share)
    if empty := [name for name in ("train", "dev") if not splits[name]]:
        different = len({example.source for example in examples})
        counts = f"{len(examples)} sentences, {different} of them different"
        raise UserError(
            f"no sentence is left for the split {empty[0]}: {share:g} of {counts}, would be held "
            f"out as dev (equal sentences together); give {option} FILE or another --data.dev_share"
        )


def fraction(text: str) -> float:
    """Map a text to a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


def need(value: str | None, option: str) -> str:
    if value is None:
        raise UserError(f"this task needs a file: give {option} PATH")
    return value


def checked_pairs(split: str, kind: KindName, pairs: Iterable[Pair]) -> list[Example]:
    """Split the sides of pairs into tokens.

    Raises UserError if an example is not a pair, has no source, or for tagging not one label a
    token.
    """
    examples = []
    for number, pair in enumerate(pairs, 1):
        sides = sides_of(what := f"{split} example {number}", pair)
        check_pair(what, kind, *sides)
        examples.append(Example(*map(tuple, sides)))
    return examples


def check_pair(what: str, kind: KindName, source: list[str], target: list[str]) -> None:
    """Raises UserError if an example cannot be of a kind of task."""
    if not source:
        raise UserError(f"{what}: the source is empty")
    if kind == "tagging" and len(source) != len(target):
        sizes = f"{len(source)} tokens but {len(target)} labels"
        raise UserError(f"{what}: {sizes}; tagging needs one label for each token")
