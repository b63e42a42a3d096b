"""Kinds of tasks: what is a problem, what scores its outputs, and how two systems are compared."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import eq
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from softbeam._lazy import lazy
from softbeam.data.readers import Example
from softbeam.data.task import KindName, Task

if TYPE_CHECKING:
    from softbeam.training import metrics, significance
else:
    metrics, significance = (
        lazy("softbeam.training.metrics"),
        lazy("softbeam.training.significance"),
    )

Tokens = Sequence[str]
References = Sequence[Sequence[Tokens]]  # the acceptable outputs of each problem


class Problems(NamedTuple):
    """Sources to decode, and the acceptable outputs of each."""

    sources: list[tuple[str, ...]]
    references: list[list[tuple[str, ...]]]


class Scored(NamedTuple):
    """Scores of outputs, sentence by sentence, and the statistic that sums them up."""

    metric: str
    scores: Sequence[Any]
    statistic: Callable[[Any], float]


STATISTICS: dict[str, Callable[[Any], float]] = {  # by the metric of `Scored`
    "accuracy": metrics.accuracy_of,
    "f1": metrics.f1_of,
    "exact_matches": metrics.mean,
    "bleu": metrics.bleu_of,
}


class Comparison(NamedTuple):
    """The difference of two systems on the same sentences, with its 95 % interval and p-value."""

    metric: str
    difference: float
    interval: tuple[float, float]
    p_value: float
    over: str  # what varies: sentences, or seeds and sentences


class Kind(ABC):
    """A kind of task; there is one instance of each, in `KINDS`.

    `main` is the metric that training selects by, `quality` the name of that which samples are
    scored by. `has_end` says whether outputs end with an end mark; without one they are as long as
    their source.
    """

    name: ClassVar[KindName]
    main: ClassVar[str]
    quality: ClassVar[str]
    lower_is_better: ClassVar[bool] = False
    has_end: ClassVar[bool] = True

    def problems(self, examples: Sequence[Example]) -> Problems:
        """Make one problem of every example."""
        return Problems([e.source for e in examples], [[e.target] for e in examples])

    @abstractmethod
    def score(
        self, predicted: Sequence[Tokens], references: References, source_lengths: Sequence[int]
    ) -> dict[str, Any]:
        """Compute all metrics of outputs, in percent."""

    @abstractmethod
    def per_sentence(self, references: References, outputs: Sequence[Tokens]) -> Scored:
        """Score outputs sentence by sentence, for tests over sentences."""

    def samples(self, references: References, outputs: Sequence[Tokens]) -> Sequence[Any]:
        """Count in each sample what `samples_quality` adds up."""
        return self.per_sentence(references, outputs).scores

    @abstractmethod
    def samples_quality(self, rows: Any) -> float:
        """Compute `quality` from rows of `samples`."""

    def main_metric(self, figures: dict[str, Any]) -> tuple[str, float]:
        """Return the main metric of a score, and its value with a sign such that more is better."""
        name = "f1" if "f1" in figures else self.main
        return name, self.sign * figures[name]

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return -1 if self.lower_is_better else 1

    @property
    def perfect(self) -> float:
        """The best value of the main metric, with the sign of `main_metric`."""
        return 0.0 if self.lower_is_better else 100.0

    def length_edges(self, source_lengths: Sequence[int]) -> list[int]:
        """Choose the edges of about five equally large buckets of source lengths."""
        ordered = sorted(source_lengths)
        return sorted({ordered[len(ordered) * i // 5] for i in range(1, 5)} - {ordered[-1]})

    def counted(self, tokens: Tokens) -> Tokens:
        """Return the tokens as the metrics count them."""
        return tokens

    def compare(
        self,
        references: References,
        a: Sequence[Sequence[Tokens]],
        b: Sequence[Sequence[Tokens]],
    ) -> Comparison:
        """Compare the outputs of two systems' runs; run i of one is the partner of the other's.

        With one run and one sentence nothing varies: then the interval has no ends, and p is 1.
        """
        scored = [[self.per_sentence(references, run) for run in runs] for runs in (a, b)]
        scores = [[run.scores for run in runs] for runs in scored]
        first = scored[0][0]
        gaps = significance.sentence_gaps(*scores, statistic=first.statistic)
        test = significance.crossed_test(gaps)
        over = "seeds and sentences" if len(a) > 1 else "sentences"
        if test is None:  # a single sentence: nothing varies
            middle = float(gaps.runs[0])
            test = significance.Test(middle, (-math.inf, math.inf), 1.0)
        return Comparison(first.metric, *test, over)

    def interval(self, references: References, outputs: Sequence[Tokens]) -> tuple[float, float]:
        """Compute the 95 % interval of the main metric over sentences, by a bootstrap."""
        scored = self.per_sentence(references, outputs)
        ends = significance.sentence_interval(scored.scores, statistic=scored.statistic)
        return (100 - ends[1], 100 - ends[0]) if self.lower_is_better else ends  # of errors


class Tagging(Kind):
    """One label for each source token: token accuracy, and F1 where the labels are spans."""

    name: ClassVar[KindName] = "tagging"
    main = quality = "accuracy"
    has_end = False

    def score(
        self, predicted: Sequence[Tokens], references: References, source_lengths: Sequence[int]
    ) -> dict[str, Any]:
        gold = [golds[0] for golds in references]
        figures = {
            "accuracy": metrics.token_accuracy(predicted, gold),
            "sequence_accuracy": metrics.sequence_accuracy(predicted, gold),
        }
        if metrics.looks_like_iob({label for labels in gold for label in labels}):
            spans = metrics.span_f1(predicted, gold)
            figures |= {name: spans[name] for name in ("precision", "recall", "f1", "macro_f1")}
            figures["outside"] = metrics.share_of(metrics.OUTSIDE, predicted)
        return figures

    def per_sentence(self, references: References, outputs: Sequence[Tokens]) -> Scored:
        gold = [golds[0] for golds in references]
        if metrics.looks_like_iob({label for labels in gold for label in labels}):
            return Scored("f1", metrics.span_counts(outputs, gold), metrics.f1_of)
        counts = [(sum(map(eq, p, g)), len(g)) for p, g in zip(outputs, gold, strict=True)]
        return Scored("accuracy", counts, metrics.accuracy_of)

    def samples_quality(self, rows: Any) -> float:
        return metrics.accuracy_of(rows)


class Transcription(Kind):
    """A short output in a closed alphabet, such as a word's phonemes: error rates."""

    name: ClassVar[KindName] = "transcription"
    main = "sequence_error_rate"
    quality = "token error rate"
    lower_is_better = True

    def problems(self, examples: Sequence[Example]) -> Problems:
        """Make one problem of each source, scored against the nearest of its targets."""
        grouped: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for example in examples:
            grouped.setdefault(example.source, []).append(example.target)
        return Problems(list(grouped), list(grouped.values()))

    def score(
        self, predicted: Sequence[Tokens], references: References, source_lengths: Sequence[int]
    ) -> dict[str, Any]:
        return dict(metrics.error_rates(predicted, references))

    def per_sentence(self, references: References, outputs: Sequence[Tokens]) -> Scored:
        pairs = zip(outputs, references, strict=True)
        right = [100.0 * (list(p) in [list(g) for g in golds]) for p, golds in pairs]
        return Scored("exact_matches", right, metrics.mean)

    def samples(self, references: References, outputs: Sequence[Tokens]) -> Sequence[Any]:
        return metrics.error_counts(outputs, references)

    def samples_quality(self, rows: Any) -> float:
        return metrics.token_errors_of(rows)


