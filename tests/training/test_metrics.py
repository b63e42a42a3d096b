"""Metrics against hand-counted cases and plain loops that share no code with them."""

import math
import random
from collections import Counter

import numpy
import pytest
from hypothesis import given, settings, strategies as st

from softbeam.training.kinds import KINDS
from softbeam.training.metrics import (
    bleu,
    bleu_by_length,
    bleu_counts,
    bleu_of,
    chrf,
    error_rates,
    f1_of,
    looks_like_iob,
    sequence_accuracy,
    share_of,
    span_counts,
    span_f1,
    token_accuracy,
)
from softbeam.training.significance import (
    sentence_interval,
)

LAWS = settings(max_examples=80, deadline=None)


def words(text: str) -> list[str]:
    return text.split()


# Accuracy


def test_accuracies_by_hand():
    gold = [words("a b c"), words("a"), words("a b c d")]
    predicted = [words("a x c"), words("a"), words("a b x x")]
    assert token_accuracy(predicted, gold) == 100 * 5 / 8
    assert sequence_accuracy(predicted, gold) == pytest.approx(100 / 3)
    assert token_accuracy(gold, gold) == sequence_accuracy(gold, gold) == 100


def test_missing_and_extra_tokens_are_wrong():
    assert token_accuracy([["a", "b"]], [words("a b c d")]) == 50
    assert token_accuracy([words("a b c d")], [["a", "b"]]) == 50
    assert token_accuracy([[]], [["a"]]) == 0
    assert sequence_accuracy([["a", "b"]], [words("a b c")]) == 0


def test_tuples_equal_lists():
    assert sequence_accuracy([("a", "b")], [["a", "b"]]) == 100


@pytest.mark.parametrize(
    "call",
    [
        lambda: token_accuracy([["a"]], [["a"], ["b"]]),
        lambda: sequence_accuracy([["a"]], [["a"], ["b"]]),
        lambda: span_f1([["O"]], [["O"], ["O"]]),
        lambda: bleu(["a"], [["a"], ["b"]]),
        lambda: chrf(["a"], [["a"], ["b"]]),
        lambda: error_rates([["a"]], [[["a"]], [["b"]]]),
        lambda: bleu_by_length(["a"], [["a"]], [1, 2]),
    ],
)
def test_different_numbers_of_entries_are_an_error_that_names_both(call):
    with pytest.raises(ValueError, match=r"has 1 entries but \w+ has 2 entries"):
        call()


def test_nothing_to_score_is_an_error():
    for call in (token_accuracy, sequence_accuracy, span_f1, bleu, chrf, error_rates):
        with pytest.raises(ValueError, match="nothing to score"):
            call([], [])
    with pytest.raises(ValueError, match="no token"):
        token_accuracy([[]], [[]])
    with pytest.raises(ValueError, match="no token"):
        error_rates([[]], [[[]]])


# Spans


def spans(labels: list[str]) -> set[tuple[str, int, int]]:
    """(type, start, end) of each chunk, end exclusive: the oracle, in a plain loop."""
    found = set()
    position = 0
    while position < len(labels):
        if labels[position] == "O":
            position += 1
            continue
        kind, end = labels[position][2:], position + 1
        while end < len(labels) and labels[end] == f"I-{kind}":
            end += 1
        found.add((kind, position, end))
        position = end
    return found


