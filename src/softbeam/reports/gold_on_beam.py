"""Follow gold outputs through beam search: where they fall off the beam, and why."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from softbeam.data.batches import Encoded, in_order
from softbeam.data.encoding import Codecs, encode
from softbeam.data.readers import Example
from softbeam.data.vocabulary import EOS
from softbeam.search.hard import beam_search
from softbeam.search.tracked import token_scores, tracked_beam
from softbeam.tensors import length_mask, real_tokens
from softbeam.training.decoding import longest
from softbeam.training.searches import Beam
from softbeam.types import Decoder, Hypotheses


class Recovery(NamedTuple):
    """What happened to each sentence's gold output in a beam search."""

    fell: Int[Tensor, " batch"]  # the first step, from 1, without gold on the beam; 0 if it stayed
    found: Bool[Tensor, " batch"]  # whether gold is the search's best output
    reachable: Bool[Tensor, " batch"]  # whether the search could have given gold
    gold: Float[Tensor, " batch"]  # gold's rank value: score / length**length_penalty
    best: Float[Tensor, " batch"]  # the rank value of the search's best output


def beam_recovery(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
    eos: int | None = None,
    length_penalty: float = 0.0,
) -> Recovery:
    """Run beam search and follow the gold outputs: where they fall off the beam, and what came out.

    A sentence has the same result alone and in any padded batch.

    Args:
        decoder: the model, bound to its sources.
        target: the gold outputs; -1 is a token that the model cannot give.
        k: beam size.
        lengths: lengths of the gold outputs, end marks included.
        limits: the longest output of each sentence in the search.
        eos: the end mark; None if outputs have as many tokens as their limits.
        length_penalty: exponent of the length by which scores are divided.
    """
    outputs = beam_search(decoder, k=k, lengths=limits, eos=eos, length_penalty=length_penalty)
    gold = token_scores(decoder, target.clamp(min=0)[:, None], lengths[:, None]).sum(-1)
    scores = torch.cat([gold, outputs.scores], 1)
    sizes = torch.cat([lengths[:, None], outputs.lengths], 1).clamp(min=1)
    ranks = scores / sizes.to(scores.dtype) ** length_penalty
    return Recovery(
        fell=first_falls(decoder, target, k=k, lengths=lengths, limits=limits, eos=eos),
        found=is_gold(outputs, target, lengths),
        reachable=out_of_reach(target, lengths, limits) == 0,
        gold=ranks[:, 0],
        best=ranks[:, 1],
    )


def first_falls(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
    eos: int | None = None,
) -> Int[Tensor, " batch"]:
    """The first step, from 1, after which gold is not on the beam; 0 where it stays.

    With `eos`, gold that has ended can still be pushed off by longer outputs, at a step beyond its
    length. A step that the search cannot take with gold counts as a fall.
    """
    padding = max(0, int(limits.max()) - target.shape[1])
    gold = pad(target.clamp(min=0), (0, padding))
    fell = torch.zeros_like(lengths)
    for beam in tracked_beam(decoder, gold, k=k, lengths=limits, eos=eos):
        fell = torch.where(beam.fell & (fell == 0), beam.t + 1, fell)
        if eos is not None and ((fell > 0) | (beam.path == eos).any(-1).all(1)).all():
            break
    stop = out_of_reach(target, lengths, limits)
    return torch.where((fell > 0) & (stop > 0), fell.minimum(stop), fell.maximum(stop))


def out_of_reach(
    target: Int[Tensor, "batch time"],
    lengths: Int[Tensor, " batch"],
    limits: Int[Tensor, " batch"],
) -> Int[Tensor, " batch"]:
    """The first step, from 1, where gold has an unknown token or exceeds the limit; 0 if none."""
    step = torch.arange(1, target.shape[1] + 1, device=target.device)
    cannot = ((target < 0) | (step > limits[:, None])) & (step <= lengths[:, None])
    return torch.where(cannot.any(1), cannot.int().argmax(1) + 1, 0)


def is_gold(
    outputs: Hypotheses, target: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    """Whether the best hypothesis is the target, token by token."""
    tokens = outputs.tokens[:, 0]
    gold = torch.where(length_mask(lengths, target.shape[1]), target, 0)
    time = max(tokens.shape[1], gold.shape[1])
    same = pad(tokens, (0, time - tokens.shape[1])) == pad(gold, (0, time - gold.shape[1]))
    return same.all(1) & (outputs.lengths[:, 0] == lengths)


class Fate(NamedTuple):
    """What happened to one sentence's gold output in a search."""

    length: int  # in the model's tokens, with the end mark
    fell: int  # as in `Recovery`
    outcome: str  # one of OUTCOMES


OUTCOMES = ("found", "search error", "model error", "out of reach")


def outcome(found: bool, reachable: bool, gold: float, best: float) -> str:
    """Why gold was or was not found: a search error if gold has the better score."""
    if found:
        return "found"
    if not reachable:
        return "out of reach"
    return "search error" if gold > best else "model error"


@torch.inference_mode()
def gold_fates(
    model: nn.Module,
    examples: Sequence[Example],
    codecs: Codecs,
    search: Beam,
    *,
    tokens: int = 4000,
    on_batch: Callable[[int], None] = lambda done: None,
    encoded: Sequence[Encoded] | None = None,
) -> list[Fate]:
    """The fate of each example's target in beam search with the given settings.

    Gold is the target as the model's vocabulary encodes it, which is one of several encodings if
    the vocabulary has subwords. `encoded` has the examples in numbers, if that has been done.
    """
    encoded = encode(examples, codecs) if encoded is None else encoded
    eos = codecs.target.id(EOS)
    device = next(model.parameters()).device
    fates: dict[int, Fate] = {}
    for numbers, batch in in_order(encoded, tokens=max(1, tokens // search.k)):
        source = batch.source.to(device)
        sizes = real_tokens(source).sum(1)
        lengths = [len(encoded[number].target) for number in numbers]
        recovery = beam_recovery(
            search.bind(model(source), codecs.target),
            batch.target.masked_fill(~batch.mask, -1).to(device),
            k=search.k,
            lengths=torch.tensor(lengths, device=device),
            limits=search.limits(sizes, codecs.target, longest(model)),
            eos=eos,
            length_penalty=search.length_penalty,
        )
        rows = zip(*(values.tolist() for values in recovery), strict=True)
        for number, length, (fell, *rest) in zip(numbers, lengths, rows, strict=True):
            fates[number] = Fate(length, fell, outcome(*rest))
        on_batch(len(numbers))
    return [fates[number] for number in range(len(examples))]