class Translation(Kind):
    """A text in another language: BLEU and chrF with their signatures."""

    name: ClassVar[KindName] = "translation"
    main = "bleu"
    quality = "BLEU"

    def score(
        self, predicted: Sequence[Tokens], references: References, source_lengths: Sequence[int]
    ) -> dict[str, Any]:
        texts, golds = as_texts(predicted), [as_texts(accepted) for accepted in references]
        bleu, chrf = metrics.bleu(texts, golds), metrics.chrf(texts, golds)
        return {
            "bleu": bleu["score"],
            "chrf": chrf["score"],
            "length_ratio": bleu["length_ratio"],
            "precisions": bleu["precisions"],
            "bleu_by_source_length": metrics.bleu_by_length(texts, golds, source_lengths),
            "signature": bleu["signature"],
            "chrf_signature": chrf["signature"],
        }

    def per_sentence(self, references: References, outputs: Sequence[Tokens]) -> Scored:
        golds = [as_texts(accepted) for accepted in references]
        return Scored("bleu", metrics.bleu_counts(as_texts(outputs), golds), metrics.bleu_of)

    def samples_quality(self, rows: Any) -> float:
        return metrics.bleu_of(rows)

    def length_edges(self, source_lengths: Sequence[int]) -> list[int]:
        """Return the edges by which BLEU is usually divided."""
        return list(metrics.EDGES)

    def counted(self, tokens: Tokens) -> Tokens:
        """Return the tokens of BLEU's tokenization 13a."""
        return metrics.bleu_tokens(" ".join(tokens))


def as_texts(outputs: Sequence[Tokens]) -> list[str]:
    """Join the tokens of each output by spaces."""
    return [" ".join(tokens) for tokens in outputs]


KINDS: dict[KindName, Kind] = {
    kind.name: kind for kind in (Tagging(), Transcription(), Translation())
}
LOWER_IS_BETTER = {kind.main for kind in KINDS.values() if kind.lower_is_better}


def kind_of(task: Task) -> Kind:
    """Return the kind of a task's outputs."""
    return KINDS[task.kind]