def plain_f1(predicted: list[list[str]], gold: list[list[str]], kind: str | None = None) -> list:
    right = said = true = 0
    for p, g in zip(predicted, gold, strict=True):
        ours = {s for s in spans(p) if kind in (None, s[0])}
        theirs = {s for s in spans(g) if kind in (None, s[0])}
        right, said, true = right + len(ours & theirs), said + len(ours), true + len(theirs)
    precision, recall = right / max(said, 1), right / max(true, 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return [100 * precision, 100 * recall, 100 * f1]


def test_spans_by_hand():
    gold = [words("B-PER I-PER O B-LOC"), words("B-ORG B-ORG O")]
    predicted = [words("B-PER I-PER O B-ORG"), words("B-ORG I-ORG O")]
    found = span_f1(predicted, gold)  # one of three predicted, one of four gold
    assert found["precision"] == pytest.approx(100 / 3)
    assert found["recall"] == pytest.approx(25)
    assert found["f1"] == pytest.approx(200 / 7)
    assert found["f1_by_type"] == {"LOC": 0.0, "ORG": 0.0, "PER": 100.0}


def test_an_inside_label_that_continues_nothing_begins_a_span():
    found = span_f1([words("I-PER I-PER O I-LOC I-PER")], [words("B-PER I-PER O B-LOC B-PER")])
    assert found["f1"] == 100


label = st.sampled_from(["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-LOCderiv", "I-LOCderiv"])
tagged = st.integers(0, 8).flatmap(
    lambda n: st.tuples(*[st.lists(label, min_size=n, max_size=n)] * 2)
)


@pytest.mark.slow
@LAWS
@given(st.lists(tagged, min_size=1, max_size=6))
def test_span_f1_equals_a_plain_loop(pairs):
    predicted, gold = [p for p, _ in pairs], [g for _, g in pairs]
    found = span_f1(predicted, gold)
    assert [found[x] for x in ("precision", "recall", "f1")] == pytest.approx(
        plain_f1(predicted, gold)
    )
    for kind, f1 in found["f1_by_type"].items():
        assert f1 == pytest.approx(plain_f1(predicted, gold, kind)[2])
    seen = {kind for labels in predicted + gold for kind, _, _ in spans(labels)}
    assert set(found["f1_by_type"]) == seen


def test_shorter_longer_and_foreign_predictions_count_as_outside():
    gold = [words("B-PER O"), words("B-PER I-PER"), words("O B-LOC")]
    predicted = [words("B-PER O O B-LOC"), words("B-PER"), words("<unk> B-LOC")]
    found = span_f1(predicted, gold)
    assert found["not_iob"] == 1
    assert (found["precision"], found["recall"]) == (50.0, pytest.approx(200 / 3))


def test_without_spans_the_figures_are_zero_and_gold_must_be_iob():
    found = span_f1([["O"]], [["O"]])
    assert (found["precision"], found["recall"], found["f1"]) == (0, 0, 0)
    with pytest.raises(ValueError, match="gold label 'NP' is none of"):
        span_f1([["O"]], [["NP"]])


@pytest.mark.parametrize(
    ("labels", "answer"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["I-PER"], True),
        (["O"], False),
        ([], False),
        (["O", "B-PER", "NP"], False),
        (["B-"], False),
        (["B", "I", "O"], False),
        (["NP", "S\\NP"], False),
    ],
)
def test_looks_like_iob(labels, answer):
    assert looks_like_iob(labels) is answer
    assert looks_like_iob(set(labels)) is answer


# BLEU and chrF


def plain_bleu(predicted: list[str], references: list[list[str]]) -> dict:
    """Papineni et al. (2002) with the smoothing of mteval-v13a, in plain loops."""
    right, total, system, reference = [0] * 4, [0] * 4, 0, 0
    for text, accepted in zip(predicted, references, strict=True):
        tokens, others = text.split(), [r.split() for r in accepted]
        system += len(tokens)
        reference += min((abs(len(o) - len(tokens)), len(o)) for o in others)[1]
        for n in range(1, 5):
            counts = grams(tokens, n)
            total[n - 1] += sum(counts.values())
            for gram, count in counts.items():
                right[n - 1] += min(count, max(grams(o, n)[gram] for o in others))
    precisions, halvings = [], 0
    for correct, all_of_them in zip(right, total, strict=True):
        halvings += not correct
        precisions.append((correct or 0.5**halvings) / all_of_them)
    penalty = min(1.0, math.exp(1 - reference / system))
    return {
        "score": 100 * penalty * math.prod(precisions) ** 0.25,
        "precisions": [100 * p for p in precisions],
        "brevity_penalty": penalty,
        "length_ratio": system / reference,
    }


def grams(tokens: list[str], n: int) -> Counter:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


text = st.lists(st.sampled_from("abcd"), min_size=4, max_size=9).map(" ".join)
translated = st.tuples(text, st.lists(text, min_size=1, max_size=3))


