"""A soft-beam step over a pool of candidates, with its gradients.

Only the best cells of each sentence enter the relaxation, with a bound on the mass that all others
would have had. The step equals `soft_beam_step` and `soft_beam_step_eos` to that bound.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from softbeam.search.decoders import PAD
from softbeam.search.soft.cells import (
    After,
    Before,
    Felt,
    Local,
    Task,
    best_cells,
    log_weight,
    stay_scores,
    threshold_gradient,
    threshold_gradients,
    thresholds,
    weight_gradient,
)
from softbeam.tensors import SharedTable, best_columns


class Pool(NamedTuple):
    """The best cells of each sentence, best first, and what sets thresholds if sequences end."""

    s: Float[Tensor, "batch cells"]
    cells: Int[Tensor, "batch cells"]  # prefix * vocab + token
    ends: "_Ending | None"
    wide: Int[Tensor, " some"] | None  # numbers of the sentences that need more; None if none do


def chosen_pool(task: Task, local: Local, before: Before) -> Pool | None:
    """As few cells as the tolerance allows; None if every sentence needs more than `task.pool`.

    Sentences that need more are the `wide` ones; their cells in the pool are not to be used. The
    host would have to wait for a device to know the numbers, so that elsewhere than on a CPU the
    pool has a fixed size, and the bound is compared with the tolerance after the steps.
    """
    ends = _ending(task, local, before) if task.eos is not None else None
    if local.scores.device.type != "cpu":
        return Pool(*best_cells(local.scores, local.offset, task.pool), ends, None)
    k, cells = task.how.k, local.offset.shape[1] * local.scores.shape[1]
    tolerance = max(task.how.form.tolerance, torch.finfo(local.scores.dtype).tiny)
    near = math.log(max(cells / tolerance, 1.0)) / task.how.alpha  # (m_k - s)^2 of a cell to keep
    if ends is None:
        low = best_cells(local.scores, local.offset, k)[0][:, -1:] - math.sqrt(near)
    else:
        low = ends.m[:, -1:] - (near - ends.mass / task.how.alpha).clamp_min_(0).sqrt_()
    scores = local.scores.view(*local.offset.shape, -1)
    needed = torch.gt(scores, (low - local.offset)[..., None]).sum((1, 2)) + 1
    wide = needed.gt(task.pool).nonzero()[:, 0]
    if len(wide) == len(needed) or (len(wide) and task.how.form.diagnostics):
        return None  # diagnostics want p of all cells
    most = int(needed.index_fill(0, wide, 1).amax())
    best = best_cells(local.scores, local.offset, most)
    return Pool(*best, ends, wide if len(wide) else None)


def pooled_step(
    task: Task, before: Before, local: Local, pool: Pool
) -> tuple[After, tuple[Tensor | None, ...]]:
    """Lines 5-17 of Algorithm 3 over a pool, and what `pooled_gradients` needs.

    With `eos`, staying finished is one more cell of each row, which counts as padding.
    """
    prev, vocab = before.score.shape[1], len(task.embedding.table)
    s, index, ends, _ = pool
    parent = index.div(vocab, rounding_mode="floor")
    token = torch.sub(index, parent, alpha=vocab)
    m = s[:, : task.how.k] if ends is None else ends.m  # line 7
    if ends is not None:
        s, parent, token = _with_stays(s, parent, token, ends.stay)
    x = s[:, None] - m[..., None]  # batch beam cells
    logits = torch.mul(x, x).mul_(-task.how.alpha)  # line 7: Algorithm 2, line 5
    if ends is not None:
        logits += _log_weights(before.finished, parent)[:, None]
    p = logits.softmax(-1)
    owner = torch.eq(parent[..., None], task.numbers[:prev]).to(s.dtype)
    back = torch.bmm(p, owner)  # line 9
    rows = task.embedding.table.index_select(0, token.view(-1)).view(*token.shape, -1)
    cost = task.cost.gather(1, token).add_(before.spent.gather(1, parent))
    ended = torch.zeros_like(back[..., 0])
    if ends is not None:
        ended = torch.bmm(p, _ends(task, token, prev)[..., None])[..., 0]
    least, others = s[:, index.shape[1] - 1], prev * vocab - index.shape[1]
    if not task.normalize:
        task.peaks.append(m if ends is None else ends.top)
    after = After(
        torch.bmm(p, rows).view(-1, rows.shape[2]),  # line 11
        (p * x).sum(-1).add_(m) if task.soft else m.clone(),  # line 13
        torch.bmm(p, cost[..., None])[..., 0],  # lines 12 and 17
        ended if ends is None else ended.clamp(0, 1),
        _dropped(task, least, m, logits, p, others),
        p,
        back,
    )
    kept = (index, token, owner, x, p, rows, cost, ended, local.softmax)
    return after, kept + ((None, None, None) if ends is None else ends[:3])


def pooled_gradients(
    task: Task, before: Before, kept: tuple[Any, ...], felt: Felt
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of source, score and finished mass; those of the tables go to the tables."""
    index, token, owner, x, p, rows, cost, ended, softmax, best, top, stay = kept
    (batch, prev), beam, cells = before.score.shape, p.shape[1], index.shape[1]
    g = torch.bmm(felt.emb.view(batch, beam, -1), rows.mT)  # d loss / d p
    g.baddbmm_(felt.back, owner.mT).addcmul_(felt.cost[..., None], cost[:, None])
    if best is not None:
        d_ended = felt.ended * ended.le(1)  # rounding may pass 1
        g.addcmul_(d_ended[..., None], _ends(task, token, prev)[:, None])
    slope = felt.score[..., None] if task.soft else felt.score.new_zeros(())
    g.addcmul_(slope, x)
    g -= (p * g).sum(-1, keepdim=True)
    d_x = torch.addcmul(slope, g, x, value=-2 * task.how.alpha).mul_(p)
    d_s, d_finished, d_stay = d_x.sum(1), None, None
    task.embedding.add_sparse(token, p, felt.emb)
    if best is None:
        d_s[:, :beam] += threshold_gradient(task, felt.score, d_x.sum(-1))
    else:
        through = threshold_gradients(task, (top, stay, before.finished), felt.score, d_x.sum(-1))
        going = torch.bmm((p * g).sum(1)[:, None], owner)[:, 0]
        stays = (p[..., cells:] * g[..., cells:]).sum(1)
        d_finished = weight_gradient(before.finished, going - stays, stays) + through[2]
        d_stay = d_s[:, cells:] + through[1]
        d_s, owner, token = d_s[:, :cells], owner[:, :cells], token[:, :cells]
    share = (owner * d_s[..., None]).mT  # batch prev cells
    d_offset = share.sum(-1)
    if best is not None:
        d_offset += through[0].sum(-1)
    if task.output is not None and softmax is None:
        d_source = _cell_gradient(task.output, before.source, token, share)
        if best is not None:
            d_source += _row_gradient(task.output, before.source, best, through[0])
    else:
        if softmax is None:
            d_source = torch.zeros_like(before.source)
        else:  # the gradient of -log Z
            d_source = softmax * d_offset.view(-1, 1).neg()
        d_source.view(batch, -1).scatter_add_(1, index, d_s)
        if best is not None:
            d_source.scatter_add_(1, best, through[0].reshape(best.shape))
        if task.output is not None:
            task.output.add(d_source, before.source)
            d_source = d_source @ task.output.table
    return d_source, d_offset if d_stay is None else d_offset + d_stay, d_finished


