"""A soft-beam step over all cells, with its gradients; p is not kept but recomputed.

The step equals `soft_beam_step` and `soft_beam_step_eos`.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from softbeam.search.decoders import PAD
from softbeam.search.relaxations import soft_indices, weighted_soft_indices
from softbeam.search.soft.cells import (
    After,
    Before,
    Felt,
    Local,
    Task,
    log_weight,
    stay_scores,
    threshold_gradients,
    thresholds,
    weight_gradient,
)
from softbeam.tensors import best_columns


def dense_step(task: Task, before: Before, local: Local) -> tuple[After, tuple[Tensor | None, ...]]:
    """Lines 5-17 of Algorithm 3 over all cells, and what `dense_gradients` needs."""
    (_, score, spent, finished), (batch, prev) = before, before.score.shape
    best = best_columns(local.scores, min(task.how.k, local.scores.shape[1]))
    top = local.scores.gather(1, best).view(batch, prev, -1) + local.offset[..., None]
    stay = stay_scores(task, score)
    m = thresholds(task, top, stay, finished)  # line 7: Algorithm 2, line 3
    scores = local.scores.view(batch, prev, -1)
    cells = _Cells(task, scores, m, local.offset, stay, finished)
    if not task.normalize:
        task.peaks.append(top)
    word, part, rise, log_top = cells.sums()
    ended = torch.zeros_like(m)
    if task.eos is not None:
        stays = cells.stays(log_top)
        part, rise = part + stays, rise + (stays * cells.above()).sum(-1)
        word[..., PAD] += stays.sum(-1)
        ended = word[..., task.eos] + stays.sum(-1)
    z = part.sum(-1)
    back, rise, ended = part / z[..., None], rise / z, ended / z  # line 9
    emb = (word.flatten(0, 1) @ task.embedding.table) / z.view(-1, 1)
    cost = (torch.bmm(word, task.cost[..., None]) / z[..., None])[..., 0]
    cost += torch.bmm(back, spent[..., None])[..., 0]
    p = cells.indices() if task.how.form.diagnostics else m.new_empty(0)
    new_score = rise + m if task.soft else m  # line 13
    after = After(emb, new_score, cost, ended.clamp(0, 1), m.new_zeros(batch), p, back)
    log_z = z.log().add_(log_top)
    return after, (best, top, log_z, back, rise, emb, cost, ended, *cells[1:5])


def dense_gradients(
    task: Task, before: Before, kept: tuple[Any, ...], felt: Felt
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of source, score and finished mass; those of the tables go to the tables."""
    best, top, log_z, back, rise, emb, cost, ended = kept[:8]
    scores, m, offset, stay = kept[8:]
    cells, pair = _Cells(task, scores, m, offset, stay, before.finished), felt.back
    d_emb, d_score, d_cost = felt[:3]
    d_rise = d_score if task.soft else torch.zeros_like(d_score)
    d_ended = felt.ended * ended.le(1)  # rounding may pass 1
    mean = (back * pair).sum(-1) + rise * d_rise + cost * d_cost + ended * d_ended
    mean += (emb * d_emb).sum(-1).view_as(mean)  # sum p G, from the sums themselves
    pair += d_cost[..., None] * before.spent[:, None] - mean[..., None]
    d_word = (d_emb @ task.embedding.table.T).view(*mean.shape, -1)
    d_word.addcmul_(d_cost[..., None], task.cost[:, None])
    if task.eos is not None:
        d_word[..., task.eos] += d_ended
    word, d_scores, d_c, d_bias = cells.gradients(log_z, pair, d_word, d_rise)
    d_offset, d_x, d_finished, d_before = -d_c.sum(1), -d_c.sum(-1), None, None
    if task.eos is not None and d_bias is not None:
        stays, above, slope = cells.stays(log_z), cells.above(), d_rise[..., None]
        word[..., PAD] += stays.sum(-1)
        g = (pair + (d_word[..., PAD] + d_ended)[..., None]).addcmul_(slope, above)
        d_above = torch.addcmul(slope, g, above, value=-2 * task.how.alpha).mul_(stays)
        d_x, d_before = d_x + d_above.sum(-1), d_above.sum(1)
        d_finished = weight_gradient(cells.finished, d_bias, (stays * g).sum(1))
    task.embedding.add(word.flatten(0, 1), d_emb)
    through = threshold_gradients(task, (top, cells.stay, cells.finished), d_score, d_x)
    d_scores.view(len(best), -1).scatter_add_(1, best, through[0].view(len(best), -1))
    d_offset += through[0].sum(-1)
    if d_before is not None and d_finished is not None:
        d_before, d_finished = d_before + through[1], d_finished + through[2]
    d_source = _source_gradient(task, before, d_scores, d_offset, cells)
    return d_source, d_offset if d_before is None else d_offset + d_before, d_finished


