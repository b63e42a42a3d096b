"""Where examples come from: one frozen dataclass for each kind of file or built-in corpus."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from softbeam.data import catalogue, readers
from softbeam.data.alignment import align, learn_costs
from softbeam.data.readers import BadLines, Example, Pronunciation
from softbeam.errors import UserError, check_range
from softbeam.runtime.files import read_rows

KindName = Literal["tagging", "transcription", "translation"]
Side = str | Sequence[str]  # a text, or its tokens
Pair = tuple[Side, Side]
EXAMPLES = "examples.jsonl"  # in a run's folder: examples that were given in memory


@dataclass
class Corpus:
    """The splits of a task, the files read for them, and the bad lines that were skipped.

    All code of a process that loads the same task shares one corpus, and never changes it.
    """

    splits: dict[str, list[Example]]
    files: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
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

    def identity(self) -> list[tuple[str, int, int]]:
        """Return path, size and time of change of every file, as they are now."""
        return [identity_of(str(path)) for path in self.paths.values()]

    @property
    def paths(self) -> dict[str, Path]:
        """The files by what they are for: data.train, or data.train.source and .target."""
        return {
            f"data.{split}{end}": Path(path)
            for split, files in self.files.items()
            for end, path in (
                [("", files)]
                if isinstance(files, str)
                else zip((".source", ".target"), files, strict=True)
            )
        }


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

    def tokens(self, line: str) -> tuple[str, ...]:
        """Split a user's input line into source tokens."""
        return tuple(line.split())

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


def fraction(text: str) -> float:
    """Map a text to a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


def need(value: str | None, option: str) -> str:
    if value is None:
        raise UserError(f"this task needs a file: give {option} PATH")
    return value


@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Column files (CoNLL): a token and its label on a line, a blank line between sentences.

    Args:
        train: training file, plain or .gz.
        dev: development file; without one a share of the training sentences is held out.
        test: test file, if there is one.
        word: column of the token, counted from 0; negative numbers count from the end.
        tag: column of the label.
        separator: what separates columns; any white space if not given.
        comment: lines that start with this are left out.
        dev_share: share of the training sentences held out when there is no dev file.
    """

    kind: ClassVar[KindName] = "tagging"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    word: int = 0
    tag: int = -1
    separator: str | None = None
    comment: str | None = None
    dev_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("dev_share", self.dev_share, above=0, below=1)
        if self.word == self.tag:
            raise UserError(f"word {self.word} and tag {self.tag} are the same column")
        if self.separator == "":
            raise UserError("separator '': must be at least one character")

    def read(self, bad: BadLines | None) -> Corpus:
        files = {"train": need(self.train, "--data.train")}
        files |= {k: v for k, v in (("dev", self.dev), ("test", self.test)) if v is not None}
        splits = {
            name: readers.read_columns(
                path,
                word=self.word,
                tag=self.tag,
                separator=self.separator,
                comment=self.comment,
                bad=bad,
            )
            for name, path in files.items()
        }
        if self.dev is None:
            splits |= held_out(splits["train"], self.dev_share)
        return Corpus(splits, files)


@dataclass(frozen=True, kw_only=True)
class NamedEntities(Task):
    """A German NER corpus of the catalogue.

    Args:
        corpus: its name.
        path: a directory that holds it, instead of the catalogue's look-up.
    """

    kind: ClassVar[KindName] = "tagging"
    corpus: Literal["wikineural-de", "germeval2014", "conll2003-de"] = "wikineural-de"
    path: str | None = None

    def read(self, bad: BadLines | None) -> Corpus:
        folder = Path(self.path) if self.path else None
        inside = {
            "wikineural-de": "{}.conll.gz",
            "germeval2014": "cpu_split/{}.conll.gz",
            "conll2003-de": "deu.{}",
        }[self.corpus]
        names = ("train", "testa", "testb") if self.corpus == "conll2003-de" else SPLITS
        files = {
            split: str(catalogue.locate(self.corpus, inside.format(name), path=folder))
            for split, name in zip(SPLITS, names, strict=True)
        }
        return Corpus({s: readers.read_columns(f, bad=bad) for s, f in files.items()}, files)


SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, kw_only=True)
class Supertags(Task):
    """CCG supertagging: the open treebank of the catalogue, or CCGbank's own files by path.

    Args:
        train: a `.auto` or `word<TAB>pos<TAB>category` file; the catalogue's ccg-ewt if not given.
        dev: development file; needed with train.
        test: test file, if there is one.
        composite: use the label category|pos.
    """

    kind: ClassVar[KindName] = "tagging"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    composite: bool = False

    def read(self, bad: BadLines | None) -> Corpus:
        if self.train is None:
            files = {s: str(catalogue.locate("ccg-ewt", f"{s}.supertags.gz")) for s in SPLITS}
        else:
            files = {"train": self.train, "dev": need(self.dev, "--data.dev")}
            files |= {"test": self.test} if self.test else {}
        return Corpus({s: self.read_file(f, bad) for s, f in files.items()}, files)

    def read_file(self, path: str, bad: BadLines | None) -> list[Example]:
        is_auto = path.removesuffix(".gz").endswith(".auto")
        reader = readers.read_ccg_auto if is_auto else readers.read_supertags
        return reader(path, composite=self.composite, bad=bad)


@dataclass(frozen=True, kw_only=True)
class InMemory(Task):
    """Examples that were given in memory; the folder of their run keeps them in a file.

    Args:
        kind: what outputs are: tagging, transcription or translation.
        digest: SHA-256 of the file, so that other examples are another task.
        folder: where the file is; a run that is loaded from elsewhere takes its own folder.
        dev_share: share of the examples held out when there are none for dev.
    """

    kind: KindName = "tagging"  # type: ignore[misc]  # of each instance, not of the class
    digest: str = ""
    folder: str = field(default="", compare=False)
    dev_share: float = 0.1

    @classmethod
    def of(
        cls, folder: Path, kind: KindName, train: Iterable[Pair], dev: Iterable[Pair] | None = None
    ) -> tuple["InMemory", str]:
        """Make the task of examples, and the text of the file that is to hold them.

        Raises UserError if an example has no source, or a tagging example not one label a token.
        """
        lines = []
        for split, pairs in (("train", train), ("dev", dev or ())):
            for number, (source, target) in enumerate(pairs, 1):
                sides = [s.split() if isinstance(s, str) else list(s) for s in (source, target)]
                check_pair(f"{split} example {number}", kind, *sides)
                row = {"split": split, "source": sides[0], "target": sides[1]}
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        text = "".join(lines)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(kind=kind, digest=digest, folder=str(folder)), text

    def read(self, bad: BadLines | None) -> Corpus:
        path = Path(self.folder) / EXAMPLES
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != self.digest:
            raise UserError(f"{path} has changed: it holds other examples than the run's")
        splits: dict[str, list[Example]] = {"train": []}
        for row in read_rows(path, "an example", {"split": str, "source": list, "target": list}):
            example = Example(tuple(row["source"]), tuple(row["target"]))
            splits.setdefault(row["split"], []).append(example)
        if "dev" not in splits:
            parts = held_out(splits["train"], self.dev_share)
            splits["dev"] = parts["dev"] if all(parts.values()) else splits["train"]
            splits["train"] = parts["train"] if all(parts.values()) else splits["train"]
        return Corpus(splits, {"examples": str(path)})


def check_pair(what: str, kind: KindName, source: list[str], target: list[str]) -> None:
    """Raises UserError if an example cannot be of a kind of task."""
    if not source:
        raise UserError(f"{what}: the source is empty")
    if kind == "tagging" and len(source) != len(target):
        sizes = f"{len(source)} tokens but {len(target)} labels"
        raise UserError(f"{what}: {sizes}; tagging needs one label for each token")


