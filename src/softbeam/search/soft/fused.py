"""Autograd functions that keep nothing of size k x k x V between steps.

The fast soft-beam step (`soft.fast`) is made of these: sums over the relaxed indices p that
recompute p backward, and tables whose gradients are gathered over the steps.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag


def blocked_topk(scores: Float[Tensor, "rows vocab"], n: int) -> Int[Tensor, "rows {n}"]:
    """Indices of each row's n largest scores, best first: those of `topk`, in less time.

    The n best cells lie in the n blocks with the best maxima.
    """
    rows, vocab = scores.shape
    block = 64
    blocks = vocab // block
    if vocab < 4096 or blocks < 4 * n:
        return scores.topk(n).indices
    whole = scores[:, : blocks * block].unflatten(1, (blocks, block))
    chosen = whole.amax(-1).topk(n).indices
    flat = chosen + blocks * torch.arange(rows, device=scores.device)[:, None]
    near = whole.reshape(-1, block).index_select(0, flat.flatten()).view(rows, -1)
    if blocks * block < vocab:
        near = torch.cat([near, scores[:, blocks * block :]], 1)
    best = near.topk(n).indices
    inside = chosen.gather(1, (best // block).clamp_max(n - 1)) * block + best % block
    return torch.where(best < n * block, inside, best - n * block + blocks * block)


class SharedTable:
    """A matrix that many steps read; its gradient is gathered over them and leaves once.

    Autograd would make a gradient as large as the matrix at every step and add them up. Here the
    steps take `token`, and their backward passes call `add` or `add_sparse`; when all of them
    are done, autograd asks the token for the one sum. What an unfinished backward pass left
    behind is dropped when another begins.
    """

    def __init__(self, table: Float[Tensor, "vocab emb"]):
        self.table = table.detach()
        self.token: Tensor = _Collect.apply(table, self)
        self._pass = -1
        self._clear()

    def _clear(self) -> None:
        self._sum: Tensor | None = None
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._sparse: list[tuple[Tensor, Tensor, Tensor]] = []

    def _begin(self) -> None:
        now = torch._C._current_graph_task_id()
        if now != self._pass:
            self._clear()
            self._pass = now

    def add(self, weights: Float[Tensor, "rows vocab"], rows: Float[Tensor, "rows emb"]) -> None:
        """Add weights^T rows: at once if the product is large, otherwise in one product later."""
        if not self.token.requires_grad:
            return
        self._begin()
        if weights.numel() < 1 << 20:
            self._dense.append((weights, rows))
            return
        if self._sum is None:
            self._sum = weights.T @ rows
        else:
            self._sum.addmm_(weights.T, rows)

    def add_sparse(
        self,
        lines: Int[Tensor, " cells"],
        sources: Int[Tensor, " cells"],
        weights: Float[Tensor, " cells"],
        rows: Float[Tensor, "rows emb"],
    ) -> None:
        """Add weights[i] rows[sources[i]] to line lines[i] of the table, for every i."""
        if not self.token.requires_grad:
            return
        self._begin()
        self._sparse.append((torch.stack([lines, sources]), weights, rows))

    def take(self) -> Tensor:
        """The sum of all additions of this backward pass."""
        self._begin()
        total = torch.zeros_like(self.table) if self._sum is None else self._sum
        if self._dense:
            weights, rows = (torch.cat(part) for part in zip(*self._dense, strict=True))
            total.addmm_(weights.T, rows)
        if self._sparse:
            total += self._sparse_sum()
        self._clear()
        return total

    def _sparse_sum(self) -> Tensor:
        cells, values, rows = zip(*self._sparse, strict=True)
        start = 0
        for cell, part in zip(cells, rows, strict=True):
            cell[1] += start
            start += len(part)
        matrix = torch.sparse_coo_tensor(
            torch.cat(cells, 1),
            torch.cat(values),
            (len(self.table), start),
            check_invariants=False,
        )
        return torch.sparse.mm(matrix, torch.cat(rows))


class _Collect(torch.autograd.Function):
    """The token of a `SharedTable`: forward nothing, backward the table's whole gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, shared: SharedTable) -> Tensor:
        ctx.shared = shared
        return table.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.shared.take(), None


