"""Beam search for outputs that must hold some phrases and must not hold others.

Grid beam search (Hokamp and Liu 2017): hypotheses that have as many tokens of the required phrases
compete with each other and with no others, so that those that have not yet paid for a rare word
do not crowd out those that have.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from softbeam.search.decoders import checked_scores
from softbeam.search.hard import Step, check_beam_size, feed, first_beam, ranked
from softbeam.search.live import Stop, closed
from softbeam.types import Decoder, Hypotheses

Phrase = Sequence[int]


def constrained_beam_search(
    decoder: Decoder,
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int,
    must: Sequence[Phrase] = (),
    must_not: Sequence[Phrase] = (),
    nbest: int = 1,
    length_penalty: float = 0.0,
    stop: Stop = "limit",
) -> Hypotheses:
    """The best outputs that hold every phrase of `must` and none of `must_not`.

    As wide as the space it is exact. A score of -inf marks places for which there is no such output
    within the limits.

    Args:
        decoder: as for `beam_search`, and so are the others.
        k: number of open hypotheses with the same number of required tokens, and of finished ones.
        lengths: largest length of each output.
        eos: the token that ends an output; no phrase may hold it.
        must: phrases that an output must hold, in any order; they may overlap.
        must_not: phrases that it must not hold.
        nbest: number of outputs.
        length_penalty: p in score / length**p, by which the finished are ranked.
        stop: as for `live_beam_search`.
    """
    check_beam_size(k, nbest)
    beam, time, batch = first_beam(decoder, lengths.clamp(min=1)), int(lengths.max()), len(lengths)
    vocab, device = len(decoder.embedding), lengths.device
    tables = [progress_table(phrase, vocab, eos).to(device) for phrase in (*must, *must_not)]
    full = sum(len(phrase) for phrase in must)
    met = [lengths.new_zeros(batch, 1) for _ in tables]  # tokens of each phrase that a prefix has
    path = lengths.new_zeros(batch, 1, time)
    none = beam.total.new_full((batch, k), -torch.inf)
    done = Hypotheses(lengths.new_zeros(batch, k, time), lengths.new_zeros(batch, k), none)
    end = torch.arange(vocab, device=device) == eos
    for t in range(time):
        local, state = decoder.step(beam.state, beam.emb)
        total = beam.total[:, :, None] + checked_scores(local).unflatten(0, beam.total.shape)
        after = [table[n] for table, n in zip(tables, met, strict=True)]  # batch prev vocab each
        bank = sum(after[: len(must)], torch.zeros_like(total, dtype=torch.long))
        for phrase, reached in zip(must_not, after[len(must) :], strict=True):
            total = total.masked_fill(reached == len(phrase), -torch.inf)
        last, over = (lengths == t + 1)[:, None, None], (lengths <= t)[:, None, None]
        ends = (end | last) & ~over
        score, cell = best(total.masked_fill(~(ends & (bank == full)), -torch.inf), k)
        new = Hypotheses(extended(path, cell, vocab, t), torch.full_like(cell, t + 1), score)
        both = Hypotheses(*(torch.cat(parts, 1) for parts in zip(done, new, strict=True)))
        done = ranked(both.tokens, both.lengths, both.scores, k, length_penalty)
        going = total.masked_fill(ends | over, -torch.inf)
        banks = [best(going.masked_fill(bank != n, -torch.inf), k) for n in range(full + 1)]
        score, cell = (torch.cat(parts, 1) for parts in zip(*banks, strict=True))
        best_first = score.sort(dim=1, descending=True).values
        left = closed(done, best_first, lengths, t, length_penalty, stop)
        score = score.masked_fill(left[:, None], -torch.inf)
        if bool(score.isneginf().all()):
            break
        path = extended(path, cell, vocab, t)
        met = [part.flatten(1).gather(1, cell) for part in after]
        step = Step(cell // vocab, cell % vocab, torch.zeros_like(cell).bool())
        beam = feed(decoder, beam, state, score, step)
    return Hypotheses(*(part[:, :nbest] for part in done))


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best cells of each sentence, scores and numbers; all if there are fewer."""
    flat = scores.flatten(1)
    score, cell = flat.topk(min(k, flat.shape[1]))
    return score, cell


def extended(path: Tensor, cell: Tensor, vocab: int, t: int) -> Tensor:
    """The paths of cells: those of their prefixes, with their token at step t."""
    grown = path.gather(1, (cell // vocab)[:, :, None].expand(-1, -1, path.shape[2])).clone()
    grown[:, :, t] = cell % vocab
    return grown


def progress_table(phrase: Phrase, vocab: int, eos: int) -> Int[Tensor, "met vocab"]:
    """How many tokens of a phrase a prefix ends with, after each token (Knuth, Morris, Pratt).

    Once the phrase is whole, it stays so. Raises ValueError if the phrase is empty, or has an end
    mark or a number that is no token.
    """
    tokens = list(phrase)
    if not tokens or eos in tokens or not all(0 <= token < vocab for token in tokens):
        raise ValueError(
            f"phrase {tokens}: must have tokens from 0 to {vocab - 1}, without the end mark {eos}"
        )
    table = torch.zeros(len(tokens) + 1, vocab, dtype=torch.long)
    table[0, tokens[0]] = 1
    shorter = 0  # the longest end of the phrase so far that is also a beginning of it
    for n in range(1, len(tokens)):
        table[n] = table[shorter]
        table[n, tokens[n]] = n + 1
        shorter = int(table[shorter, tokens[n]])
    table[-1] = len(tokens)
    return table