@dataclass(frozen=True, kw_only=True)
class Translation(Task):
    """Parallel text: two files, one TSV, or a corpus of the catalogue.

    Args:
        corpus: name in the catalogue, used when no file is given.
        source: training sentences, one on a line; or a TSV of both sides if target is not given.
        target: their translations, line by line.
        dev_source: development sentences; without them a share of the training pairs is held out.
        dev_target: their translations.
        test_source: test sentences, if there are any.
        test_target: their translations.
        subwords: size of each side's byte-pair vocabulary; 0 for whole words.
        min_count: words seen less often become <unk> (whole words only).
        lowercase: lower-case both sides, references included.
        dev_share: share of the training pairs held out when there are no dev files.
    """

    kind: ClassVar[KindName] = "translation"
    corpus: Literal["multi30k", "tatoeba-de-en"] = "multi30k"
    source: str | None = None
    target: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    subwords: int = 6000
    min_count: int = 2
    lowercase: bool = False
    dev_share: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("subwords", self.subwords, least=0, most=10**6)
        check_range("min_count", self.min_count, least=1)
        check_range("dev_share", self.dev_share, above=0, below=1)
        if self.source is None and self.target is not None:
            raise UserError(f"target {self.target}: give its source too, --data.source PATH")

    def tokens(self, line: str) -> tuple[str, ...]:
        return tuple((line.lower() if self.lowercase else line).split())

    def read(self, bad: BadLines | None) -> Corpus:
        corpus = self.own(bad) if self.source else self.catalogued(bad)
        if self.lowercase:
            for name, examples in corpus.splits.items():
                corpus.splits[name] = [Example(lower(e.source), lower(e.target)) for e in examples]
        return corpus

    def own(self, bad: BadLines | None) -> Corpus:
        assert self.source is not None
        if self.target is None:
            splits = {"train": readers.read_tsv(self.source, bad=bad)}
            return Corpus(
                splits | held_out(splits["train"], self.dev_share), {"train": self.source}
            )
        pairs = {
            "train": (self.source, self.target),
            "dev": (self.dev_source, self.dev_target),
            "test": (self.test_source, self.test_target),
        }
        files = {k: (a, b) for k, (a, b) in pairs.items() if a is not None}
        splits = {
            k: readers.read_parallel(a, need(b, f"--data.{k}_target"), bad=bad)
            for k, (a, b) in files.items()
        }
        if "dev" not in splits:
            splits |= held_out(splits["train"], self.dev_share)
        return Corpus(splits, {k: (a, need(b, "")) for k, (a, b) in files.items()})

    def catalogued(self, bad: BadLines | None) -> Corpus:
        if self.corpus == "tatoeba-de-en":
            names = {"train": "train", "dev": "valid", "test": "test"}
            files = {k: str(catalogue.locate(self.corpus, f"{v}.tsv.gz")) for k, v in names.items()}
            return Corpus({k: readers.read_tsv(f, bad=bad) for k, f in files.items()}, files)
        names = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
        sides = {
            k: (
                str(catalogue.locate("multi30k", f"raw/{v}.de.gz")),
                str(catalogue.locate("multi30k", f"raw/{v}.en.gz")),
            )
            for k, v in names.items()
        }
        splits = {k: readers.read_parallel(*pair, bad=bad) for k, pair in sides.items()}
        return Corpus(splits, dict(sides))


