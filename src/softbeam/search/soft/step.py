"""One step of the continuous relaxation of beam search (Goyal et al. 2018, Algorithm 3)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from softbeam.search.decoders import PAD
from softbeam.search.relaxations import soft_topk, weighted_soft_indices, weighted_top_values
from softbeam.search.soft.beam import SoftBeam, within_reach
from softbeam.search.soft.form import REFERENCE, Form
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
    """Do one pass of the loop of Algorithm 3, in plain autograd: the readable form and the oracle.

    A `cost_scale` other than 0 augments line 5 by the cost, as in Sec. 2.5. The score of line 13
    is computed as m_i + sum p_i (s - m_i), which is equal and keeps its digits near +-1,000.
    """
    local, state = decoder.step(beam.state, beam.emb)
    local = within_reach(local, beam, alpha)
    s = beam.score[:, :, None] + local.unflatten(0, beam.score.shape)  # line 5
    s = s + cost_scale * cost[:, None, :] if cost_scale else s  # line 5 of Sec. 2.5
    m, p = soft_topk(s, k, alpha, detach_threshold=form.detach_threshold)  # line 7
    back = p.sum(-1)  # line 9: b, soft back pointers
    word = p.sum(-2)  # line 10: a, soft successors
    return beam._replace(
        state=mix(state, back),  # lines 14-16
        emb=(word @ decoder.embedding).flatten(0, 1),  # line 11
        score=_mean_score(s, m, p) if form.score == "soft" else m,  # line 13
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
    """Do the step of `soft_beam_step` for sequences that end; finished mass f is carried forward.

    The papers have no such step. Hard beams let a finished prefix compete unchanged: its one
    continuation is padding, at score 0. Here prefix j is finished to the extent f_j, so row j of
    the cells has one more column, 'stay', and the columns are weighted: 1 - f_j for each token, f_j
    for staying. The weights multiply the kernel exp(-alpha (s - m_i)^2), and the thresholds m_i are
    the scores of the i-th unit of weight (`weighted_top_values`), so that a cell which no prefix
    can reach sets no threshold. Both are continuous in f, without infinities, and do not depend on
    the scale of the scores.

    With f = 0 this is Algorithm 3; with f in {0, 1} the cells are exactly those of the hard beam,
    so as alpha grows it becomes the hard carry-forward beam. The new f is the mass on 'stay' and
    on `eos`; a stay counts as PAD for the embedding and for the cost.
    """
    local, state = decoder.step(beam.state, beam.emb)
    s, weight = _cells_with_stay(beam, within_reach(local, beam, alpha), cost, cost_scale)
    m = _live_thresholds(s, weight, k)
    p = weighted_soft_indices(s, weight, m.detach() if form.detach_threshold else m, alpha)
    back, word, stay = p.sum(-1), p[..., :-1].sum(-2), p[..., -1].sum(-1)
    ended = stay + word[..., eos]
    word = word + pad(stay[..., None], (PAD, word.shape[-1] - PAD - 1))
    return beam._replace(
        state=mix(state, back),
        emb=(word @ decoder.embedding).flatten(0, 1),
        score=_mean_score(s, m, p) if form.score == "soft" else m,
        cost=torch.einsum("bkv,bv->bk", word, cost) + torch.einsum("bkj,bj->bk", back, beam.cost),
        finished=ended.clamp(0, 1),  # rounding may pass 1
        real=torch.ones_like(m, dtype=torch.bool),
        p=p.detach(),
    )


def _mean_score(s: Tensor, m: Tensor, p: Tensor) -> Tensor:
    """sum p_i s (Algorithm 3, line 13), as m_i + sum p_i (s - m_i): batch, beam."""
    return m + torch.einsum("bkjv,bkjv->bk", p, s[:, None] - m[:, :, None, None])


def _cells_with_stay(
    beam: SoftBeam, local: Tensor, cost: Tensor, cost_scale: float
) -> tuple[Tensor, Tensor]:
    """Scores and weights of the cells (batch, prev, vocab + 1); the last column is 'stay'."""
    batch, width = beam.score.shape
    step = pad(local.unflatten(0, (batch, width)), (0, 1))  # staying scores 0
    if cost_scale:
        step = step + cost_scale * torch.cat([cost, cost[:, PAD, None]], -1)[:, None, :]
    f = beam.finished[:, :, None]
    return beam.score[:, :, None] + step, torch.cat([(1 - f).expand_as(step[..., :-1]), f], -1)


def _live_thresholds(s: Tensor, weight: Tensor, k: int) -> Tensor:
    """m of the k best units of weight, from each row's k best tokens and its stay."""
    best = s[..., :-1].topk(min(k, s.shape[-1] - 1))
    scores = torch.cat([best.values, s[..., -1:]], -1).flatten(1)
    weights = torch.cat([weight[..., :-1].gather(-1, best.indices), weight[..., -1:]], -1)
    return weighted_top_values(scores, weights.flatten(1), k)
