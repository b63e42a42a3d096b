"""Decode examples with a trained model, and score what comes out."""

from collections.abc import Callable, Sequence
from operator import eq
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.readers import Example
from softbeam.data.tasks import Kind
from softbeam.data.vocabulary import BOS, EOS, MASK, PAD, Codec
from softbeam.errors import UserError, limited
from softbeam.objectives.soft_beam import check_beam
from softbeam.sampling.mask_predict import mask_predict_decode
from softbeam.search.decoders import Forbidding, LocallyNormalized, forced_scores
from softbeam.search.hard import beam_search, greedy, sample
from softbeam.search.soft.loop import soft_beam_decode
from softbeam.training import metrics
from softbeam.training.config import SEARCHES, Search
from softbeam.types import Batch, Decoder, Hypotheses

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
    """Examples as numbers; a side ends with the end mark where its vocabulary has one."""
    source_end, end = ([i for i in [codec.id(EOS)] if i is not None] for codec in codecs)
    return [
        Encoded(
            [*codecs.source.encode(e.source), *source_end],
            [*codecs.target.encode(e.target), *end],
        )
        for e in examples
    ]


def searched(decoder: Decoder, search: Search, codec: Codec) -> Decoder:
    """The decoder as a hard search sees it: special tokens forbidden, scores as asked."""
    never = [i for i in (codec.id(s) for s in (PAD, BOS, MASK)) if i is not None]
    bound = Forbidding(decoder, never) if never else decoder
    return LocallyNormalized(bound) if search.normalize else bound


def longest(model: nn.Module) -> int | None:
    """The largest number of tokens on each side of a model; None where there is no limit."""
    return getattr(model, "longest", None)


def check_lengths(what: str, examples: Sequence[Encoded], model: nn.Module) -> None:
    """A UserError that names an example which is longer than the model."""
    limit = longest(model)
    if limit is None:
        return
    for number, example in enumerate(examples, 1):
        if (size := max(len(example.source), len(example.target))) > limit:
            raise UserError(f"{what} {number} has {size} tokens; the model's limit is {limit}")


def length_limits(
    source_lengths: Tensor, search: Search, codec: Codec, most: int | None = None
) -> Tensor:
    """The longest output of each source, at most that of the model.

    Without an end mark every output is as long as its source.
    """
    if codec.id(EOS) is None:
        return source_lengths
    limits = (source_lengths * search.max_ratio).long() + search.max_extra
    return limits.clamp(min=1, max=most)


def searcher(
    search: Search, codec: Codec, most: int | None = None
) -> Callable[[Any, Tensor], Hypotheses]:
    """The search as a function of a model bound to its sources and of the source lengths."""
    eos = codec.id(EOS)
    rng = torch.Generator().manual_seed(search.seed)

    def run(decoder: Any, source_lengths: Tensor) -> Hypotheses:
        if (search.method == "mask-predict") == isinstance(decoder, Decoder):
            raise UserError(f"--search {search.method}: {SEARCHES}")
        if search.method == "mask-predict":
            check_candidates(search, decoder)
            return mask_predict_decode(
                decoder,
                decoder.length_scores,
                candidates=search.candidates,
                iterations=search.iterations,
                nbest=search.nbest,
            )
        limits = length_limits(source_lengths, search, codec, most)
        if search.method == "soft-beam":  # nothing is forbidden: no infinities in relaxed code
            return soft_search(decoder, search, limits, eos)
        bound = searched(decoder, search, codec)
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


def check_width(
    search: Search, examples: Sequence[Encoded], codec: Codec, most: int | None
) -> None:
    """A UserError if a beam is wider than all outputs of the longest source are many."""
    if "beam" in search.method and examples:
        sizes = torch.tensor([max(len(example.source) for example in examples)])
        time = int(length_limits(sizes, search, codec, most))
        check_beam("--beam", search.beam, vocab=len(codec), time=time)


def check_candidates(search: Search, masked: Any) -> None:
    possible = masked.length_scores.shape[1] - 1  # a text has at least one token
    limited("--candidates", search.candidates, most=possible)


def soft_search(decoder: Decoder, search: Search, limits: Tensor, eos: int | None) -> Hypotheses:
    """The hard paths of soft-beam decoding (2018, Sec. 2.4), with their soft scores."""
    bound = LocallyNormalized(decoder) if search.normalize else decoder
    found = soft_beam_decode(
        bound,
        k=search.beam,
        alpha=search.alpha,
        time=int(limits.max()),
        lengths=limits,
        eos=eos,
        marginal=search.marginal,
    )
    return Hypotheses(
        found.tokens[:, : search.nbest],
        found.lengths[:, : search.nbest],
        found.scores[:, : search.nbest],
    )


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
    check_lengths("source", encoded, model)
    check_width(search, encoded, codecs.target, longest(model))
    find = searcher(search, codecs.target, longest(model))
    device = next(model.parameters()).device
    outputs: list[list[Output]] = [[] for _ in sources]
    model.eval()
    with torch.inference_mode():
        for numbers, batch in in_order(encoded, tokens=max(1, tokens // search.width)):
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
        return {"metric": "bleu"} | metrics.paired_bootstrap_bleu(first, second, golds)
    ours, theirs = (scored(kind, references, one) for one in (a, b))
    found = metrics.paired_bootstrap(ours.scores, theirs.scores, statistic=ours.statistic)
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
        batch = Batch(*(tensor.to(device) for tensor in batch))
        found.append(forced_scores(model(batch.source), batch.target).logsumexp(-1)[batch.mask])
    values = torch.cat(found)
    return {"mean": values.mean().item(), "variance": values.var(correction=0).item()}


def main_metric(kind: Kind, found: dict[str, Any]) -> tuple[str, float]:
    """The figure that training selects by, and its value with a sign such that more is better."""
    name = "f1" if "f1" in found else MAIN[kind]
    return name, -found[name] if name in LOWER_IS_BETTER else found[name]
