"""Beam search with the gold prefix in view, and scores of given outputs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.search.decoders import forced_scores
from softbeam.search.hard import Step, best_cells, choose, expand, feed, first_beam
from softbeam.tensors import length_mask, map_state
from softbeam.types import Decoder, State


class Tracked(NamedTuple):
    """A hard beam after step t, best first; scores keep their gradient."""

    t: int
    path: Int[Tensor, "batch beam t"]  # padding after the end
    score: Float[Tensor, "batch beam"]  # -inf where there are fewer candidates than slots
    is_gold: Bool[Tensor, "batch beam"]
    gold: Float[Tensor, " batch"]  # the gold prefix's score, on the beam or just fallen off

    @property
    def fell(self) -> Bool[Tensor, " batch"]:
        """True where the gold prefix has fallen off the beam in this step."""
        return ~self.is_gold.any(1)


def tracked_beam(
    decoder: Decoder,
    target: Int[Tensor, "batch time"],
    *,
    k: int,
    lengths: Int[Tensor, " batch"],
    eos: int | None = None,
) -> Iterator[Tracked]:
    """Beam search that starts again from the gold prefix after each step in which gold falls off.

    So gold's parent is always on the beam, and gold's score is one of the candidates. Until the
    first fall it is `search.hard.beam_search`, with the same order of equal scores; a finished
    prefix is carried forward at score 0. The choice of hypotheses has no gradient, their scores
    have.
    """
    beam, vocab = first_beam(decoder, lengths), len(decoder.embedding)
    path, slot = target.new_zeros(len(target), 1, 0), torch.zeros_like(lengths)
    for t in range(int(lengths.max())):
        cells, state = expand(decoder, beam)
        cells = cells.flatten(1)
        gold_cell = slot * vocab + target[:, t]
        gold = cells.gather(1, gold_cell[:, None]).squeeze(1)
        score, cell = best_cells(cells, k)
        over = lengths <= t + 1
        step = choose(beam, score, cell // vocab, cell % vocab, over=over, eos=eos)
        tracked = Tracked(t, _grow(path, step), score, cell == gold_cell[:, None], gold)
        yield tracked
        slot = tracked.is_gold.int().argmax(1)  # 0 after a fall: where the search starts again
        score, cell = _restart(tracked, cell, gold_cell)
        step = choose(beam, score, cell // vocab, cell % vocab, over=over, eos=eos)
        path, beam = _grow(path, step), feed(decoder, beam, state, score, step)


def _grow(path: Int[Tensor, "batch prev t"], step: Step) -> Int[Tensor, "batch beam u"]:
    """The prefixes of a step: those of its parents, each with its token."""
    before = path.gather(1, step.parent[:, :, None].expand(-1, -1, path.shape[2]))
    return torch.cat([before, step.token[:, :, None]], -1)


def _restart(beam: Tracked, cell: Tensor, gold_cell: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and cells of the beam; where gold fell off, gold alone in the first slot."""
    fell = beam.fell[:, None]
    head = torch.arange(cell.shape[1], device=cell.device) == 0
    alone = torch.where(head, beam.gold[:, None], float("-inf"))
    return torch.where(fell, alone, beam.score), torch.where(fell & head, gold_cell[:, None], cell)


class Repeated:
    """A decoder with each row repeated n times, for n outputs of each source."""

    def __init__(self, decoder: Decoder, n: int):
        self.decoder, self.n = decoder, n

    @property
    def embedding(self) -> Tensor:
        return self.decoder.embedding

    def start(self) -> tuple[State, Tensor]:
        state, emb = self.decoder.start()
        repeated = map_state(lambda tensor: tensor.repeat_interleave(self.n, 0), state)
        return repeated, emb.repeat_interleave(self.n, 0)

    def step(self, state: State, emb: Tensor) -> tuple[Tensor, State]:
        return self.decoder.step(state, emb)


def token_scores(
    decoder: Decoder, tokens: Int[Tensor, "batch n time"], lengths: Int[Tensor, "batch n"]
) -> Float[Tensor, "batch n time"]:
    """The step scores of given outputs, teacher forced; 0 past their lengths."""
    n = tokens.shape[1]
    scores = forced_scores(decoder if n == 1 else Repeated(decoder, n), tokens.flatten(0, 1))
    chosen = scores.gather(-1, tokens.flatten(0, 1)[:, :, None]).squeeze(-1)
    real = length_mask(lengths.flatten(), tokens.shape[2])
    return torch.where(real, chosen, 0.0).unflatten(0, tokens.shape[:2])