@pytest.mark.slow
@LAWS
@given(st.lists(translated, min_size=1, max_size=5))
def test_bleu_equals_plain_loops(pairs):
    predicted, references = [p for p, _ in pairs], [r for _, r in pairs]
    found = bleu(predicted, references, tokenize="none")
    if not any(set(p.split()) & set(" ".join(r).split()) for p, r in pairs):
        assert found["score"] == 0  # sacrebleu does not smooth where nothing at all is right
        return
    for name, value in plain_bleu(predicted, references).items():
        assert found[name] == pytest.approx(value), name


def test_bleu_of_identical_text_is_100_and_carries_a_signature():
    texts = ["The cat, it sat on the mat.", "Hello there, my old friend!"]
    found = bleu(texts, [[text, "something else"] for text in texts])
    assert found["score"] == pytest.approx(100)
    assert found["length_ratio"] == found["brevity_penalty"] == 1
    for part in ("nrefs:2", "case:mixed", "tok:13a", "smooth:exp", "version:"):
        assert part in found["signature"]
    assert chrf(texts, [[text] for text in texts])["score"] == pytest.approx(100)
    assert "nrefs:var" in bleu(texts, [texts[:1], texts])["signature"]


def test_options_of_bleu_and_chrf_matter():
    lower, upper = ["the cat , it sat"], [["The cat, it SAT"]]
    plain = bleu(lower, upper, tokenize="none")["score"]
    tokenized = bleu(lower, upper)["score"]
    assert plain < tokenized < bleu(lower, upper, lowercase=True)["score"] == pytest.approx(100)
    assert chrf(lower, upper)["score"] < chrf(lower, upper, lowercase=True)["score"]
    assert "nw:2" in chrf(lower, upper, word_order=2)["signature"]
    with pytest.raises(ValueError, match="tokenize='moses' is none of .*13a"):
        bleu(lower, upper, tokenize="moses")


def test_a_text_without_4_grams_scores_0():
    assert bleu(["yes it is"], [["yes it is"]])["score"] == 0


def test_chrf_by_hand():
    # One character n-gram order at a time, without spaces: 1-grams 2/3, 2-grams 1/2, 3-grams 0.
    found = chrf(["ab x"], [["ab y"]])["score"]
    assert found == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


def test_references_must_be_lists_and_not_empty():
    with pytest.raises(ValueError, match=r"references\[1\]"):
        bleu(["a", "b"], [["a"], []])
    with pytest.raises(ValueError, match=r"references\[0\]"):
        chrf(["a"], ["abc"])


def test_bleu_by_length_puts_each_sentence_into_one_bucket():
    lengths = [0, 1, 10, 11, 15, 16, 40]
    texts = [f"this is sentence number {n}" for n in range(7)]
    references = [[t] for t in texts]
    references[6] = ["nothing of the kind here"]
    buckets = bleu_by_length(texts, references, lengths)
    assert [b["sentences"] for b in buckets] == [3, 2, 1, 0, 1]
    assert [(b["above"], b["at_most"]) for b in buckets] == [
        (0, 10),
        (10, 15),
        (15, 20),
        (20, 30),
        (30, None),
    ]
    assert [b["score"] for b in buckets] == [pytest.approx(100)] * 3 + [None, 0.0]
    assert buckets[1]["length_ratio"] == 1 and buckets[3]["length_ratio"] is None
    whole = bleu_by_length(texts, references, lengths, edges=(), tokenize="none")
    assert whole[0]["score"] == bleu(texts, references, tokenize="none")["score"]
    with pytest.raises(ValueError, match="increase"):
        bleu_by_length(texts, references, lengths, edges=(10, 10))


# Edit distance