class Readout(torch.autograd.Function):
    """hidden W^T + b, computed beforehand as `scores`; gradients of W and b go to their tables."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        w_token: Tensor,
        b_token: Tensor,
        scores: Tensor,
        w: SharedTable,
        b: SharedTable,
    ) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.tables = w, b
        return scores.view_as(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,), (w, b) = ctx.saved_tensors, ctx.tables
        zero = grad.new_zeros(())
        w.add(grad, hidden)
        b.add(grad, hidden.new_ones(len(hidden), 1))
        return grad @ w.table, zero, zero, None, None, None


class ReadoutAt(torch.autograd.Function):
    """The readout's scores at `index` only: its backward touches these rows of W and no others."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        w_token: Tensor,
        b_token: Tensor,
        scores: Tensor,
        index: Tensor,
        w: SharedTable,
        b: SharedTable,
    ) -> Tensor:
        ctx.save_for_backward(hidden, index)
        ctx.tables = w, b
        return scores.gather(-1, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (hidden, index), (w, b) = ctx.saved_tensors, ctx.tables
        zero = grad.new_zeros(())
        lines, weights = index.flatten(), grad.flatten()
        sources = torch.arange(len(hidden), device=index.device).repeat_interleave(index.shape[1])
        w.add_sparse(lines, sources, weights, hidden)
        b.add_sparse(lines, sources, weights, hidden.new_ones(len(hidden), 1))
        d_hidden = embedding_bag(index, w.table, mode="sum", per_sample_weights=grad)
        return d_hidden, zero, zero, None, None, None, None


class MixRows(torch.autograd.Function):
    """sum_n p[b, i, n] E[index[b, n]]: Algorithm 3, line 11, over a pool of candidates."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, token: Tensor, index: Tensor, table: SharedTable) -> Tensor:
        rows = table.table.index_select(0, index.flatten()).unflatten(0, index.shape)
        ctx.save_for_backward(p, index, rows)
        ctx.table = table
        return p @ rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, index, rows = ctx.saved_tensors
        felt = (p > 1e-3 * torch.finfo(p.dtype).eps).nonzero(as_tuple=True)  # of 1 in all
        lines, sources = index[felt[0], felt[2]], felt[0] * p.shape[1] + felt[1]
        ctx.table.add_sparse(lines, sources, p[felt], grad.flatten(0, 1))
        return grad @ rows.mT, grad.new_zeros(()), None, None


class Tap(torch.autograd.Function):
    """Scores, and those at `index`: the gradient of the latter joins the former's in place."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        return scores.view_as(scores), scores.gather(-1, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_at: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.scatter_add_(-1, index, grad_at), None


class SoftSums(torch.autograd.Function):
    """All sums over p that Algorithm 3 needs, without keeping p: lines 7, 9-13 and 17.

    With x = scores[b, j, v] - c[b, i, j] and p_i the softmax over (j, v) of bias_j - alpha x^2:
    the log of its normalizer, back pointers, sum p x, sum p E (line 11), sum p cost (line 12)
    and the mass on `eos`. Saves the scores; recomputes p in the backward pass, a few sentences at
    a time so that what is recomputed stays in the processor's cache. `costs` get no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        c: Tensor,
        bias: Tensor | None,
        token: Tensor,
        table: SharedTable,
        costs: Tensor,
        alpha: float,
        eos: int | None,
    ) -> tuple[Tensor, ...]:
        batch, prev, vocab = scores.shape
        beam = c.shape[1]
        word = scores.new_empty(batch, beam, vocab)
        part, log_top = scores.new_empty(batch, beam, prev), scores.new_zeros(batch, beam)
        rise, zero, floor = scores.new_empty(batch, beam), scores.new_zeros(()), _floor(scores)
        for b in _slices(batch, beam * prev * vocab):
            x = scores[b, None] - c[b, :, :, None]
            e = torch.addcmul(zero, x, x, value=-alpha)
            if bias is not None:
                e += bias[b, None, :, None]
            if bias is not None or alpha > 1e3:  # otherwise the largest is about 0, at m_i itself
                log_top[b] = e.amax((-1, -2))
                e -= log_top[b, :, None, None]
            e.clamp_min_(floor).exp_()
            part[b] = e.sum(-1)
            torch.sum(e, 2, out=word[b])
            rise[b] = x.mul_(e).sum((-1, -2))
        z = part.sum(-1)
        log_z, back, rise = z.log() + log_top, part / z[..., None], rise / z
        emb = (word.flatten(0, 1) @ table.table).unflatten(0, (batch, beam)) / z[..., None]
        cost = torch.einsum("bkv,bv->bk", word, costs) / z
        ended = torch.zeros_like(z) if eos is None else word[..., eos] / z
        ctx.save_for_backward(scores, c, bias, costs, log_z, back, rise, emb, cost, ended)
        ctx.table, ctx.alpha, ctx.eos = table, alpha, eos
        return log_z, back, rise, emb, cost, ended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, c, bias, costs, log_z, back, rise, emb, cost, ended = ctx.saved_tensors
        g_z, g_back, g_rise, g_emb, g_cost, g_ended = grads
        alpha, table = ctx.alpha, ctx.table
        mean = (back * g_back).sum(-1) + rise * g_rise + (emb * g_emb).sum(-1)
        mean = mean + cost * g_cost + ended * g_ended  # sum p G, from the sums themselves
        pair = g_back + (g_z - mean)[..., None]
        g_word = (g_emb.flatten(0, 1) @ table.table.T).unflatten(0, g_z.shape)
        g_word.addcmul_(g_cost[..., None], costs[:, None])
        if ctx.eos is not None:
            g_word[..., ctx.eos] += g_ended
        d_scores, word = torch.empty_like(scores), torch.empty_like(g_word)
        d_c, d_bias = torch.empty_like(c), None if bias is None else torch.empty_like(bias)
        for b in _slices(len(scores), c[0].numel() * scores.shape[-1]):
            base = -log_z[b, :, None, None]
            base = base if bias is None else base + bias[b, None, :, None]
            x = scores[b, None] - c[b, :, :, None]
            p = torch.addcmul(base, x, x, value=-alpha).clamp_min_(_floor(x)).exp_()
            torch.sum(p, 2, out=word[b])
            slope = g_rise[b, :, None, None]
            g = torch.addcmul(pair[b, :, :, None], x, slope).add_(g_word[b, :, None])  # G - mean
            if d_bias is not None:
                d_bias[b] = torch.einsum("bkjv,bkjv->bj", p, g)
            torch.addcmul(slope, g, x, value=-2 * alpha, out=g).mul_(p)  # d loss / d x
            torch.sum(g, 1, out=d_scores[b])
            d_c[b] = g.sum(-1).neg_()
        table.add(word.flatten(0, 1), g_emb.flatten(0, 1))
        return d_scores, d_c, d_bias, g_z.new_zeros(()), None, None, None, None


def _floor(like: Tensor) -> float:
    """A negligible log weight whose exp is not denormal: denormals cost ten times as much."""
    return -60.0 if torch.finfo(like.dtype).bits < 64 else -300.0


def _slices(batch: int, each: int, cells: int = 1 << 18) -> list[slice]:
    """Slices of a batch that hold about `cells` cells."""
    size = max(1, cells // each)
    return [slice(start, start + size) for start in range(0, batch, size)]
