"""Fast forms of a soft-beam step, equal to `soft_beam_step` and `soft_beam_step_eos` in value.

They keep nothing of size k x k x V: p is recomputed in the backward pass, or only a pool of
candidates enters the relaxation. `search.soft.loop.soft_beams` calls `fast_step`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.search.decoders import PAD, LocallyNormalized, checked_scores
from softbeam.search.relaxations import soft_indices, weighted_soft_indices, weighted_top_values
from softbeam.search.soft.beam import Relaxation, SoftBeam, lowest, within_reach
from softbeam.search.soft.fused import (
    MixRows,
    Readout,
    ReadoutAt,
    SharedTable,
    SoftSums,
    Tap,
    blocked_topk,
)
from softbeam.tensors import mix
from softbeam.types import Decoder, ReadoutDecoder, State


class _Cells(NamedTuple):
    """Candidate scores raw + offset, and how to take them with a gradient: all or a few."""

    raw: Float[Tensor, "batch prev vocab"]  # values only
    offset: Float[Tensor, "batch prev"]  # of a row's cells: its score, less log Z if normalized
    whole: Callable[[], Tensor]  # () -> batch prev vocab
    at: Callable[[Tensor], Tensor]  # indices (batch prev n) -> their scores


class Shared:
    """The decoder of all steps of a soft beam, and the gathered gradients of its tables."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.inner, self.normalize = decoder, None, False
        self.table = SharedTable(decoder.embedding)
        self.pad = decoder.embedding[PAD]
        inner = decoder.decoder if type(decoder) is LocallyNormalized else decoder
        if isinstance(inner, ReadoutDecoder):
            weight, bias = inner.output_layer
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            if bool(bias.isneginf().any()):  # forbidden tokens need the plain step
                return
            self.inner, self.normalize = inner, inner is not decoder
            self.tables = SharedTable(weight), SharedTable(bias[:, None])

    def cells(self, beam: SoftBeam, augment: Tensor | None, alpha: float) -> tuple[_Cells, State]:
        """Algorithm 3, line 5; `augment` (batch vocab) is added as in Sec. 2.5."""
        if self.inner is not None:
            return self.linear_cells(self.inner, beam, augment)
        local, state = self.decoder.step(beam.state, beam.emb)
        local = within_reach(local, beam, alpha).unflatten(0, beam.score.shape)
        local = local if augment is None else local + augment[:, None]
        return _Cells(local.detach(), beam.score, lambda: local, partial(local.gather, -1)), state

    def linear_cells(
        self, decoder: ReadoutDecoder, beam: SoftBeam, augment: Tensor | None
    ) -> tuple[_Cells, State]:
        """Algorithm 3, line 5, of a decoder that shows its output layer."""
        (w, b), shape, offset = self.tables, beam.score.shape, beam.score
        hidden, state = decoder.advance(beam.state, beam.emb)
        with torch.no_grad():
            raw = checked_scores(torch.addmm(b.table[:, 0], hidden, w.table.T))
        extra = None if augment is None else augment[:, None].expand(*shape, -1)

        def whole() -> Tensor:
            scores = Readout.apply(hidden, w.token, b.token, raw, w, b).unflatten(0, shape)
            return scores if extra is None else scores + extra

        def at(index: Tensor) -> Tensor:
            flat = index.flatten(0, 1)
            scores = ReadoutAt.apply(hidden, w.token, b.token, raw, flat, w, b).unflatten(0, shape)
            return scores if extra is None else scores + extra.gather(-1, index)

        values = raw.unflatten(0, shape)
        values = values if extra is None else values + extra
        if self.normalize:  # log Z has a gradient in every cell
            scores = Readout.apply(hidden, w.token, b.token, raw, w, b).unflatten(0, shape)
            offset = offset - scores.logsumexp(-1)
            scores = scores if extra is None else scores + extra
            return _Cells(values, offset, lambda: scores, partial(scores.gather, -1)), state
        return _Cells(values, offset, whole, at), state


