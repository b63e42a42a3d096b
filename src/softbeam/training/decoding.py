"""Decode sources with a trained model."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example
from softbeam.data.vocabulary import EOS, Codec
from softbeam.errors import UserError
from softbeam.tensors import real_tokens
from softbeam.training.searches import Search
from softbeam.types import Hypotheses


class Output(NamedTuple):
    """One output of a search for one input."""

    tokens: list[str]
    score: float


OnBatch = Callable[[int], None]


def ignore(done: int) -> None:
    """Do nothing after a batch."""


def longest(model: nn.Module) -> int | None:
    """The largest number of tokens on each side of a model; None where there is no limit."""
    return getattr(model, "longest", None)


def check_lengths(what: str, examples: Sequence[Encoded], model: nn.Module) -> None:
    """Raises UserError if an example has more tokens than the model can take."""
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
    on_batch: OnBatch = ignore,
) -> list[list[Output]]:
    """Decode sources given as tokens; see `decode_encoded`."""
    encoded = encode([Example(tuple(s), ()) for s in sources], codecs)
    return decode_encoded(model, encoded, codecs.target, search, tokens=tokens, on_batch=on_batch)


def decode_encoded(
    model: nn.Module,
    examples: Sequence[Encoded],
    codec: Codec,
    search: Search,
    *,
    tokens: int = 4000,
    on_batch: OnBatch = ignore,
) -> list[list[Output]]:
    """Decode the sources of examples: for each, in order, its outputs, best first.

    Args:
        model: left in evaluation mode.
        examples: encoded; their targets are not looked at.
        codec: of the outputs.
        search: what finds the outputs.
        tokens: padded tokens of a batch, over all hypotheses.
        on_batch: called with the number of sources after each batch.
    """
    sources = [Encoded(example.source, []) for example in examples]
    check_lengths("source", sources, model)
    check_width(search, sources, codec, longest(model))
    rng = torch.Generator().manual_seed(search.seed)
    eos = codec.id(EOS)
    device = next(model.parameters()).device
    outputs: list[list[Output]] = [[] for _ in sources]
    model.eval()
    with torch.inference_mode():
        for numbers, batch in in_order(sources, tokens=max(1, tokens // search.width)):
            source = batch.source.to(device)
            decoder = model(source)
            search.check_model(decoder)
            limits = search.limits(real_tokens(source).sum(1), codec, longest(model))
            hypotheses = search(search.bind(decoder, codec), limits, eos=eos, rng=rng)
            for row, number in enumerate(numbers):
                outputs[number] = read_out(hypotheses, row, codec)
            on_batch(len(numbers))
    return outputs


def read_out(hypotheses: Hypotheses, row: int, codec: Codec) -> list[Output]:
    """Turn the hypotheses of a row into words; slots that a small space left empty are dropped."""
    rows = zip(hypotheses.tokens[row], hypotheses.lengths[row], hypotheses.scores[row], strict=True)
    return [
        Output(codec.decode(tokens[:length].tolist()), score.item())
        for tokens, length, score in rows
        if not score.isneginf()
    ]


def best(outputs: Sequence[Sequence[Output]]) -> list[list[str]]:
    """Return the tokens of the best output of each source."""
    return [ranked[0].tokens for ranked in outputs]