class _Ending(NamedTuple):
    """Thresholds where sequences end, and what they come from."""

    best: Int[Tensor, "rows n"]  # the best tokens of each row
    top: Float[Tensor, "batch prev n"]  # their scores
    stay: Float[Tensor, "batch prev"]
    m: Float[Tensor, "batch beam"]
    mass: Float[Tensor, "batch 1"]  # the log of a weight that some cell has, whatever the threshold


def _ending(task: Task, local: Local, before: Before) -> _Ending:
    """Thresholds of cells that are weighted by 1 - f, and by f for staying."""
    _, score, _, finished = before
    best = best_columns(local.scores, min(task.how.k, local.scores.shape[1]))
    top = local.scores.gather(1, best).view(*score.shape, -1) + local.offset[..., None]
    stay = stay_scores(task, score)
    m = thresholds(task, top, stay, finished)  # line 7: Algorithm 2, line 3
    going, stays = (log_weight(w)[:, None] for w in (1 - finished, finished))
    token = going - task.how.alpha * (top[:, None, :, 0] - m[..., None]).square()
    staying = stays - task.how.alpha * (stay[:, None] - m[..., None]).square()
    return _Ending(best, top, stay, m, token.maximum(staying).amax(-1).amin(-1, keepdim=True))


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
    output: SharedTable,
    hidden: Float[Tensor, "rows hidden"],
    token: Int[Tensor, "batch cells"],
    share: Float[Tensor, "batch prev cells"],
) -> Float[Tensor, "rows hidden"]:
    """The gradient of the hidden states, given that of the cells.

    `share` is the gradient of each prefix's own cells, 0 at those of the others.
    """
    output.add_sparse(token, share, hidden)
    rows = output.table.index_select(0, token.reshape(-1)).view(*token.shape, -1)
    return torch.bmm(share, rows).view_as(hidden)


def _row_gradient(
    output: SharedTable,
    hidden: Float[Tensor, "rows hidden"],
    best: Int[Tensor, "rows n"],
    d_top: Float[Tensor, "batch prev n"],
) -> Float[Tensor, "rows hidden"]:
    """The gradient of the hidden states, given that of each row's best tokens."""
    weights = d_top.reshape(best.shape).contiguous()
    output.add_sparse(best, weights[:, None], hidden)
    return embedding_bag(best, output.table, mode="sum", per_sample_weights=weights)