class _Sums(NamedTuple):
    """Sums over the cells that a step takes from p."""

    m: Float[Tensor, "batch beam"]
    back: Float[Tensor, "batch beam prev"]
    rise: Float[Tensor, "batch beam"]  # sum p (s - m)
    emb: Float[Tensor, "batch beam emb"]
    cost: Float[Tensor, "batch beam"]
    ended: Float[Tensor, "batch beam"]
    p: Tensor | None


def fast_step(
    shared: Shared,
    beam: SoftBeam,
    cost: Tensor,
    relaxation: Relaxation,
    eos: int | None,
) -> SoftBeam:
    """`soft_beam_step` or `soft_beam_step_eos`, dense or over a pool of candidates."""
    k, alpha, cost_scale, form = relaxation
    cells, state = shared.cells(beam, cost_scale * cost if cost_scale else None, alpha)
    stay = None if eos is None else beam.score + cost_scale * cost[:, PAD, None]
    step = _Step(shared, beam, cost, stay, relaxation, eos)
    index, dropped = step.pool(cells)
    sums = step.dense(cells) if index is None else step.pooled(cells, index)
    return beam._replace(
        state=state if k == beam.score.shape[1] == 1 else mix(state, sums.back),  # its weight is 1
        emb=sums.emb.flatten(0, 1),
        score=sums.m + sums.rise if form.score == "soft" else sums.m,
        cost=sums.cost + (sums.back @ beam.cost[..., None])[..., 0],
        finished=sums.ended.clamp(0, 1),
        real=torch.ones_like(sums.m, dtype=torch.bool),
        dropped=beam.dropped.maximum(dropped),
        p=sums.p,
    )