class _Cells(NamedTuple):
    """All cells of a step, with x = scores - c for a token, and their weights exp(-alpha x^2).

    The sums work on a few sentences at a time, so that what they recompute stays in the
    processor's cache.
    """

    task: Task
    scores: Float[Tensor, "batch prev vocab"]
    m: Float[Tensor, "batch beam"]
    offset: Float[Tensor, "batch prev"]
    stay: Float[Tensor, "batch prev"]
    finished: Float[Tensor, "batch prev"]

    def above(self) -> Float[Tensor, "batch beam prev"]:
        """x of staying."""
        return self.stay[:, None] - self.m[:, :, None]

    def stay_logits(self) -> Float[Tensor, "batch beam prev"]:
        """Log weights of staying."""
        distance = self.above().square().mul_(-self.task.how.alpha)
        return distance.add_(log_weight(self.finished)[:, None])

    def stays(self, log_z: Float[Tensor, "batch beam"]) -> Float[Tensor, "batch beam prev"]:
        """Weights of staying, divided by exp(log_z)."""
        return (self.stay_logits() - log_z[..., None]).exp_()

    def parts(self) -> tuple[Tensor, Tensor | None, list[slice]]:
        """c, log(1 - f) if sequences end, and slices of the batch."""
        c = self.m[:, :, None] - self.offset[:, None]
        bias = None if self.task.eos is None else log_weight(1 - self.finished)
        return c, bias, _slices(len(c), c[0].numel() * self.scores.shape[-1])

    def sums(self) -> tuple[Tensor, ...]:
        """Sums of the tokens' weights: of each token, of each row, times x; and their log scale."""
        (c, bias, slices), alpha = self.parts(), self.task.how.alpha
        word = c.new_empty(*c.shape[:2], self.scores.shape[-1])
        part, rise = torch.empty_like(c), torch.empty_like(self.m)
        log_top, zero, floor = torch.zeros_like(self.m), c.new_zeros(()), _floor(c)
        if bias is not None:
            log_top = self.stay_logits().amax(-1)
        for b in slices:
            x = self.scores[b, None] - c[b, :, :, None]
            e = torch.addcmul(zero, x, x, value=-alpha)
            if bias is not None:
                e += bias[b, None, :, None]
                log_top[b] = log_top[b].maximum(e.amax((-1, -2)))
            elif alpha > 1e3:  # otherwise the largest is about 0, at m_i itself
                log_top[b] = e.amax((-1, -2))
            if bias is not None or alpha > 1e3:
                e -= log_top[b, :, None, None]
            e.clamp_min_(floor).exp_()
            torch.sum(e, 3, out=part[b])
            torch.sum(e, 2, out=word[b])
            torch.sum(x.mul_(e), (2, 3), out=rise[b])
        return word, part, rise, log_top

    def gradients(
        self,
        log_z: Float[Tensor, "batch beam"],
        pair: Float[Tensor, "batch beam prev"],
        d_word: Float[Tensor, "batch beam vocab"],
        d_rise: Float[Tensor, "batch beam"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """p summed over rows, and gradients of the scores, of c and of log(1 - f).

        d loss / d p, less its mean, is pair + d_word + d_rise x.
        """
        (c, bias, slices), alpha = self.parts(), self.task.how.alpha
        d_scores, word, d_c = map(torch.empty_like, (self.scores, d_word, c))
        d_bias, floor = None if bias is None else torch.empty_like(bias), _floor(c)
        for b in slices:
            base = -log_z[b, :, None, None]
            base = base if bias is None else base + bias[b, None, :, None]
            x = self.scores[b, None] - c[b, :, :, None]
            p = torch.addcmul(base, x, x, value=-alpha).clamp_min_(floor).exp_()
            torch.sum(p, 2, out=word[b])
            slope = d_rise[b, :, None, None]
            g = torch.addcmul(pair[b, :, :, None], x, slope).add_(d_word[b, :, None])
            if d_bias is not None:
                d_bias[b] = (p * g).sum((1, 3))
            torch.addcmul(slope, g, x, value=-2 * alpha, out=g).mul_(p)  # d loss / d x
            torch.sum(g, 1, out=d_scores[b])
            torch.sum(g, 3, out=d_c[b])
        return word, d_scores, d_c.neg_(), d_bias

    def indices(self) -> Tensor:
        """p itself, with staying in the last column if sequences end."""
        s, alpha = self.scores + self.offset[..., None], self.task.how.alpha
        if self.task.eos is None:
            return soft_indices(s, self.m, alpha)
        f = self.finished[..., None]
        weight = torch.cat([(1 - f).expand_as(s), f], -1)
        s = torch.cat([s, self.stay[..., None]], -1)
        return weighted_soft_indices(s, weight, self.m, alpha)


def _source_gradient(
    task: Task, before: Before, d_scores: Tensor, d_offset: Tensor, cells: _Cells
) -> Tensor:
    """The gradient of the hidden states, or of the scores themselves; log Z adds a softmax."""
    if task.output is None:
        return d_scores.flatten(0, 1)
    if task.normalize:
        raw = cells.scores
        if task.how.cost_scale:
            raw = raw - task.how.cost_scale * task.cost[:, None]
        softmax = (raw - (before.score - cells.offset)[..., None]).exp_()
        d_scores.addcmul_(softmax, d_offset[..., None], value=-1)
    d_scores = d_scores.flatten(0, 1)
    task.output.add(d_scores, before.source)
    return d_scores @ task.output.table


def _floor(like: Tensor) -> float:
    """A negligible log weight whose exp is not denormal: denormals cost ten times as much."""
    return -60.0 if torch.finfo(like.dtype).bits < 64 else -300.0


def _slices(batch: int, each: int, cells: int = 1 << 18) -> list[slice]:
    """Slices of a batch that hold about `cells` cells."""
    size = max(1, cells // each)
    return [slice(start, start + size) for start in range(0, batch, size)]
