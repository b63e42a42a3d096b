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
    """For each source its outputs, best first, in the order given; the model is left in eval mode."""
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
    kind: Kind, predicted: Sequence[Sequence[str]], examples: Sequence[Example]
) -> dict[str, Any]:
    """The figures of a task, in percent, with the name of the one that training selects by."""
    gold = [e.target for e in examples]
    found: dict[str, Any]
    if kind == "tagging":
        found = {
            "accuracy": metrics.token_accuracy(predicted, gold),
            "sequence_accuracy": metrics.sequence_accuracy(predicted, gold),
        }
        if metrics.looks_like_iob({label for labels in gold for label in labels}):
            spans = metrics.span_f1(predicted, gold)
            found |= {name: spans[name] for name in ("precision", "recall", "f1")}
        return found
    if kind == "transcription":
        return dict(metrics.error_rates(predicted, [[g] for g in gold]))
    texts = [" ".join(p) for p in predicted]
    references = [[" ".join(g)] for g in gold]
    bleu = metrics.bleu(texts, references)
    found = {"bleu": bleu["score"], "chrf": metrics.chrf(texts, references)["score"]}
    found |= {name: bleu[name] for name in ("precisions", "length_ratio", "signature")}
    return found


def evaluate(
    model: nn.Module,
    examples: Sequence[Example],
    kind: Kind,
    codecs: Codecs,
    search: Search,
    **options: Any,
) -> dict[str, Any]:
    """Decode a split and score it. A source with several references is decoded once."""
    if kind == "transcription":
        return evaluate_references(model, examples, codecs, search, **options)
    predicted = best(decode(model, [e.source for e in examples], codecs, search, **options))
    return score(kind, predicted, examples)


def evaluate_references(
    model: nn.Module,
    examples: Sequence[Example],
    codecs: Codecs,
    search: Search,
    **options: Any,
) -> dict[str, Any]:
    """Error rates against the nearest of each source's references (pronunciations of a word)."""
    references: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for example in examples:
        references.setdefault(example.source, []).append(example.target)
    predicted = best(decode(model, list(references), codecs, search, **options))
    return dict(metrics.error_rates(predicted, list(references.values())))


def main_metric(kind: Kind, found: dict[str, Any]) -> tuple[str, float]:
    """The figure that training selects by, and its value with a sign such that more is better."""
    name = "f1" if "f1" in found else MAIN[kind]
    return name, -found[name] if name in LOWER_IS_BETTER else found[name]
