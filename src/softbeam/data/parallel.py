"""Parallel text: pairs of sentences in two files, in one TSV, or of the catalogue."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from softbeam.data import catalogue, readers
from softbeam.data.readers import BadLines, Example
from softbeam.data.task import Corpus, KindName, Task, with_held_out
from softbeam.errors import UserError, check_range


@dataclass(frozen=True, kw_only=True)
class Translation(Task):
    """Parallel text: two files, one TSV, or a corpus of the catalogue.

    Args:
        corpus: name in the catalogue, used when no file is given; multi30k-both has the test
            sentences of 2016 and of 2017, multi30k those of 2016 alone.
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
    corpus: Literal["multi30k", "multi30k-both", "tatoeba-de-en"] = "multi30k"
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

    @property
    def corpus_name(self) -> str | None:
        return None if self.source else self.corpus.removesuffix("-both")

    def tokens(self, line: str) -> tuple[str, ...]:
        return tuple((line.lower() if self.lowercase else line).split())

    def read(self, bad: BadLines | None) -> Corpus:
        return self.own(bad) if self.source else self.catalogued(bad)

    def own(self, bad: BadLines | None) -> Corpus:
        sides = {
            "train": (self.source, self.target),
            "dev": (self.dev_source, self.dev_target),
            "test": (self.test_source, self.test_target),
        }
        files = {k: (a,) if b is None else (a, b) for k, (a, b) in sides.items() if a is not None}
        splits = {split: self.read_split(split, paths, bad) for split, paths in files.items()}
        if "dev" not in splits:
            with_held_out(splits, self.dev_share, "--data.dev_source")
        return Corpus(splits, {k: v[0] if len(v) == 1 else (v[0], v[1]) for k, v in files.items()})

    def read_split(self, split: str, files: Sequence[str], bad: BadLines | None) -> list[Example]:
        try:
            return self.read_new(files, bad)
        except UserError as error:
            if len(files) > 1:
                raise
            option = f"--data.{'' if split == 'train' else f'{split}_'}target PATH"
            hint = f"without {option} it is read as a TSV of both sides"
            raise UserError(f"{error}; {hint}") from None

    def read_new(self, files: Sequence[str], bad: BadLines | None = None) -> list[Example]:
        """Read the pairs of a TSV, or of two files line by line."""
        if len(files) > 1:
            pairs = readers.read_parallel(files[0], files[1], bad=bad)
        else:
            pairs = readers.read_tsv(files[0], bad=bad)
        if not self.lowercase:
            return pairs
        return [Example(lower(e.source), lower(e.target)) for e in pairs]

    def catalogued(self, bad: BadLines | None) -> Corpus:
        if self.corpus == "tatoeba-de-en":
            names = {"train": "train", "dev": "valid", "test": "test"}
            files = {k: str(catalogue.locate(self.corpus, f"{v}.tsv.gz")) for k, v in names.items()}
            return Corpus({k: self.read_new([f], bad) for k, f in files.items()}, files)
        years = ("2016", "2017") if self.corpus == "multi30k-both" else ("2016",)
        parts = {"train": ["train"], "dev": ["val"], "test": [f"test_{y}_flickr" for y in years]}
        sides = {
            split: tuple(
                str(catalogue.locate("multi30k", f"raw/{part}.{language}.gz"))
                for part in names
                for language in ("de", "en")
            )
            for split, names in parts.items()
        }
        splits = {
            split: [
                pair
                for both in zip(files[::2], files[1::2], strict=True)
                for pair in self.read_new(both, bad)
            ]
            for split, files in sides.items()
        }
        return Corpus(splits, dict(sides))


def lower(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(token.lower() for token in tokens)
