"""A soft-beam step over a pool of candidates, with a backward pass of its own.

Only the best cells of each sentence enter the relaxation, with a bound on the mass that all others
would have had. The step equals `soft_beam_step` and `soft_beam_step_eos` to that bound.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from softbeam.search.decoders import PAD
from softbeam.search.soft.cells import (
    Local,
    Task,
    best_cells,
    local_scores,
    log_weight,
    log_z_gradients,
    mixed,
    mixed_gradients,
    stay_scores,
    threshold_gradient,
    threshold_gradients,
    thresholds,
    weight_gradient,
)
from softbeam.tensors import best_columns


class PooledStep(torch.autograd.Function):
    """Lines 5-17 of Algorithm 3 over the best cells of each sentence.

    Returns embedding, score, cost and finished mass of the new elements, the bound on the mass
    left out, p, back pointers, and the mixed state. `spent` is the cost so far. With `eos`, staying
    finished is one more cell of each row, which counts as padding.
    """

    @staticmethod
    def forward(
        ctx: Any,
        task: Task,
        source: Tensor,
        score: Tensor,
        spent: Tensor,
        finished: Tensor,
        w_token: Tensor | None,
        e_token: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        prev, vocab = score.shape[1], len(task.embedding.table)
        local = local_scores(task, source, score)
        ends = _ending(task, local, score, finished) if task.eos is not None else None
        s, index = _pool(task, local, ends)
        m = s[:, : task.how.k].contiguous() if ends is None else ends.m  # line 7
        parent, token = index // vocab, index % vocab
        if ends is not None:
            s, parent, token = _with_stays(s, parent, token, ends.stay)
        x = s[:, None] - m[:, :, None]  # batch beam cells
        bias = m.new_zeros(()) if ends is None else _log_weights(finished, parent)[:, None]
        logits = torch.addcmul(bias, x, x, value=-task.how.alpha)  # line 7: Algorithm 2, line 5
        p = logits.softmax(-1)
        owner = torch.eq(parent[..., None], task.numbers[:prev]).to(s.dtype)
        back = torch.bmm(p, owner)  # line 9
        rows = task.embedding.table.index_select(0, token.view(-1)).view(*token.shape, -1)
        cost = task.cost.gather(1, token) + spent.gather(1, parent)
        ended = torch.zeros_like(m)
        if ends is not None:
            ended = torch.bmm(p, _ends(task, token, prev)[..., None])[..., 0]
        least, others = s[:, index.shape[1] - 1], prev * vocab - index.shape[1]
        dropped = _dropped(task, least, m, logits, p, others)
        ctx.mark_non_differentiable(dropped, p, back)
        ctx.save_for_backward(
            *(source, finished, index, token, parent, owner, x, p, back, rows, cost, ended),
            *((None, None, None) if ends is None else ends[:3]),
            *(local.exps, local.sums, *state),
        )
        ctx.task = task
        if not task.normalize:
            task.peaks.append(m if ends is None else ends.top)
        return (
            torch.bmm(p, rows).view(-1, rows.shape[2]),  # line 11
            (p * x).sum(-1).add_(m) if task.soft else m,  # line 13
            (p * cost[:, None]).sum(-1),  # lines 12 and 17
            ended.clamp(0, 1),
            dropped,
            p,
            back,
            *mixed(back, state),  # lines 14-16
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_emb: Tensor, d_score: Tensor, d_cost: Tensor, d_ended: Tensor, *rest: Tensor
    ) -> tuple[Tensor | None, ...]:
        task, saved = ctx.task, ctx.saved_tensors
        source, finished, index, token, parent, owner, x, p, back = saved[:9]
        rows, cost, ended, best, top, stay, exps, sums, *state = saved[9:]
        (batch, beam, prev), cells = back.shape, index.shape[1]
        d_back, d_state = mixed_gradients(back, state, rest[3:])
        g = torch.bmm(d_emb.view(batch, beam, -1), rows.mT)  # d loss / d p
        g.baddbmm_(d_back, owner.mT).addcmul_(d_cost[..., None], cost[:, None])
        if best is not None:
            d_ended = d_ended * ended.le(1)  # rounding may pass 1
            g.addcmul_(d_ended[..., None], _ends(task, token, prev)[:, None])
        slope = d_score[..., None] if task.soft else d_score.new_zeros(())
        g.addcmul_(slope, x)
        g -= (p * g).sum(-1, keepdim=True)
        d_x = torch.addcmul(slope, g, x, value=-2 * task.how.alpha).mul_(p)
        d_s, d_finished, d_before = d_x.sum(1), None, None
        if best is None:
            d_s[:, :beam] += threshold_gradient(task, d_score, d_x.sum(-1))
        else:
            felt = threshold_gradients(task, (top, stay, finished), d_score, d_x.sum(-1))
            going = torch.bmm((p * g).sum(1)[:, None], owner)[:, 0]
            stays = (p[..., cells:] * g[..., cells:]).sum(1)
            d_finished = weight_gradient(finished, going - stays, stays) + felt[2]
            d_before = d_s[:, cells:] + felt[1]
        d_s, own = d_s[:, :cells], owner[:, :cells]
        d_offset = torch.bmm(d_s[:, None], own)[:, 0]
        d_source = _cell_gradient(task, source, index, own, d_s)
        if best is not None:
            d_source += _row_gradient(task, source, best, felt[0])
            d_offset += felt[0].sum(-1)
        d_source = log_z_gradients(task, source, d_source, d_offset, exps, sums)
        slots = task.numbers[: batch * beam].repeat_interleave(p.shape[2])
        lines = token[:, None].expand_as(p).reshape(-1)
        task.embedding.add_sparse(lines, slots, p.view(-1), d_emb)
        d_before = d_offset if d_before is None else d_offset + d_before
        d_spent = torch.bmm(d_cost[:, None], back)[:, 0]
        return None, d_source, d_before, d_spent, d_finished, None, None, *d_state


class _Ending(NamedTuple):
    """Thresholds where sequences end, and what they come from."""

    best: Int[Tensor, "rows n"]  # the best tokens of each row
    top: Float[Tensor, "batch prev n"]  # their scores
    stay: Float[Tensor, "batch prev"]
    m: Float[Tensor, "batch beam"]
    mass: Float[Tensor, "batch 1"]  # the log of a weight that some cell has, whatever the threshold


def _ending(task: Task, local: Local, score: Tensor, finished: Tensor) -> _Ending:
    """Thresholds of cells that are weighted by 1 - f, and by f for staying."""
    best = best_columns(local.scores, min(task.how.k, local.scores.shape[1]))
    top = local.scores.gather(1, best).view(*score.shape, -1) + local.offset[..., None]
    stay = stay_scores(task, score)
    m = thresholds(task, top, stay, finished)  # line 7: Algorithm 2, line 3
    going, stays = (log_weight(w)[:, None] for w in (1 - finished, finished))
    token = going - task.how.alpha * (top[:, None, :, 0] - m[..., None]).square()
    staying = stays - task.how.alpha * (stay[:, None] - m[..., None]).square()
    return _Ending(best, top, stay, m, token.maximum(staying).amax(-1).amin(-1, keepdim=True))


def _pool(task: Task, local: Local, ends: _Ending | None) -> tuple[Tensor, Tensor]:
    """Scores and numbers of each sentence's best cells: on a CPU as few as the tolerance allows.

    Elsewhere the host would have to wait for the number of cells at every step.
    """
    if local.scores.device.type != "cpu":
        return best_cells(local.scores, local.offset, task.pool)
    cells = local.offset.shape[1] * local.scores.shape[1]
    tolerance = max(task.how.form.tolerance, torch.finfo(local.scores.dtype).tiny)
    near: float | Tensor = math.log(max(cells / tolerance, 1.0)) / task.how.alpha
    if ends is not None:
        near = near - ends.mass / task.how.alpha
    for n in sorted({min(task.pool, max(cells // 64, task.how.k)), task.pool}):
        s, index = best_cells(local.scores, local.offset, n)
        gap = (s[:, task.how.k - 1, None] if ends is None else ends.m[:, -1:]) - s
        size = int(torch.lt(gap.clamp_min_(0).square_(), near).sum(1).max()) + 1
        if size <= n:
            break
    return s[:, :size].contiguous(), index[:, :size].contiguous()


def _with_stays(
    s: Tensor, parent: Tensor, token: Tensor, stay: Float[Tensor, "batch prev"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The cells, and after them one of each row for staying finished, whose token is padding."""
    rows = torch.arange(stay.shape[1], device=s.device).expand_as(stay)
    padding = torch.full_like(rows, PAD)
    return torch.cat([s, stay], 1), torch.cat([parent, rows], 1), torch.cat([token, padding], 1)