def plain_distance(a: list[str], b: list[str]) -> int:
    """Wagner and Fischer's dynamic program."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


phones = st.lists(st.sampled_from(["K", "AE1", "AE2", "T", "TH"]), max_size=6)
spoken = st.tuples(phones, st.lists(phones.filter(bool), min_size=1, max_size=3))


@pytest.mark.slow
@LAWS
@given(st.lists(spoken, min_size=1, max_size=5))
def test_error_rates_equal_a_dynamic_program(pairs):
    predicted, references = [p for p, _ in pairs], [r for _, r in pairs]
    nearest = [min((plain_distance(p, r), -len(r)) for r in rs) for p, rs in pairs]
    assert error_rates(predicted, references) == pytest.approx(
        {
            "token_error_rate": 100 * sum(d for d, _ in nearest) / -sum(n for _, n in nearest),
            "sequence_error_rate": 100 * sum(d > 0 for d, _ in nearest) / len(pairs),
        }
    )


def test_error_rates_by_hand():
    predicted = [words("K AE1 T"), words("D AA1 G Z"), []]
    references = [[words("K AE1 T")], [words("D AO1 G"), words("D AA1 G")], [words("AH0")]]
    found = error_rates(predicted, references)
    assert found["token_error_rate"] == pytest.approx(100 * 2 / 7)
    assert found["sequence_error_rate"] == pytest.approx(200 / 3)


def test_tokens_are_compared_whole():
    assert error_rates([["AE1", "T"]], [[["AE1T"]]])["token_error_rate"] == 200


# Counts of sentences


def translations() -> tuple[list[str], list[str], list[str]]:
    rng = random.Random(0)
    gold = [" ".join(rng.choices("abcdefgh", k=10)) for _ in range(60)]
    good = [line if n % 3 else "x" + line[1:] for n, line in enumerate(gold)]
    poor = [" ".join(rng.sample(line.split(), 10)) for line in gold]
    return gold, good, poor


def test_counts_of_sentences_add_up_to_the_corpus_figures():
    gold, good, poor = translations()
    references = [[line, poor[0]] for line in gold]
    for system in (good, poor):
        rows = numpy.asarray(bleu_counts(system, references, "none"))
        assert bleu_of(rows) == pytest.approx(bleu(system, references, tokenize="none")["score"])
        half = bleu(system[::2], references[::2], tokenize="none")["score"]
        assert bleu_of(rows[::2]) == pytest.approx(half)
    labels = [words("B-a I-a O B-b"), words("O O"), words("I-b O B-a"), words("B-a B-a")]
    guesses = [words("B-a I-a O B-a"), words("B-b O"), words("I-b O B-a"), words("O B-a")]
    rows = numpy.asarray(span_counts(guesses, labels))
    assert f1_of(rows) == pytest.approx(span_f1(guesses, labels)["f1"])
    assert rows.tolist() == [[1, 2, 2], [0, 1, 0], [2, 2, 2], [1, 1, 2]]
    by_type = span_f1(guesses, labels)
    both = by_type["f1_by_type"]
    assert by_type["macro_f1"] == pytest.approx((both["a"] + both["b"]) / 2)
    assert share_of("O", guesses) == pytest.approx(100 * 4 / 11)
    assert f1_of(rows[1:2]) == 0 and f1_of(rows[:0]) == 0


def test_the_interval_of_one_system_is_that_of_the_normal_approximation():
    rng = numpy.random.default_rng(3)
    scores = rng.normal(70.0, 20.0, size=400)
    half = 1.96 * scores.std() / 20
    low, high = sentence_interval(scores, samples=4000)
    assert low == pytest.approx(scores.mean() - half, abs=0.3)
    assert high == pytest.approx(scores.mean() + half, abs=0.3)


def test_the_interval_of_a_kind_is_around_its_main_metric():
    gold = [[tuple("ABAB")]] * 30 + [[tuple("AAB")]] * 30
    right = [list("ABAB")] * 30 + [list("AAA")] * 30  # 180 of 210 tokens, 30 of 60 outputs
    low, high = KINDS["tagging"].interval(gold, right)
    assert low < 100 * 180 / 210 < high and high - low < 15
    low, high = KINDS["transcription"].interval(gold, right)  # of errors
    assert low < 50.0 < high
    outputs = [list("ABAB")] * 50 + [list("AAA")] * 10
    low, high = KINDS["transcription"].interval([[tuple("ABAB")]] * 60, outputs)
    assert low < 100 / 6 < high < 40, "of errors, not of what is right"
    assert KINDS["tagging"].interval(gold[:30], right[:30]) == (100.0, 100.0)
