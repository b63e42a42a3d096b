"""Decode with a soft beam by following its back pointers."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from softbeam.search.decoders import PAD
from softbeam.search.hard import follow_backpointers
from softbeam.search.soft.beam import Relaxation, SoftBeam
from softbeam.search.soft.form import REFERENCE
from softbeam.search.soft.loop import soft_beams
from softbeam.search.tracked import token_scores
from softbeam.tensors import length_mask, output_lengths
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
    relaxation, width = Relaxation(k, alpha, form=REFERENCE), 1
    parents, tokens = [], []
    beams = soft_beams(decoder, relaxation, time=time, lengths=lengths, eos=eos)
    for t, beam in enumerate(beams):
        parent, token = _map_pointers(beam.p, vocab=len(decoder.embedding), marginal=marginal)
        if lengths is not None:
            on = (t < lengths)[:, None]
            stay = torch.arange(parent.shape[1]).to(parent).clamp_max(width - 1)
            parent, token = torch.where(on, parent, stay), torch.where(on, token, PAD)
        parents.append(parent)
        tokens.append(token)
        width = parent.shape[1]
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
    """Order the paths by their soft scores, and score them as hard paths."""
    paths = follow_backpointers(parents, tokens)
    soft = beam.score.masked_fill(~beam.real, float("-inf"))
    scores, order = soft.sort(dim=-1, descending=True, stable=True)
    paths = paths.gather(1, order[..., None].expand_as(paths))
    sizes = output_lengths(paths, eos, None if lengths is None else lengths[:, None])
    hard = token_scores(decoder, paths, sizes).sum(-1).masked_fill(scores.isinf(), -torch.inf)
    counted = length_mask(sizes.flatten(), paths.shape[2]).unflatten(0, sizes.shape)
    return SoftHypotheses(torch.where(counted, paths, PAD), sizes, scores, hard)
