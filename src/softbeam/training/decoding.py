"""A finished run at work: decode a user's lines, score a split."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example, read_lines
from softbeam.data.vocabulary import EOS, Codec
from softbeam.errors import UserError
from softbeam.runtime.progress import Progress
from softbeam.training.runs import Run
from softbeam.training.searches import Search
from softbeam.types import Hypotheses


class Output(NamedTuple):
    """One output of a search for one input."""

    tokens: list[str]
    score: float


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


def check_width(
    search: Search, examples: Sequence[Encoded], codec: Codec, most: int | None
) -> None:
    """Raises UserError if the search is wider than the outputs of the longest source are many."""
    if examples:
        sizes = torch.tensor([max(len(example.source) for example in examples)])
        search.check_space(vocab=len(codec), time=int(search.limits(sizes, codec, most)))


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
    rng = torch.Generator().manual_seed(search.seed)
    eos = codecs.target.id(EOS)
    device = next(model.parameters()).device
    outputs: list[list[Output]] = [[] for _ in sources]
    model.eval()
    with torch.inference_mode():
        for numbers, batch in in_order(encoded, tokens=max(1, tokens // search.width)):
            source = batch.source.to(device)
            decoder = model(source)
            search.check_model(decoder)
            limits = search.limits((source != 0).sum(1), codecs.target, longest(model))
            bound = search.bind(decoder, codecs.target)
            hypotheses = search(bound, limits, eos=eos, rng=rng)
            for row, number in enumerate(numbers):
                outputs[number] = read_out(hypotheses, row, codecs.target)
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
