"""Tasks over the CMU Pronouncing Dictionary."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from softbeam.data import catalogue, readers
from softbeam.data.alignment import align, learn_costs
from softbeam.data.readers import BadLines, Example, Pronunciation
from softbeam.data.task import Corpus, KindName, Task, fraction
from softbeam.errors import UserError, check_range


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

    @property
    def corpus_name(self) -> str | None:
        return None if self.path else "cmudict"

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
class Phrases(GraphemeToPhoneme):
    """Letters to phonemes of phrases of three or four words; a low line stands between words.

    The words of a split are arranged by a hash, so that no word is in two splits; of a word's
    pronunciations the first counts.

    Args:
        shortest: least number of phonemes.
        longest: largest number of phonemes.
        rounds: how often the training words are arranged anew.
    """

    shortest: int = 20
    longest: int = 25
    rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("shortest", self.shortest, least=1, most=self.longest)
        check_range("rounds", self.rounds, least=1)

    def tokens(self, line: str) -> tuple[str, ...]:
        return tuple("_".join(line.lower().split()))

    def examples(self, splits: dict[str, list[Pronunciation]]) -> dict[str, list[Example]]:
        rounds = {name: self.rounds if name == "train" else 1 for name in splits}
        phrases = {
            name: [p for turn in range(rounds[name]) for p in self.arranged(split, turn)]
            for name, split in splits.items()
        }
        return {name: list(dict.fromkeys(examples)) for name, examples in phrases.items()}

    def arranged(self, entries: Iterable[Pronunciation], turn: int) -> Iterator[Example]:
        """Yield phrases of words in the order of a hash; words that fit into none are left out."""
        words = first_pronunciations(entries)
        waiting: list[str] = []
        for word in sorted(words, key=lambda word: fraction(f"{turn} {word}")):
            waiting.append(word)
            while len(waiting) > 4 or sum(len(words[w]) for w in waiting) > self.longest:
                del waiting[0]
            phonemes = tuple(phoneme for w in waiting for phoneme in words[w])
            if len(waiting) >= 3 and len(phonemes) >= self.shortest:
                yield Example(tuple("_".join(waiting)), phonemes)
                waiting = []


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
