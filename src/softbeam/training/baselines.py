"""What can be had without a model: constant answers, and a dictionary of the training split."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softbeam.data.readers import Example
from softbeam.training.kinds import Kind, Problems

Tokens = tuple[str, ...]
MAJORITY, PER_WORD = "most frequent label", "most frequent label of each word"
SAME, COPY = "most frequent output", "copy of the source"


def baselines(kind: Kind, train: Sequence[Example], problems: Problems) -> dict[str, float]:
    """Score each baseline on problems, by the main metric of their kind.

    Args:
        kind: of the task.
        train: the examples that are counted.
        problems: what is answered.
    """
    sources, references = problems
    figures = {}
    for name, outputs in answers(kind, train, sources).items():
        metrics = kind.score(outputs, references, [len(source) for source in sources])
        figures[name] = float(metrics[kind.main_metric(metrics)[0]])
    return figures


def answers(
    kind: Kind, train: Sequence[Example], sources: Sequence[Tokens]
) -> dict[str, list[Tokens]]:
    """Return the outputs of each baseline that makes sense for a kind of task.

    Tagging has the most frequent label, and the most frequent label of each word, with the former
    for words that were not seen. Other tasks have the most frequent output, and translation a copy
    of the source. Of equally frequent ones the first counts.
    """
    if kind.has_end:
        output = Counter(e.target for e in train).most_common(1)[0][0]
        copies = {COPY: list(sources)} if kind.name == "translation" else {}
        return {SAME: [output for _ in sources]} | copies
    label = Counter(label for e in train for label in e.target).most_common(1)[0][0]
    labels = label_of_each_word(train)
    return {
        MAJORITY: [(label,) * len(source) for source in sources],
        PER_WORD: [tuple(labels.get(word, label) for word in source) for source in sources],
    }


def label_of_each_word(train: Iterable[Example]) -> dict[str, str]:
    """Map each word of the training split to its most frequent label."""
    counts: dict[str, Counter[str]] = {}
    for source, target in train:
        for word, label in zip(source, target, strict=True):
            counts.setdefault(word, Counter())[label] += 1
    return {word: labels.most_common(1)[0][0] for word, labels in counts.items()}


def as_text(split: str, figures: Mapping[str, float]) -> str:
    """Write the figures of baselines on one line."""
    shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
    return f"without a model: {split} {shown}"


def warning(kind: Kind, metrics: Mapping[str, Any], figures: Mapping[str, float]) -> str | None:
    """Warn if a model is no better than a baseline, unless no better one is possible.

    Args:
        kind: of the task.
        metrics: of the model.
        figures: what `baselines` returned for the same problems.
    """
    metric, score = kind.main_metric(dict(metrics))
    best = max(figures, key=lambda name: kind.sign * figures[name])
    if score > kind.sign * figures[best] or score >= kind.perfect:
        return None
    return (
        f"WARNING: THIS MODEL IS NO BETTER THAN THE {best.upper()} "
        f"({metric} {metrics[metric]:.2f} against {figures[best]:.2f}): give training more time "
        "(--minutes 10), more sentences, or another learning rate (--lr)"
    )


def stage_warning(kind: Kind, stages: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Warn if the second stage ended below the first on dev; the run has the second's weights.

    Args:
        kind: of the task.
        stages: how each stage ended, with the score of its best weights.
    """
    scores = [kind.sign * stage["score"] for stage in stages.values()]
    if len(scores) < 2 or kind.sign * scores[-1] >= kind.sign * scores[0]:
        return None
    return (
        f"WARNING: THE SECOND STAGE ENDED BELOW THE FIRST (dev {scores[-1]:.2f} against "
        f"{scores[0]:.2f}): give it more epochs (--finetune.epochs), another learning rate "
        "(--finetune.lr) or another objective"
    )