class _Step(NamedTuple):
    """Lines 7-13 and 17 of Algorithm 3 for one step, with finished mass where `stay` is given."""

    shared: Shared
    beam: SoftBeam
    cost: Tensor
    stay: Tensor | None  # the score of staying finished, batch prev
    how: Relaxation
    eos: int | None

    def thresholds(self, top: Float[Tensor, "batch prev n"]) -> Tensor:
        """m, from at least the k best cells of each row."""
        if self.stay is None:
            return top.flatten(1).topk(self.how.k).values
        s, weight = self.with_stay(top[..., : self.how.k])
        return weighted_top_values(s.flatten(1), weight.flatten(1), self.how.k)

    def with_stay(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Cells and their weights, 'stay' in the last column."""
        assert self.stay is not None
        f = self.beam.finished[:, :, None]
        weight = torch.cat([(1 - f).expand_as(s), f], -1)
        return torch.cat([s, self.stay[..., None]], -1), weight

    def indices(self, s: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """p over the cells, and the cells; with 'stay' in the last column where there is one."""
        if self.stay is None:
            return soft_indices(s, m, self.how.alpha), s
        s, weight = self.with_stay(s)
        return weighted_soft_indices(s, weight, m, self.how.alpha), s

    def pool(self, cells: _Cells) -> tuple[Tensor | None, Tensor]:
        """Indices of the smallest pool, at most `candidates` a row, that holds all but `tolerance`.

        None where no pool does, or all cells are wanted; and the bound of each row.
        """
        limit, vocab = self.how.form.candidates or 0, cells.raw.shape[-1]
        n = min(16, limit)
        while limit and max(n, self.how.k) < vocab:
            index = self.best(cells, max(n, self.how.k))
            dropped = self.dropped(cells, index)
            worst = dropped[:, self.how.k :].amax(0).tolist()
            for size, value in enumerate(worst, self.how.k):
                if value <= self.how.form.tolerance:
                    return index[..., :size], dropped[:, size]
            if n == limit:
                break
            n = min(2 * n, limit)
        return None, torch.zeros_like(self.beam.dropped)

    def best(self, cells: _Cells, n: int) -> Int[Tensor, "batch prev n"]:
        """The n best tokens of each row."""
        return blocked_topk(cells.raw.flatten(0, 1), n).unflatten(0, self.beam.score.shape)

    @torch.no_grad()
    def dropped(self, cells: _Cells, index: Int[Tensor, "batch prev n"]) -> Tensor:
        """Upper bounds on the mass that pools of 0..n candidates leave out: batch, n + 1.

        The mass at `index` is known. Any other cell of row j scores at most tau_j, the least at
        `index`, and while tau_j <= m_i its weight is at most exp(-alpha (m_i - tau_j)^2).
        """
        s = cells.raw.gather(-1, index) + cells.offset[..., None]
        m = self.thresholds(s)[:, :, None]
        inside = (-self.how.alpha * (s[:, None] - m[..., None]).square()).exp()
        outside = (-self.how.alpha * (m - s[:, None, :, -1]).clamp_min(0).square()).exp()
        outside = outside * (cells.raw.shape[-1] - s.shape[-1])
        stay: float | Tensor = 0.0
        if self.stay is not None:
            going = (1 - self.beam.finished)[:, None]
            inside, outside = inside * going[..., None], outside * going
            stay = (-self.how.alpha * (self.stay[:, None] - m).square()).exp()
            stay = (stay * self.beam.finished[:, None]).sum(-1, keepdim=True)
        parts = torch.cat([inside.sum(-2), outside.sum(-1, keepdim=True)], -1)
        left_out = parts.flip(-1).cumsum(-1).flip(-1)  # cells from the n-th on
        return (left_out / (left_out[..., :1] + stay)).amax(1)

    def pooled(self, cells: _Cells, index: Int[Tensor, "batch prev n"]) -> _Sums:
        """Over the cells at `index` only, in plain autograd; rows of E are gathered."""
        s = cells.at(index) + cells.offset[..., None]
        m = self.thresholds(s)
        threshold = m.detach() if self.how.form.detach_threshold else m
        p, s = self.indices(s, threshold)
        token = p[..., : index.shape[-1]].flatten(2)
        flat, table = index.flatten(1), self.shared.table
        back, emb = p.sum(-1), MixRows.apply(token, table.token, flat, table)
        cost = (token @ self.cost.gather(1, flat)[..., None])[..., 0]
        ended = torch.zeros_like(m)
        if self.stay is not None:
            stay = p[..., -1].sum(-1)
            emb = emb + stay[..., None] * self.shared.pad
            cost = cost + stay * self.cost[:, PAD, None]
            ended = stay + (token * torch.eq(flat, self.eos or 0)[:, None]).sum(-1)
        above = s[:, None] - threshold[:, :, None, None]
        rise = (p * above).sum((-1, -2)) + (threshold - m)
        return _Sums(m, back, rise, emb, cost, ended, p.detach())

    def dense(self, cells: _Cells) -> _Sums:
        """Over all cells, by `search.soft.fused.SoftSums`."""
        best = self.best(cells, min(self.how.k, cells.raw.shape[-1]))
        scores, top = Tap.apply(cells.whole(), best)
        m = self.thresholds(top + cells.offset[..., None])
        threshold = m.detach() if self.how.form.detach_threshold else m
        c = threshold[:, :, None] - cells.offset[:, None, :]
        bias = None if self.stay is None else _log_weight(1 - self.beam.finished)
        table = self.shared.table
        log_z, back, rise, emb, cost, ended = SoftSums.apply(
            scores, c, bias, table.token, table, self.cost, self.how.alpha, self.eos
        )
        if self.stay is not None:
            above = self.stay[:, None] - threshold[:, :, None]  # batch beam prev
            logit = _log_weight(self.beam.finished)[:, None] - self.how.alpha * above.square()
            total = torch.logaddexp(log_z, logit.logsumexp(-1))
            going, stays = (log_z - total).exp(), (logit - total[..., None]).exp()
            stay = stays.sum(-1)
            back = going[..., None] * back + stays
            rise = going * rise + (stays * above).sum(-1)
            emb = going[..., None] * emb + stay[..., None] * self.shared.pad
            cost = going * cost + stay * self.cost[:, PAD, None]
            ended = going * ended + stay
        p = None
        if self.how.form.diagnostics:
            with torch.no_grad():
                p = self.indices(cells.raw + cells.offset[..., None], m)[0]
        return _Sums(m, back, rise + (threshold - m), emb, cost, ended, p)


def _log_weight(weight: Tensor) -> Tensor:
    """log w; where w is 0, a finite number that a softmax turns into 0, without a gradient."""
    tiny = torch.finfo(weight.dtype).tiny
    return torch.where(weight > tiny, weight.clamp_min(tiny).log(), lowest(weight))
