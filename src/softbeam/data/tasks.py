"""Where examples come from: one frozen dataclass for each kind of file or built-in corpus."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from softbeam.data import catalogue, readers
from softbeam.data.parallel import Translation
from softbeam.data.pronouncing import GraphemeToPhoneme, LetterSounds, Phrases, Stress
from softbeam.data.readers import BadLines, Example
from softbeam.data.task import (
    Corpus,
    KindName,
    Pair,
    Task,
    checked_pairs,
    held_out,
    need,
    with_held_out,
)
from softbeam.errors import UserError, check_range
from softbeam.runtime.files import read_rows

EXAMPLES = "examples.jsonl"  # in a run's folder: examples that were given in memory


@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Column files (CoNLL): a token and its label on a line, a blank line between sentences.

    Args:
        train: training file, plain or .gz.
        dev: development file; without one a share of the training sentences is held out.
        test: test file, if there is one.
        word: column of the token, counted from 0; negative numbers count from the end. In .conllu
            files the default is column 1.
        tag: column of the label; in .conllu files the default is column 3, the part of speech.
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
        splits = {name: self.read_labelled(path, bad) for name, path in files.items()}
        if self.dev is None:
            with_held_out(splits, self.dev_share, "--data.dev")
        return Corpus(splits, files)

    def read_labelled(self, path: str, bad: BadLines | None = None) -> list[Example]:
        if is_auto(path):
            command = f"softbeam train ccg --data.train {path} --data.dev FILE"
            raise UserError(f"{path} has CCG derivations, not columns: give it to {command}")
        if path.removesuffix(".gz").endswith(".conllu"):
            tag = 3 if self.tag == -1 else self.tag  # the last column has no labels
            return readers.read_conllu(path, word=self.word or 1, tag=tag, bad=bad)
        return readers.read_columns(
            path,
            word=self.word,
            tag=self.tag,
            separator=self.separator,
            comment=self.comment,
            bad=bad,
        )


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
        return Corpus({s: self.read_labelled(f, bad) for s, f in files.items()}, files)

    @property
    def corpus_name(self) -> str:
        return self.corpus


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
        return Corpus({s: self.read_labelled(f, bad) for s, f in files.items()}, files)

    @property
    def corpus_name(self) -> str | None:
        return "ccg-ewt" if self.train is None else None

    def read_labelled(self, path: str, bad: BadLines | None = None) -> list[Example]:
        reader = readers.read_ccg_auto if is_auto(path) else readers.read_supertags
        return reader(path, composite=self.composite, bad=bad)


def is_auto(path: str) -> bool:
    """Tell by its name whether a file has derivations of CCGbank."""
    return path.removesuffix(".gz").endswith(".auto")


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
        cls, folder: Path, kind: KindName, splits: Mapping[str, Iterable[Pair] | None]
    ) -> tuple["InMemory", str]:
        """Make the task of examples, and the text of the file that is to hold them.

        Raises UserError if an example is not a pair, has no source, or for tagging not one label a
        token.
        """
        lines = []
        for split, pairs in splits.items():
            for source, target in checked_pairs(split, kind, pairs or ()):
                row = {"split": split, "source": source, "target": target}
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


TASKS: tuple[type[Task], ...] = (
    Tagging,
    NamedEntities,
    Supertags,
    InMemory,
    Translation,
    GraphemeToPhoneme,
    Phrases,
    Stress,
    LetterSounds,
)
