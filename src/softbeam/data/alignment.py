"""Which letters of a word spell which phonemes: alignments learned from a pronouncing dictionary.

A dictionary gives a word's phonemes, but not the letters that stand for them. Each letter is
aligned with zero, one or two phonemes, in order; what letters usually stand for is learned by
aligning the words and counting, in turn (hard expectation maximization).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

SILENT = "_"  # the label of a letter without a sound
LARGEST = 2  # phonemes that one letter can stand for, as x for K S
UNSEEN = 12.0  # cost of a label that a letter was never aligned with
SECOND = 3.0  # extra cost of a second phoneme for one letter
ROUNDS = 4  # of aligning and counting
SAMPLE = 2000  # words, about, to learn from

Spelling = tuple[str, tuple[str, ...]]  # a word and its phonemes
Costs = dict[str, dict[str, float]]  # -log p(label | letter)


def label_of(phonemes: Sequence[str]) -> str:
    """Return the label of a letter that spells these phonemes: `_`, `T` or `K+S`."""
    return "+".join(phonemes) or SILENT


def phonemes_of(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the phonemes that labels spell, in order."""
    return tuple(p for label in labels if label != SILENT for p in label.split("+"))


def align(word: str, phonemes: Sequence[str], costs: Costs) -> tuple[str, ...] | None:
    """Label each letter with its phonemes so that the sum of the costs is least (Viterbi).

    Returns None if the word has too few letters for its phonemes.
    """
    paths: dict[int, tuple[float, tuple[str, ...]]] = {0: (0.0, ())}  # by phonemes used
    for number, letter in enumerate(word):
        of_letter = costs.get(letter, {})
        fewest = len(phonemes) - LARGEST * (len(word) - number - 1)  # what later letters leave
        longer: dict[int, tuple[float, tuple[str, ...]]] = {}
        for used, (total, labels) in paths.items():
            for end in range(max(used, fewest), min(used + LARGEST, len(phonemes)) + 1):
                label = label_of(phonemes[used:end])
                cost = total + of_letter.get(label, UNSEEN) + SECOND * max(0, end - used - 1)
                if end not in longer or cost < longer[end][0]:
                    longer[end] = cost, (*labels, label)
        paths = longer
    return paths[len(phonemes)][1] if len(phonemes) in paths else None


def learn_costs(spellings: Sequence[Spelling]) -> Costs:
    """Learn from words in any order what their letters stand for, from a sample of about 2,000.

    The first counts pair each letter with silence and with the phonemes near its place in the word.
    """
    sample = spellings[:: max(1, len(spellings) // SAMPLE)]
    costs = count(pair for word, phonemes in sample for pair in nearby(word, phonemes))
    for _ in range(ROUNDS):
        aligned = ((word, align(word, phonemes, costs)) for word, phonemes in sample)
        costs = count(
            pair for word, labels in aligned if labels for pair in zip(word, labels, strict=True)
        )
    return costs


def nearby(word: str, phonemes: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Pair each letter with silence and with the phonemes that begin at about its place."""
    for number, letter in enumerate(word):
        middle = number * len(phonemes) // len(word)
        yield letter, SILENT
        for start in range(max(0, middle - 1), min(middle + 2, len(phonemes))):
            for end in range(start + 1, min(start + LARGEST, len(phonemes)) + 1):
                yield letter, label_of(phonemes[start:end])


def count(pairs: Iterable[tuple[str, str]]) -> Costs:
    """Turn pairs of a letter and its label into costs."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for letter, label in pairs:
        counts[letter][label] += 1
    return {
        letter: {label: math.log(labels.total() / n) for label, n in labels.items()}
        for letter, labels in counts.items()
    }
