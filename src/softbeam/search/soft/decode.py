"""Decode with a soft beam by following its back pointers."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from softbeam.search.hard import follow_backpointers
from softbeam.search.soft.beam import PAD, REFERENCE, SoftBeam
from softbeam.search.soft.loop import _check, _freeze, _scored, _start, _step, beam_widths
from softbeam.tensors import gather
from softbeam.types import Decoder


class SoftHypotheses(NamedTuple):
    """The paths of a soft beam, best soft score first; tokens past a length are padding."""

    tokens: Int[Tensor, "batch beam time"]
    lengths: Int[Tensor, "batch beam"]
    scores: Float[Tensor, "batch beam"]  # the soft beam's own
    hard_scores: Float[Tensor, "batch beam"]  # of the path, when its tokens are fed


@torch.no_grad()
def soft_beam_decode(
    decoder: Decoder,
    *,
    k: int,
    alpha: float,
    time: int,
    lengths: Int[Tensor, " batch"] | None = None,
    eos: int | None = None,
    marginal: bool = False,
) -> SoftHypotheses:
    """The hard paths along the MAP of the soft back pointers (Goyal et al. 2018, Sec. 2.4).

    The MAP is joint, the arg max over the cells of p_i; with `marginal`, those of the back
    pointers and of the successors are taken apart (they can differ while alpha is small). As
    alpha grows the paths and both scores become those of the hard beam.
    """
    _check(decoder, None, k=k, alpha=alpha, time=time, lengths=lengths, eos=eos)
    beam, parents, tokens = _start(decoder), [], []
    cost = decoder.embedding.new_zeros(1, 1).expand(len(beam.score), len(decoder.embedding))
    for t, width in enumerate(beam_widths(k, cost.shape[1], time, eos=eos is not None)):
        new = _step(
            decoder, beam, cost, k=width, alpha=alpha, cost_scale=0.0, eos=eos, form=REFERENCE
        )
        parent, token = _map_pointers(new.p, vocab=cost.shape[1], marginal=marginal)
        if lengths is not None:
            on = (t < lengths)[:, None]
            stay = torch.arange(width).to(parent).clamp_max(beam.score.shape[1] - 1)
            parent, token = torch.where(on, parent, stay), torch.where(on, token, PAD)
            new = _freeze(new, beam, t < lengths)
        parents.append(parent)
        tokens.append(token)
        beam = new
    return _rank_paths(decoder, beam, parents, tokens, lengths, eos)


def _map_pointers(p: Tensor | None, *, vocab: int, marginal: bool) -> tuple[Tensor, Tensor]:
    """Parent and token of each beam element; a 'stay' (column `vocab`) is PAD."""
    assert p is not None
    if marginal:
        word = p[..., :vocab].sum(-2)
        stay = p[..., vocab:].sum((-1, -2))
        word = word + pad(stay[..., None], (PAD, vocab - PAD - 1))
        return p.sum(-1).argmax(-1), word.argmax(-1)
    cell = p.flatten(2).argmax(-1)
    token = cell % p.shape[-1]
    return cell // p.shape[-1], torch.where(token == vocab, PAD, token)


def _rank_paths(
    decoder: Decoder,
    beam: SoftBeam,
    parents: list[Tensor],
    tokens: list[Tensor],
    lengths: Tensor | None,
    eos: int | None,
) -> SoftHypotheses:
    paths = follow_backpointers(parents, tokens)
    soft = beam.score.masked_fill(~beam.real, float("-inf"))
    scores, order = soft.sort(dim=-1, descending=True, stable=True)
    paths = paths.gather(1, order[..., None].expand_as(paths))
    counted = torch.stack([_scored(path, lengths, eos) for path in paths.unbind(1)], 1)
    hard = (_path_scores(decoder, paths) * counted).sum(-1).masked_fill(scores.isinf(), -torch.inf)
    return SoftHypotheses(torch.where(counted, paths, PAD), counted.sum(-1), scores, hard)


def _path_scores(
    decoder: Decoder, paths: Int[Tensor, "batch beam time"]
) -> Float[Tensor, "batch beam time"]:
    """The score of every token of every path when the path's own tokens are fed."""
    state, emb = decoder.start()
    batch, beam, time = paths.shape
    rows = torch.arange(batch, device=paths.device).repeat_interleave(beam)
    state, emb, flat = gather(state, rows), emb[rows], paths.flatten(0, 1)
    scores = []
    for t in range(time):
        local, state = decoder.step(state, emb)
        scores.append(local.gather(1, flat[:, t, None])[:, 0])
        emb = decoder.embedding[flat[:, t]]
    return torch.stack(scores, -1).unflatten(0, (batch, beam))