def _ends(task: Task, token: Int[Tensor, "batch cells"], prev: int) -> Float[Tensor, "batch cells"]:
    """1 at cells whose prefix is finished afterwards: those of the end mark and of staying."""
    ends = torch.eq(token, task.eos or 0).to(task.cost.dtype)
    ends[:, -prev:] = 1
    return ends


def _log_weights(
    finished: Float[Tensor, "batch prev"], parent: Int[Tensor, "batch cells"]
) -> Float[Tensor, "batch cells"]:
    """log(1 - f) of the cells' prefixes, and log f for staying."""
    tokens = parent[:, : -finished.shape[1]]
    return torch.cat([log_weight(1 - finished).gather(1, tokens), log_weight(finished)], 1)


def _dropped(
    task: Task,
    least: Float[Tensor, " batch"],
    m: Float[Tensor, "batch beam"],
    logits: Float[Tensor, "batch beam cells"],
    p: Float[Tensor, "batch beam cells"],
    others: int,
) -> Float[Tensor, " batch"]:
    """An upper bound on the mass of the cells that are not in the pool.

    They score at most `least`, and while that is below m_i, the weight of each of them is at most
    exp(-alpha (m_i - least)^2): most for the lowest m_i. All weights in the pool add up to 1 or
    more, since one of them is that of m_i itself; with an end mark, to exp(logit) / p of any cell.
    """
    gap = (m[:, -1] - least).clamp_min_(0)
    logit = torch.mul(gap, gap).mul_(-task.how.alpha).add_(math.log(others))
    if task.eos is not None:
        logit -= (logits.amax(-1) - p.amax(-1).log()).amin(-1)
    return logit.sigmoid_()


