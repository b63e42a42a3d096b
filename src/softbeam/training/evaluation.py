"""Decode examples with a trained model, and score what comes out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import eq
from typing import Any, NamedTuple

import torch
from torch import nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs
from softbeam.data.readers import Example
from softbeam.data.tasks import Kind
from softbeam.runtime.progress import Progress
from softbeam.search.decoders import forced_scores
from softbeam.training import metrics, significance
from softbeam.training.decoding import best, decode
from softbeam.training.runs import Run
from softbeam.training.searches import Search, name_of

MAIN = {"tagging": "accuracy", "transcription": "sequence_error_rate", "translation": "bleu"}
LOWER_IS_BETTER = {"sequence_error_rate", "token_error_rate"}


def score(
    kind: Kind,
    predicted: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
    source_lengths: Sequence[int],
) -> dict[str, Any]:
    """The figures of a task, in percent."""
    if kind == "transcription":
        return dict(metrics.error_rates(predicted, references))
    if kind == "translation":
        return translation_score(predicted, references, source_lengths)
    gold = [golds[0] for golds in references]
    found = {
        "accuracy": metrics.token_accuracy(predicted, gold),
        "sequence_accuracy": metrics.sequence_accuracy(predicted, gold),
    }
    if metrics.looks_like_iob({label for labels in gold for label in labels}):
        spans = metrics.span_f1(predicted, gold)
        found |= {name: spans[name] for name in ("precision", "recall", "f1")}
    return found


def translation_score(
    predicted: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
    source_lengths: Sequence[int],
) -> dict[str, Any]:
    """BLEU and chrF with their signatures, n-gram precisions, length ratio, BLEU by length."""
    texts = [" ".join(tokens) for tokens in predicted]
    golds = [[" ".join(tokens) for tokens in one] for one in references]
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


class Problems(NamedTuple):
    """What is decoded, and the acceptable outputs of each."""

    sources: list[tuple[str, ...]]
    references: list[list[tuple[str, ...]]]


def problems(kind: Kind, examples: Sequence[Example]) -> Problems:
    """The distinct problems of a split.

    For transcriptions a source with several references (pronunciations of a word) is one problem,
    scored against the nearest of them; elsewhere every example is a problem of its own.
    """
    if kind != "transcription":
        return Problems([e.source for e in examples], [[e.target] for e in examples])
    grouped: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for example in examples:
        grouped.setdefault(example.source, []).append(example.target)
    return Problems(list(grouped), list(grouped.values()))


def evaluate_outputs(
    model: nn.Module,
    examples: Sequence[Example],
    kind: Kind,
    codecs: Codecs,
    search: Search,
    *,
    on_batch: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], list[list[str]]]:
    """Decode a split and score it; the outputs come along, one for each problem."""
    sources, references = problems(kind, examples)
    predicted = best(decode(model, sources, codecs, search, on_batch=on_batch))
    return score(kind, predicted, references, [len(source) for source in sources]), predicted


class Scored(NamedTuple):
    """Outputs sentence by sentence, and how their scores make one figure."""

    metric: str
    scores: Sequence[Any]
    statistic: Callable[[Any], float] = metrics.mean


def scored(
    kind: Kind,
    references: Sequence[Sequence[Sequence[str]]],
    outputs: Sequence[Sequence[str]],
) -> Scored:
    """Outputs beside references, sentence by sentence.

    Token accuracy for tagging (F1 where labels are spans), exact matches for transcriptions, BLEU
    for translations.
    """
    if kind == "translation":
        golds = [[" ".join(tokens) for tokens in one] for one in references]
        texts = [" ".join(tokens) for tokens in outputs]
        return Scored("bleu", metrics.bleu_counts(texts, golds), metrics.bleu_of)
    if kind == "transcription":
        pairs = zip(outputs, references, strict=True)
        right = [100.0 * (list(p) in [list(g) for g in golds]) for p, golds in pairs]
        return Scored("exact_matches", right)
    gold = [golds[0] for golds in references]
    if metrics.looks_like_iob({label for labels in gold for label in labels}):
        return Scored("f1", metrics.span_counts(outputs, gold), metrics.f1_of)
    counts = [(sum(map(eq, p, g)), len(g)) for p, g in zip(outputs, gold, strict=True)]
    return Scored("accuracy", counts, accuracy_of)


def accuracy_of(counts: Any) -> float:
    """Percent of right tokens, from right and all tokens of each sentence."""
    right, every = counts.sum(0)
    return float(100 * right / every)


def compare(
    kind: Kind,
    references: Sequence[Sequence[Sequence[str]]],
    a: Sequence[Sequence[str]],
    b: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Paired bootstrap over sentences of the difference of two systems' outputs, `scored`."""
    if kind == "translation":
        first, second = ([" ".join(tokens) for tokens in one] for one in (a, b))
        golds = [[" ".join(tokens) for tokens in one] for one in references]
        return {"metric": "bleu"} | significance.paired_bootstrap_bleu(first, second, golds)
    ours, theirs = (scored(kind, references, one) for one in (a, b))
    found = significance.paired_bootstrap(ours.scores, theirs.scores, statistic=ours.statistic)
    return {"metric": ours.metric} | found


def evaluate(
    model: nn.Module, examples: Sequence[Example], kind: Kind, codecs: Codecs, search: Search
) -> dict[str, Any]:
    """The figures of `evaluate_outputs` alone."""
    return evaluate_outputs(model, examples, kind, codecs, search)[0]


@torch.inference_mode()
def log_z(model: nn.Module, examples: Sequence[Encoded], *, tokens: int = 4000) -> dict[str, float]:
    """Signed mean and variance of log Z over the real tokens, gold prefixes fed (2019, Table 1)."""
    device = next(model.parameters()).device
    model.eval()
    found = []
    for _, batch in in_order(examples, tokens=tokens):
        batch = batch.to(device)
        found.append(forced_scores(model(batch.source), batch.target).logsumexp(-1)[batch.mask])
    values = torch.cat(found)
    return {"mean": values.mean().item(), "variance": values.var(correction=0).item()}


def main_metric(kind: Kind, found: dict[str, Any]) -> tuple[str, float]:
    """The figure that training selects by, and its value with a sign such that more is better."""
    name = "f1" if "f1" in found else MAIN[kind]
    return name, -found[name] if name in LOWER_IS_BETTER else found[name]


def evaluate_split(
    run: Run, split: str, search: Search, *, quiet: bool
) -> tuple[dict[str, Any], list[list[str]]]:
    """The metrics of a split with the search that gave them, and the outputs."""
    started = time.monotonic()
    examples = run.config.data.load().split(split)
    with Progress(f"decode {split}", len(examples), quiet=quiet) as progress:
        metrics, outputs = evaluate_outputs(
            run.model,
            examples,
            run.config.data.kind,
            run.codecs,
            search,
            on_batch=progress.advance,
        )
    seconds = round(time.monotonic() - started, 2)
    found = {
        "search": {"method": name_of(search)} | asdict(search),
        "metrics": metrics,
        "sentences": len(outputs),
    }
    return found | {"seconds": seconds}, outputs


def compare_split(
    run: Run,
    outputs: Sequence[Sequence[str]],
    other: Run,
    split: str,
    search: Search,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """How sure the difference of a run's outputs from another run's is, on the run's split."""
    kind = run.config.data.kind
    sources, references = problems(kind, run.config.data.load().split(split))
    with Progress(f"decode {split}", len(sources), quiet=quiet) as progress:
        theirs = best(decode(other.model, sources, other.codecs, search, on_batch=progress.advance))
    return compare(kind, references, outputs, theirs)
