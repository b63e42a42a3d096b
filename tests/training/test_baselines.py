"""Baselines without a model, against counts in plain loops, and the warning about them."""

import random

import pytest

from softbeam.data.readers import Example
from softbeam.training.baselines import (
    COPY,
    MAJORITY,
    PER_WORD,
    SAME,
    answers,
    as_text,
    baselines,
    stage_warning,
    warning,
)
from softbeam.training.kinds import KINDS

TAGGING = KINDS["tagging"]


def example(words: str, labels: str) -> Example:
    return Example(tuple(words.split()), tuple(labels.split()))


def plain_per_word(train, source):
    """The most frequent label of each word by counting all labels again for every word."""
    every = [label for e in train for label in e.target]
    outputs = []
    for word in source:
        own = [y for e in train for x, y in zip(e.source, e.target, strict=True) if x == word]
        best = None
        for label in own or every:
            if best is None or (own or every).count(label) > (own or every).count(best):
                best = label
        outputs.append(best)
    return tuple(outputs)


def test_labels_of_words_are_those_of_plain_counts():
    rng = random.Random(3)
    train = []
    for _ in range(40):
        n = rng.randint(1, 6)
        words = [rng.choice("abcdef") for _ in range(n)]
        train.append(Example(tuple(words), tuple(rng.choice("XYZ") for _ in range(n))))
    sources = [tuple(rng.choice("abcdefgh") for _ in range(5)) for _ in range(20)]
    outputs = answers(TAGGING, train, sources)
    assert outputs[PER_WORD] == [plain_per_word(train, source) for source in sources]
    majority = plain_per_word(train, ["not seen"])
    assert outputs[MAJORITY] == [majority * 5 for _ in sources]


def test_accuracy_of_labels():
    train = [example("the man runs", "D N V"), example("the run", "D N"), example("man man", "V N")]
    dev = TAGGING.problems([example("the man new", "D V N"), example("run runs", "N V")])
    figures = baselines(TAGGING, train, dev)
    assert figures == {MAJORITY: pytest.approx(100 * 2 / 5), PER_WORD: pytest.approx(100 * 4 / 5)}
    assert as_text("dev", figures) == (
        "without a model: dev most frequent label 40.00, most frequent label of each word 80.00"
    )


def test_entities_are_scored_by_f1():
    train = [example("Anna in Berlin", "B-PER O B-LOC"), example("in in Otto", "O O B-PER")]
    dev = TAGGING.problems([example("Otto in Berlin in Wien", "B-PER O B-LOC O B-LOC")])
    figures = baselines(TAGGING, train, dev)
    assert figures[MAJORITY] == 0.0  # no entity at all
    precision, recall = 2 / 2, 2 / 3
    expected = 100 * 2 * precision * recall / (precision + recall)
    assert figures[PER_WORD] == pytest.approx(expected)


def test_translations_are_copied_and_transcriptions_are_not():
    train = [example("ein Hund", "a dog"), example("eins", "one"), example("1", "one")]
    sources = [("Bonn", "und", "1")]
    outputs = answers(KINDS["translation"], train, sources)
    assert outputs == {SAME: [("one",)], COPY: sources}
    assert answers(KINDS["transcription"], train, sources) == {SAME: [("one",)]}
    problems = KINDS["transcription"].problems([example("a", "one"), example("b", "two")])
    assert baselines(KINDS["transcription"], train, problems) == {SAME: 50.0}


@pytest.mark.parametrize(
    ("kind", "metrics", "figure", "warned"),
    [
        ("tagging", {"accuracy": 59.9}, 60.0, True),
        ("tagging", {"accuracy": 60.0}, 60.0, True),
        ("tagging", {"accuracy": 60.1}, 60.0, False),
        ("tagging", {"accuracy": 99.0, "f1": 10.0}, 20.0, True),
        ("tagging", {"accuracy": 100.0}, 100.0, False),
        ("transcription", {"sequence_error_rate": 40.0}, 60.0, False),
        ("transcription", {"sequence_error_rate": 60.0}, 60.0, True),
    ],
)
def test_a_model_that_is_no_better_is_warned_of(kind, metrics, figure, warned):
    text = warning(KINDS[kind], metrics, {"worse": 60.0, PER_WORD: figure})
    assert (text is not None) is warned
    if text:
        assert text.startswith("WARNING: THIS MODEL IS NO BETTER THAN") and "--minutes" in text


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("tagging", 61.0, 60.5, "dev 60.50 against 61.00"),
        ("tagging", 60.5, 60.5, None),
        ("tagging", 60.5, 61.0, None),
        ("transcription", -20.0, -21.5, "dev 21.50 against 20.00"),  # an error rate
        ("transcription", -21.5, -20.0, None),
        ("tagging", None, 61.0, None),  # a single stage
    ],
)
def test_a_second_stage_below_the_first_is_told(kind, first, second, expected):
    stages = {"pretrain": {"score": first}, "finetune": {"score": second}}
    text = stage_warning(KINDS[kind], {k: v for k, v in stages.items() if v["score"] is not None})
    assert (text is None) if expected is None else (text is not None and expected in text)