def _cell_gradient(
    task: Task,
    source: Tensor,
    index: Int[Tensor, "batch cells"],
    owner: Float[Tensor, "batch cells prev"],
    d_s: Float[Tensor, "batch cells"],
) -> Tensor:
    """The gradient of the hidden states, or of the scores themselves, given that of the cells."""
    (batch, cells, prev), vocab = owner.shape, len(task.embedding.table)
    if task.output is None:
        flat = torch.zeros_like(source).view(batch, -1)
        return flat.scatter_(1, index, d_s).view_as(source)
    place = (index + task.numbers[:batch, None] * (prev * vocab)).view(-1)
    lines = place % vocab
    task.output.add_sparse(lines, place // vocab, d_s.reshape(-1), source)
    rows = task.output.table.index_select(0, lines).view(batch, cells, -1)
    return torch.bmm((owner * d_s[..., None]).mT, rows).view_as(source)


def _row_gradient(
    task: Task,
    source: Tensor,
    best: Int[Tensor, "rows n"],
    d_top: Float[Tensor, "batch prev n"],
) -> Tensor:
    """The same, given the gradient of each row's best tokens."""
    weights = d_top.reshape(best.shape).contiguous()
    if task.output is None:
        return torch.zeros_like(source).scatter_(1, best, weights)
    rows = task.numbers[: len(best)].repeat_interleave(best.shape[1])
    task.output.add_sparse(best.view(-1), rows, weights.view(-1), source)
    return embedding_bag(best, task.output.table, mode="sum", per_sample_weights=weights)
