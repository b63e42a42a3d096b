"""Beam search that keeps finished hypotheses apart, as `generate` and other toolkits do."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.search.hard import (
    Searched,
    Step,
    best_continuations,
    by_length,
    check_beam_size,
    continuations,
    feed,
    first_beam,
    ranked,
)
from softbeam.types import Decoder, Hypotheses

Stop = Literal["limit", "sure", "likely", "first"]


def live_beam_search(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int,
    nbest: int = 1,
    length_penalty: float = 0.0,
    stop: Stop = "limit",
) -> Hypotheses:
    """Beam search as other toolkits have it (`generate`): finished hypotheses are kept apart.

    Of the 2k best continuations of a step, those among the first k that end join the finished, of
    whom the k best stay; the k best that do not end are extended. Where nothing ends early it is
    `beam_search`. A score of -inf marks places that a small space leaves empty.

    Args:
        decoder: as for `beam_search`, and so are the others.
        k: number of open and of finished hypotheses.
        lengths: largest length of each output.
        eos: the token that ends an output.
        nbest: number of outputs.
        length_penalty: p in score / length**p, by which the finished are ranked.
        stop: when a sentence with k finished hypotheses is left: at its limit; once it is `sure`
            that no open one can pass the worst of them, given that step scores are never above 0,
            as log-probabilities; once it is `likely`, which takes the open ones for as long as
            they will be (`generate` with `early_stopping=False`; the same as sure without length
            penalty); or at the `first` k (`early_stopping=True`).
    """
    check_beam_size(k, nbest)
    beam, time = first_beam(decoder, lengths.clamp(min=1)), int(lengths.max())
    batch, searched = len(lengths), Searched(decoder, len(lengths))
    path = lengths.new_zeros(batch, 1, time)
    none = beam.total.new_full((batch, k), -torch.inf)
    done = Hypotheses(lengths.new_zeros(batch, k, time), lengths.new_zeros(batch, k), none)
    for t in range(time):
        rows = searched.sentences
        limits = lengths[rows]
        cells, state = continuations(searched.decoder, beam, 2 * k)
        score, parent, token = best_continuations(cells, 2 * k)
        grown = path.gather(1, parent[:, :, None].expand(-1, -1, time)).clone()
        grown[:, :, t] = token
        ends = (token == eos) | (limits <= t + 1)[:, None]
        joins = (ends & (limits > t)[:, None])[:, :k]
        finished = ranked(
            torch.cat([done.tokens[rows], grown[:, :k]], 1),
            torch.cat([done.lengths[rows], torch.full_like(parent[:, :k], t + 1)], 1),
            torch.cat([done.scores[rows], score[:, :k].masked_fill(~joins, float("-inf"))], 1),
            k,
            length_penalty,
        )
        done = Hypotheses(*(a.index_copy(0, rows, b) for a, b in zip(done, finished, strict=True)))
        total, place = score.masked_fill(ends, float("-inf")).topk(min(k, score.shape[1]))
        over = total.isneginf().all(1) | closed(finished, total, limits, t, length_penalty, stop)
        going = searched.leave(over)
        if going is None:
            break
        path = grown.gather(1, place[:, :, None].expand(-1, -1, time))
        step = Step(parent.gather(1, place), path[:, :, t], torch.zeros_like(place).bool())
        path, beam = path[going], feed(decoder, beam, state, total, step, going)
    return Hypotheses(*(part[:, :nbest] for part in done))


def closed(
    finished: Hypotheses,
    total: Float[Tensor, "batch open"],
    limits: Int[Tensor, " batch"],
    t: int,
    length_penalty: float,
    stop: Stop,
) -> Bool[Tensor, " batch"]:
    """Whether the finished hypotheses of each sentence are k, and stay as they are."""
    if stop == "limit":
        return torch.zeros_like(limits, dtype=torch.bool)
    worst = by_length(finished.scores, finished.lengths, length_penalty)[:, -1]
    if stop == "first":
        return ~worst.isneginf()
    longest = limits if stop == "sure" and length_penalty > 0 else torch.full_like(limits, t + 1)
    return by_length(total[:, 0], longest, length_penalty) <= worst
