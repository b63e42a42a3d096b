"""A finished run at work: decode a user's lines, score a split."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example, read_lines
from softbeam.data.vocabulary import BOS, EOS, MASK, PAD, Codec
from softbeam.errors import UserError, limited
from softbeam.objectives.base import check_beam
from softbeam.runtime.progress import Progress
from softbeam.sampling.mask_predict import mask_predict_decode
from softbeam.search.decoders import Forbidding, LocallyNormalized
from softbeam.search.hard import beam_search, greedy, sample
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.training.config import SEARCHES, Search
from softbeam.training.runs import Run
from softbeam.types import Decoder, Hypotheses


class Output(NamedTuple):
    """One output of a search for one input."""

    tokens: list[str]
    score: float


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


def read_inputs(path: str) -> list[str]:
    """The lines to decode, from a file (plain or .gz) or from standard input."""
    return [" ".join(tokens) for tokens in read_lines(path)]


def decode_lines(
    run: Run, lines: Sequence[str], search: Search, *, quiet: bool
) -> list[list[Output]]:
    """Outputs for each line, best first; an empty line is an error that names it."""
    sources = [run.config.data.tokens(line) for line in lines]
    empty = [i for i, source in enumerate(sources, 1) if not source]
    if empty:
        raise UserError(f"input line {empty[0]}: expected at least one token, found an empty line")
    with Progress("decode", len(sources), quiet=quiet) as progress:
        return decode(run.model, sources, run.codecs, search, on_batch=progress.advance)


def render(
    lines: Sequence[str], outputs: Sequence[Sequence[Output]], *, style: str, nbest: int
) -> str:
    """One output on a line; with n-best or as JSONL also its input's number and score."""
    rows = []
    for number, (line, found) in enumerate(zip(lines, outputs, strict=True)):
        for rank, output in enumerate(found):
            text = " ".join(output.tokens)
            if style == "jsonl":
                row = {"line": number, "rank": rank, "score": output.score}
                rows.append(json.dumps(row | {"input": line, "output": text}, ensure_ascii=False))
            else:
                rows.append(f"{number}\t{output.score:.4f}\t{text}" if nbest > 1 else text)
    return "".join(row + "\n" for row in rows)
