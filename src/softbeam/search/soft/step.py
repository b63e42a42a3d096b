"""One step of the continuous relaxation of beam search (Goyal et al. 2018, Algorithm 3)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from softbeam.search.relaxations import (
    soft_indices,
    top_values,
    weighted_soft_indices,
    weighted_top_values,
)
from softbeam.search.soft.beam import PAD, REFERENCE, Form, SoftBeam
from softbeam.tensors import mix
from softbeam.types import Decoder


def soft_beam_step(
    decoder: Decoder,
    beam: SoftBeam,
    cost: Float[Tensor, "batch vocab"],
    *,
    k: int,
    alpha: float,
    cost_scale: float = 0.0,
    form: Form = REFERENCE,
) -> SoftBeam:
    """One pass of the loop of Algorithm 3, in plain autograd: the readable form and the oracle.

    A `cost_scale` other than 0 augments line 5 by the cost, as in Sec. 2.5. The score of line 13
    is computed as m_i + sum p_i (s - m_i), which is the same and keeps its digits near +-1,000.
    """
    local, state = decoder.step(beam.state, beam.emb)
    s = beam.score[:, :, None] + local.unflatten(0, beam.score.shape)  # line 5
    s = s + cost_scale * cost[:, None, :] if cost_scale else s  # line 5 of Sec. 2.5
    m = top_values(s, k)  # line 7: Algorithm 2, line 3
    threshold = m.detach() if form.detach_threshold else m
    p = soft_indices(s, threshold, alpha)  # line 7: Algorithm 2, line 5
    back = p.sum(-1)  # line 9: b, soft back pointers
    word = p.sum(-2)  # line 10: a, soft successors
    above = s[:, None] - threshold[:, :, None, None]
    return beam._replace(
        state=mix(state, back),  # lines 14-16
        emb=(word @ decoder.embedding).flatten(0, 1),  # line 11
        score=threshold + torch.einsum("bkjv,bkjv->bk", p, above)  # line 13
        if form.score == "soft"
        else m,
        cost=torch.einsum("bkv,bv->bk", word, cost)  # line 12
        + torch.einsum("bkj,bj->bk", back, beam.cost),  # line 17
        finished=torch.zeros_like(m),
        real=torch.ones_like(m, dtype=torch.bool),
        p=p.detach(),
    )


def soft_beam_step_eos(
    decoder: Decoder,
    beam: SoftBeam,
    cost: Float[Tensor, "batch vocab"],
    *,
    k: int,
    alpha: float,
    eos: int,
    cost_scale: float = 0.0,
    form: Form = REFERENCE,
) -> SoftBeam:
    """`soft_beam_step` for sequences that end: finished mass f is carried forward (ours).

    Hard beams let a finished prefix compete unchanged: its one continuation is padding, at score
    0. Here prefix j is finished to the extent f_j, so row j of the cells has one more column,
    'stay', and the columns are weighted: 1 - f_j for each token, f_j for staying. The weights
    multiply the kernel exp(-alpha (s - m_i)^2), and the thresholds m_i are the scores of the i-th
    unit of weight (`weighted_top_values`), so that a cell nobody can reach sets no threshold.
    Both are free of the scale of the scores and of infinities, and continuous in f.

    With f = 0 this is Algorithm 3; with f in {0, 1} the cells are exactly those of the hard beam,
    so as alpha grows it becomes the hard carry-forward beam. The new f is the mass on 'stay' and
    on `eos`; a stay counts as PAD for the embedding and for the cost.
    """
    local, state = decoder.step(beam.state, beam.emb)
    s, weight = _cells_with_stay(beam, local, cost, cost_scale)
    m = _live_thresholds(s, weight, k)
    threshold = m.detach() if form.detach_threshold else m
    p = weighted_soft_indices(s, weight, threshold, alpha)
    back, word, stay = p.sum(-1), p[..., :-1].sum(-2), p[..., -1].sum(-1)
    ended = stay + word[..., eos]
    word = word + pad(stay[..., None], (PAD, word.shape[-1] - PAD - 1))
    above = s[:, None] - threshold[:, :, None, None]
    return beam._replace(
        state=mix(state, back),
        emb=(word @ decoder.embedding).flatten(0, 1),
        score=threshold + torch.einsum("bkjv,bkjv->bk", p, above) if form.score == "soft" else m,
        cost=torch.einsum("bkv,bv->bk", word, cost) + torch.einsum("bkj,bj->bk", back, beam.cost),
        finished=ended.clamp(0, 1),  # rounding may pass 1
        real=torch.ones_like(m, dtype=torch.bool),
        p=p.detach(),
    )


def _cells_with_stay(
    beam: SoftBeam, local: Tensor, cost: Tensor, cost_scale: float
) -> tuple[Tensor, Tensor]:
    """Scores and weights of the cells, 'stay' in the last column: both batch, prev, vocab + 1."""
    batch, width = beam.score.shape
    step = pad(local.unflatten(0, (batch, width)), (0, 1))  # staying scores 0
    if cost_scale:
        step = step + cost_scale * torch.cat([cost, cost[:, PAD, None]], -1)[:, None, :]
    f = beam.finished[:, :, None]
    return beam.score[:, :, None] + step, torch.cat([(1 - f).expand_as(step[..., :-1]), f], -1)


def _live_thresholds(s: Tensor, weight: Tensor, k: int) -> Tensor:
    """m: the k best units of weight. Each row's k best tokens and its stay are enough."""
    best = s[..., :-1].topk(min(k, s.shape[-1] - 1))
    scores = torch.cat([best.values, s[..., -1:]], -1).flatten(1)
    weights = torch.cat([weight[..., :-1].gather(-1, best.indices), weight[..., -1:]], -1)
    return weighted_top_values(scores, weights.flatten(1), k)