def lower(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(token.lower() for token in tokens)


@dataclass(frozen=True, kw_only=True)
class Pronouncing(Task):
    """A task over the CMU Pronouncing Dictionary; words are split by a hash of their spelling.

    Args:
        path: a dictionary file, instead of the catalogue's.
        words: number of words to train on.
        held_out_words: number of words in each of dev and test.
    """

    path: str | None = None
    words: int = 20000
    held_out_words: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("words", self.words, least=1)
        check_range("held_out_words", self.held_out_words, least=1)

    @abstractmethod
    def examples(self, splits: dict[str, list[Pronunciation]]) -> dict[str, list[Example]]:
        """Make the examples of each split from its dictionary entries."""

    def read(self, bad: BadLines | None) -> Corpus:
        file = catalogue.locate("cmudict", "cmudict", path=Path(self.path) if self.path else None)
        entries = readers.read_cmudict(file, bad=bad)
        splits = split_by_word(entries, train=self.words, other=self.held_out_words)
        return Corpus(self.examples(splits), {"dictionary": str(file)})


def distinct(
    splits: dict[str, list[Pronunciation]], make: Callable[[Pronunciation], Example]
) -> dict[str, list[Example]]:
    """Make an example of each entry, and keep one of those that are equal."""
    return {name: list(dict.fromkeys(map(make, split))) for name, split in splits.items()}


def split_by_word(
    entries: Sequence[Pronunciation], *, train: int, other: int
) -> dict[str, list[Pronunciation]]:
    """Give dev and test the words with the smallest hashes, and train the next ones.

    Words with anything but letters and apostrophes are left out; all pronunciations of a word
    stay together.
    """
    entries = [e for e in entries if e.word.replace("'", "").isalpha()]
    order = sorted({e.word for e in entries}, key=lambda w: (fraction(w), w))
    if len(order) <= 2 * other:
        raise UserError(f"{len(order)} words are too few for {other} held out twice")
    chosen = {
        "dev": set(order[:other]),
        "test": set(order[other : 2 * other]),
        "train": set(order[2 * other : 2 * other + train]),
    }
    return {name: [e for e in entries if e.word in words] for name, words in chosen.items()}


@dataclass(frozen=True, kw_only=True)
class GraphemeToPhoneme(Pronouncing):
    """Letters to phonemes (stress digits removed): outputs of another length than inputs."""

    kind: ClassVar[KindName] = "transcription"

    def tokens(self, line: str) -> tuple[str, ...]:
        return tuple(line.strip().lower())

    def examples(self, splits: dict[str, list[Pronunciation]]) -> dict[str, list[Example]]:
        return distinct(splits, lambda e: Example(tuple(e.word), without_stress(e.phones)))


@dataclass(frozen=True, kw_only=True)
class Stress(Pronouncing):
    """Phonemes to stress: 0, 1, 2 for vowels and - for consonants, one label for each phoneme."""

    kind: ClassVar[KindName] = "tagging"

    def examples(self, splits: dict[str, list[Pronunciation]]) -> dict[str, list[Example]]:
        return distinct(splits, self.stressed)

    @staticmethod
    def stressed(entry: Pronunciation) -> Example:
        labels = tuple(p[-1] if p[-1].isdigit() else "-" for p in entry.phones)
        return Example(without_stress(entry.phones), labels)


@dataclass(frozen=True, kw_only=True)
class LetterSounds(Pronouncing):
    """Letters to the sounds they spell: each letter's label is no, one or two phonemes.

    The labels come from alignments learned from the training words. Of a word's pronunciations
    the first counts; words with more than two phonemes to a letter (abbreviations) are left out.
    """

    kind: ClassVar[KindName] = "tagging"

    def tokens(self, line: str) -> tuple[str, ...]:
        return tuple(line.strip().lower())

    def examples(self, splits: dict[str, list[Pronunciation]]) -> dict[str, list[Example]]:
        spellings = {name: first_pronunciations(split) for name, split in splits.items()}
        costs = learn_costs(list(spellings["train"].items()))
        return {
            name: [
                Example(tuple(word), labels)
                for word, phonemes in words.items()
                if (labels := align(word, phonemes, costs)) is not None
            ]
            for name, words in spellings.items()
        }


def first_pronunciations(entries: Iterable[Pronunciation]) -> dict[str, tuple[str, ...]]:
    """Map each word to the first of its pronunciations, without stress."""
    words: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        words.setdefault(entry.word, without_stress(entry.phones))
    return words


def without_stress(phones: Iterable[str]) -> tuple[str, ...]:
    return tuple(p.rstrip("012") for p in phones)


def phoneme_sequences(
    path: str | None = None, *, max_phones: int = 6, distinct: bool = False
) -> list[tuple[str, ...]]:
    """Return the dictionary's pronunciations without stress, for unconditional models (6.2.3).

    Every entry counts, alternatives and homophones included, as in the thesis: exactly 77,653 with
    at most 6 phonemes from the 0.7b file. `distinct` keeps one of each.
    """
    file = catalogue.locate("cmudict", "cmudict", path=Path(path) if path else None)
    pronunciations = (without_stress(e.phones) for e in readers.read_cmudict(file))
    kept = [phones for phones in pronunciations if len(phones) <= max_phones]
    return list(dict.fromkeys(kept)) if distinct else kept


TASKS: tuple[type[Task], ...] = (
    Tagging,
    NamedEntities,
    Supertags,
    InMemory,
    Translation,
    GraphemeToPhoneme,
    Stress,
    LetterSounds,
)
