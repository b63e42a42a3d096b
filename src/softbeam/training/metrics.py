"""Accuracy, span F1, BLEU, chrF, edit distance. All in percent.

Lists of predicted and gold sequences must be equally long and not empty. The counting is left to
nervaluate, sacrebleu and rapidfuzz, which are imported only where they are used.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Sequences = Sequence[Sequence[str]]
OUTSIDE = "O"
EDGES = (10, 15, 20, 30)  # of source lengths


def token_accuracy(predicted: Sequences, gold: Sequences) -> float:
    """The share of tokens that are right.

    A token that the prediction lacks, or has beyond the end of the gold sequence, is one wrong
    token, so that the figure stays between 0 and 100 and equal lengths give the usual accuracy.
    """
    _check_lengths(predicted=predicted, gold=gold)
    pairs = list(zip(predicted, gold, strict=True))
    right = sum(sum(a == b for a, b in zip(p, g, strict=False)) for p, g in pairs)
    total = sum(max(len(p), len(g)) for p, g in pairs)
    if not total:
        raise ValueError("there is no token in predicted or gold")
    return 100 * right / total


def sequence_accuracy(predicted: Sequences, gold: Sequences) -> float:
    """The share of sequences that are right in every token and in length."""
    _check_lengths(predicted=predicted, gold=gold)
    right = sum(list(p) == list(g) for p, g in zip(predicted, gold, strict=True))
    return 100 * right / len(gold)


def looks_like_iob(labels: Iterable[str]) -> bool:
    """Whether every label is `O`, `B-type` or `I-type`, and one of them is not `O`."""
    kinds = set(labels)
    return all(map(_is_iob, kinds)) and not kinds <= {OUTSIDE}


def span_f1(predicted: Sequences, gold: Sequences) -> dict[str, Any]:
    """Strict micro precision, recall and f1 of labelled spans, `f1_by_type` and its `macro_f1`.

    A span is right if its type and both ends are. As in conlleval, an `I-` that continues nothing
    of its type begins a span. Where one of two sequences is shorter, it counts as `O` from there
    on; a predicted label outside the scheme counts as `O`, and `not_iob` says how many did.
    Without any predicted (gold) span, precision (recall) is 0.
    """
    from nervaluate.evaluator import Evaluator

    _check_lengths(predicted=predicted, gold=gold)
    if wrong := sorted({label for labels in gold for label in labels if not _is_iob(label)}):
        raise ValueError(f"gold label {wrong[0]!r} is none of O, B-type, I-type")
    lengths = [max(len(p), len(g)) for p, g in zip(predicted, gold, strict=True)]
    result = Evaluator(
        _iob_lists(gold, lengths),
        _iob_lists(predicted, lengths),
        tags=sorted(_span_types(gold) | _span_types(predicted)),
        loader="list",
    ).evaluate()
    strict = result["overall"]["strict"]
    types = sorted(_span_types(gold)) or sorted(result["entities"])
    by_type = sorted(result["entities"].items())
    return {
        "precision": 100.0 * strict.precision,
        "recall": 100.0 * strict.recall,
        "f1": 100.0 * strict.f1,
        "macro_f1": 100.0
        * sum(result["entities"][t]["strict"].f1 for t in types)
        / max(len(types), 1),
        "f1_by_type": {name: 100.0 * scores["strict"].f1 for name, scores in by_type},
        "not_iob": sum(not _is_iob(label) for labels in predicted for label in labels),
    }


def bleu(
    predicted: Sequence[str],
    references: Sequences,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """Corpus BLEU of sacrebleu, with its signature; `references` has a list per sentence.

    `length_ratio` is system over (closest) reference length. Text whose tokens are divided by
    spaces already wants tokenize="none". As BLEU is defined, a text without a single 4-gram
    scores 0 even if it is perfect.
    """
    _check_references(predicted, references)
    metric = _bleu_metric(tokenize, lowercase)
    score = metric.corpus_score(list(predicted), _transpose(references))
    return {
        "score": float(score.score),
        "signature": str(metric.get_signature()),
        "precisions": [float(precision) for precision in score.precisions],
        "length_ratio": float(score.ratio),
        "brevity_penalty": float(score.bp),
    }


def chrf(
    predicted: Sequence[str],
    references: Sequences,
    *,
    word_order: int = 0,
    lowercase: bool = False,
) -> dict[str, Any]:
    """Corpus chrF of sacrebleu (chrF++ with word_order=2), with its signature."""
    from sacrebleu.metrics.chrf import CHRF

    _check_references(predicted, references)
    metric = CHRF(word_order=word_order, lowercase=lowercase)
    score = metric.corpus_score(list(predicted), _transpose(references))
    return {"score": float(score.score), "signature": str(metric.get_signature())}


def sentence_chrf(predicted: str, reference: str) -> float:
    """chrF of one sentence, by sacrebleu."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().sentence_score(predicted, [reference]).score)


