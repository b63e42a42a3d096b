"""Weights that many steps of a search read, whose gradient is computed once for all of them."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

PENDING = 1 << 22  # numbers of gradients that wait for one common product


class SharedTable:
    """A matrix, and a bias if it has one, that many steps read; gradients leave once for all.

    Autograd would make a gradient as large as the matrix at every step and add them up. Here the
    steps take `token`, and their backward passes call `add` or `add_sparse`; when all of them
    are done, autograd asks the token for the one sum. What an unfinished backward pass left
    behind is dropped when another begins.
    """

    def __init__(self, table: Float[Tensor, "lines width"], bias: Tensor | None = None):
        self.table = table.detach()
        self.bias = None if bias is None else bias.detach()
        self.token: Tensor = _Collect.apply(table, bias, self)
        self._pass = -1
        self._clear()

    def _clear(self) -> None:
        self._sum: Tensor | None = None
        self._bias_sum: Tensor | None = None
        self._pending = 0
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._sparse: list[tuple[Tensor, Tensor, Tensor]] = []

    def _begin(self) -> None:
        now = torch._C._current_graph_task_id()
        if now != self._pass:
            self._clear()
            self._pass = now

    def add(self, weights: Float[Tensor, "rows lines"], rows: Float[Tensor, "rows width"]) -> None:
        """Add weights^T rows, and the sums of the weights to the bias's gradient."""
        if not self.token.requires_grad:
            return
        self._begin()
        self._dense.append((weights, rows))
        self._pending += weights.numel()
        if self._pending > PENDING:
            self._multiply()

    def add_sparse(
        self,
        lines: Int[Tensor, " cells"],
        sources: Int[Tensor, " cells"],
        weights: Float[Tensor, " cells"],
        rows: Float[Tensor, "rows width"],
    ) -> None:
        """Add weights[i] rows[sources[i]] to line lines[i] of the table, for every i."""
        if not self.token.requires_grad:
            return
        self._begin()
        self._sparse.append((torch.stack([lines, sources]), weights, rows))

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The sums of all additions of this backward pass, of the table and of the bias."""
        self._begin()
        self._multiply()
        if self._sparse:
            self._add_cells()
        total, bias = self._sum, self._bias_sum
        self._clear()
        total = torch.zeros_like(self.table) if total is None else total
        if self.bias is not None and bias is None:
            bias = torch.zeros_like(self.bias)
        return total, bias

    def _multiply(self) -> None:
        """Multiply the pending gradients by their rows, in one product."""
        if not self._dense:
            return
        pairs = zip(*self._dense, strict=True)
        weights, rows = (p[0] if len(p) == 1 else torch.cat(p) for p in pairs)
        if self._sum is None:
            self._sum = weights.T @ rows
        else:
            self._sum.addmm_(weights.T, rows)
        if self.bias is not None:
            sums = weights.sum(0)
            self._bias_sum = sums if self._bias_sum is None else self._bias_sum.add_(sums)
        self._dense, self._pending = [], 0

    def _add_cells(self) -> None:
        """Add the gradients of single lines in one sparse product; those below rounding are cut."""
        cells, values, rows = zip(*self._sparse, strict=True)
        start = 0
        for cell, part in zip(cells, rows, strict=True):
            cell[1] += start
            start += len(part)
        index, weights = torch.cat(cells, 1), torch.cat(values)
        size = weights.abs()
        felt = (size > 1e-3 * torch.finfo(size.dtype).eps * size.max()).nonzero()[:, 0]
        index, weights = index.index_select(1, felt), weights.index_select(0, felt)
        matrix = torch.sparse_coo_tensor(
            index, weights, (len(self.table), start), check_invariants=False
        )
        total = torch.sparse.mm(matrix, torch.cat(rows))
        self._sum = total if self._sum is None else self._sum.add_(total)
        if self.bias is not None:
            if self._bias_sum is None:
                self._bias_sum = torch.zeros_like(self.bias)
            self._bias_sum.index_add_(0, index[0], weights)


class _Collect(torch.autograd.Function):
    """The token of a `SharedTable`: forward nothing, backward the table's whole gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, bias: Tensor | None, shared: SharedTable) -> Tensor:
        ctx.shared = shared
        return table.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        return *ctx.shared.take(), None
