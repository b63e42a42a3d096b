"""Decode examples with a trained model, and score what comes out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softbeam import metrics
from softbeam.config import Search
from softbeam.data.batches import Encoded, in_order
from softbeam.data.readers import Example
from softbeam.data.tasks import Kind
from softbeam.data.vocabulary import BOS, EOS, MASK, PAD, Codec
from softbeam.decoders import Forbidding, LocallyNormalized
from softbeam.search import beam_search, greedy, sample
from softbeam.types import Decoder, Hypotheses

MAIN = {"tagging": "accuracy", "transcription": "sequence_error_rate", "translation": "bleu"}
LOWER_IS_BETTER = {"sequence_error_rate", "token_error_rate"}


class Output(NamedTuple):
    """One output of a search for one input."""

    tokens: list[str]
    score: float


class Codecs(NamedTuple):
    source: Codec
    target: Codec


def encode(examples: Sequence[Example], codecs: Codecs) -> list[Encoded]:
    """Examples as numbers; targets end with the end mark where the vocabulary has one."""
    eos = codecs.target.id(EOS)
    end = [] if eos is None else [eos]
    return [
        Encoded(codecs.source.encode(e.source), [*codecs.target.encode(e.target), *end])
        for e in examples
    ]


def searcher(search: Search, codec: Codec) -> Callable[[Decoder, Tensor], Hypotheses]:
    """The search as a function of a decoder and the source lengths."""
    eos = codec.id(EOS)
    never = [i for i in (codec.id(s) for s in (PAD, BOS, MASK)) if i is not None]
    rng = torch.Generator().manual_seed(search.seed)

    def run(decoder: Decoder, source_lengths: Tensor) -> Hypotheses:
        bound = Forbidding(decoder, never) if never else decoder
        bound = LocallyNormalized(bound) if search.normalize else bound
        limits = source_lengths
        if eos is not None:
            limits = (source_lengths * search.max_ratio).long() + search.max_extra
        if search.method == "greedy":
            return greedy(bound, lengths=limits, eos=eos)
        if search.method == "sample":
            return sample(
                bound,
                lengths=limits,
                eos=eos,
                rng=rng,
                temperature=search.temperature,
                top_k=search.top_k,
                top_p=search.top_p,
            )
        return beam_search(
            bound,
            k=search.beam,
            lengths=limits,
            eos=eos,
            nbest=search.nbest,
            length_penalty=search.length_penalty,
        )

    return run


def decode(
    model: nn.Module,
    sources: Sequence[Sequence[str]],
    codecs: Codecs,
    search: Search,
    *,
    tokens: int = 4000,
    on_batch: Callable[[int], None] = lambda done: None,
) -> list[list[Output]]:
    """For each source, in order, its outputs, best first; leaves the model in eval mode."""
    encoded = encode([Example(tuple(s), ()) for s in sources], codecs)
    find = searcher(search, codecs.target)
    device = next(model.parameters()).device
    width = search.beam if search.method == "beam" else 1
    outputs: list[list[Output]] = [[] for _ in sources]
    model.eval()
    with torch.inference_mode():
        for numbers, batch in in_order(encoded, tokens=max(1, tokens // width)):
            source = batch.source.to(device)
            found = find(model(source), (source != 0).sum(1))
            for row, number in enumerate(numbers):
                outputs[number] = read_out(found, row, codecs.target)
            on_batch(len(numbers))
    return outputs


def read_out(found: Hypotheses, row: int, codec: Codec) -> list[Output]:
    """The hypotheses of a row as words; slots that a small space left empty are dropped."""
    rows = zip(found.tokens[row], found.lengths[row], found.scores[row], strict=True)
    return [
        Output(codec.decode(tokens[:length].tolist()), score.item())
        for tokens, length, score in rows
        if not score.isneginf()
    ]


def best(outputs: Sequence[Sequence[Output]]) -> list[list[str]]:
    return [found[0].tokens for found in outputs]


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


def evaluate_outputs(
    model: nn.Module,
    examples: Sequence[Example],
    kind: Kind,
    codecs: Codecs,
    search: Search,
    *,
    on_batch: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], list[list[str]]]:
    """Decode a split and score it; the outputs come along, one for each distinct problem.

    For transcriptions a source with several references (pronunciations of a word) is decoded once
    and scored against the nearest of them; elsewhere every example is a problem of its own.
    """
    references: list[list[tuple[str, ...]]]
    if kind == "transcription":
        grouped: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for example in examples:
            grouped.setdefault(example.source, []).append(example.target)
        sources, references = list(grouped), list(grouped.values())
    else:
        sources = [e.source for e in examples]
        references = [[e.target] for e in examples]
    predicted = best(decode(model, sources, codecs, search, on_batch=on_batch))
    metrics = score(kind, predicted, references, [len(source) for source in sources])
    return metrics, predicted


def evaluate(
    model: nn.Module, examples: Sequence[Example], kind: Kind, codecs: Codecs, search: Search
) -> dict[str, Any]:
    """The figures of `evaluate_outputs` alone."""
    return evaluate_outputs(model, examples, kind, codecs, search)[0]


def main_metric(kind: Kind, found: dict[str, Any]) -> tuple[str, float]:
    """The figure that training selects by, and its value with a sign such that more is better."""
    name = "f1" if "f1" in found else MAIN[kind]
    return name, -found[name] if name in LOWER_IS_BETTER else found[name]