def bleu_by_length(
    predicted: Sequence[str],
    references: Sequences,
    source_lengths: Sequence[int],
    *,
    edges: Sequence[int] = EDGES,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[dict[str, Any]]:
    """BLEU of the sentences whose source has at most 10 tokens, 11 to 15, ..., more than 30.

    Each bucket has `above` (exclusive), `at_most` (None in the last), `sentences`, and the `score`
    and `length_ratio` of `bleu`, None where it has no sentence.
    """
    _check_lengths(predicted=predicted, source_lengths=source_lengths)
    if any(low >= high for low, high in pairwise([0, *edges])):
        raise ValueError(f"edges={tuple(edges)} must be positive and increase")
    buckets = []
    for bucket, (above, at_most) in enumerate(pairwise([0, *edges, None])):
        inside = in_bucket(bucket, source_lengths, edges)
        figures = {"score": None, "length_ratio": None}
        if inside:
            figures = bleu(
                [predicted[i] for i in inside],
                [references[i] for i in inside],
                tokenize=tokenize,
                lowercase=lowercase,
            )
        size = {"above": above, "at_most": at_most, "sentences": len(inside)}
        buckets.append(size | {name: figures[name] for name in ("score", "length_ratio")})
    return buckets


def in_bucket(bucket: int, lengths: Sequence[int], edges: Sequence[int] = EDGES) -> list[int]:
    """The places of the lengths between two edges: above the first, at most the second."""
    return [i for i, n in enumerate(lengths) if bisect_left(edges, n) == bucket]


def error_rates(predicted: Sequences, references: Sequence[Sequences]) -> dict[str, float]:
    """Edit distance to the nearest reference per token of it, and the share of wrong sequences.

    `references` has a list per sentence; of equally near ones the longest counts. Insertions can
    take the token error rate beyond 100.
    """
    counts = error_counts(predicted, references)
    if not sum(length for _, length in counts):
        raise ValueError("there is no token in references")
    wrong = sum(distance > 0 for distance, _ in counts)
    return {
        "token_error_rate": token_errors_of(np.array(counts)),
        "sequence_error_rate": 100 * wrong / len(counts),
    }


def error_counts(predicted: Sequences, references: Sequence[Sequences]) -> list[tuple[int, int]]:
    """Edit distance to the nearest reference and that one's length, for each sentence."""
    from rapidfuzz.distance import Levenshtein

    _check_references(predicted, references)
    counts = []
    for tokens, accepted in zip(predicted, references, strict=True):
        distance, length = min((Levenshtein.distance(tokens, r), -len(r)) for r in accepted)
        counts.append((distance, -length))
    return counts


def token_errors_of(rows: Any) -> float:
    """The token error rate of sentences given by `error_counts`."""
    distance, length = rows.sum(0)
    return float(100 * distance / length)


def mean(scores: Any) -> float:
    """The mean of an array: the statistic of systems whose scores are one number per sentence."""
    return float(scores.mean())


def bleu_counts(
    predicted: Sequence[str], references: Sequences, tokenize: str = "13a", lowercase: bool = False
) -> list[list[float]]:
    """What BLEU adds up, for each sentence: right and all n-grams, both lengths."""
    from sacrebleu.metrics.bleu import BLEU

    _check_references(predicted, references)
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True, effective_order=True)
    scores = [metric.sentence_score(p, list(r)) for p, r in zip(predicted, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]


def bleu_of(rows: Any) -> float:
    """Corpus BLEU of sentences given by `bleu_counts`."""
    from sacrebleu.metrics.bleu import BLEU

    total = [int(value) for value in rows.sum(0)]
    score = BLEU.compute_bleu(
        total[:4], total[4:8], sys_len=total[8], ref_len=total[9], smooth_method="exp"
    )
    return float(score.score)


def precision_of(rows: Any, n: int) -> float:
    """The precision of n-grams of sentences given by `bleu_counts`."""
    right, every = rows[:, n - 1].sum(), rows[:, n + 3].sum()
    return float(100 * right / max(every, 1))


def length_ratio_of(rows: Any) -> float:
    """System over reference length of sentences given by `bleu_counts`."""
    ours, theirs = rows[:, 8:].sum(0)
    return float(ours / theirs)


def span_counts(predicted: Sequences, gold: Sequences) -> list[list[float]]:
    """Right, predicted and gold spans of each sentence, as `span_f1` counts them."""
    from nervaluate.evaluator import Evaluator

    _check_lengths(predicted=predicted, gold=gold)
    counts = []
    for pair in zip(predicted, gold, strict=True):
        p, g = (_iob_lists([one], [max(map(len, pair))]) for one in pair)
        types = sorted(_span_types(p) | _span_types(g))
        strict = Evaluator(g, p, tags=types, loader="list").evaluate()["overall"]["strict"]
        counts.append([strict.correct, strict.actual, strict.possible])
    return counts


def share_of(label: str, sequences: Sequences) -> float:
    """Percent of tokens that have a label."""
    tokens = [token for sequence in sequences for token in sequence]
    return 100.0 * tokens.count(label) / max(len(tokens), 1)


def accuracy_of(rows: Any) -> float:
    """Percent of right tokens, from the right and all tokens of each sentence."""
    right, every = rows.sum(0)
    return float(100 * right / every)


def bleu_tokens(text: str) -> list[str]:
    """Split a text as BLEU does by default (13a)."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()(text).split()


def f1_of(rows: Any) -> float:
    """Micro F1 of sentences given by `span_counts`."""
    right, predicted, gold = rows.sum(0)
    return float(200 * right / max(predicted + gold, 1))


def _check_lengths(**lists: Collection[object]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(" but ".join(f"{name} has {n} entries" for name, n in lengths.items()))
    if not all(lengths.values()):
        raise ValueError(f"{' and '.join(lengths)} are empty: there is nothing to score")


def _check_references(predicted: Sequence[Any], references: Sequence[Sequence[Any]]) -> None:
    _check_lengths(predicted=predicted, references=references)
    for number, accepted in enumerate(references):
        if isinstance(accepted, str) or not accepted:
            raise ValueError(f"references[{number}] must be a list of one or more references")


def _is_iob(label: str) -> bool:
    return label == OUTSIDE or (label[:2] in ("B-", "I-") and len(label) > 2)


def _span_types(sequences: Sequences) -> set[str]:
    labels = {label for labels in sequences for label in labels}
    return {label[2:] for label in labels if _is_iob(label)} - {""}


def _iob_lists(sequences: Sequences, lengths: Sequence[int]) -> list[list[str]]:
    """Lists of labels of the given lengths, with `O` for what is missing or outside the scheme."""
    allowed = {label for labels in sequences for label in labels if _is_iob(label)}
    return [
        [label if label in allowed else OUTSIDE for label in labels]
        + [OUTSIDE] * (length - len(labels))
        for labels, length in zip(sequences, lengths, strict=True)
    ]


def _transpose(references: Sequences) -> list[list[Any]]:
    """sacrebleu's layout: a list for each rank of reference, None where a sentence has no more."""
    most = max(map(len, references))
    return [[r[rank] if rank < len(r) else None for r in references] for rank in range(most)]


def _bleu_metric(tokenize: str, lowercase: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r} is none of {', '.join(BLEU.TOKENIZERS)}")
    # force: no warning about tokenized text where the caller says that it is
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
