"""Single steps of an LSTM whose weight gradients are computed once for all steps of a search."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softbeam.tensors import SharedTable

Layers = tuple[tuple[Tensor, Tensor], ...]  # (h, c) of each layer


class LstmSteps:
    """The layers of an LSTM during one search: they run a step at a time.

    Args:
        lstm: the layers.
        dropout: applied between the layers.
        read: the first layer's input columns that a step is given; the product of the others with
            their weights, and the bias, are given to each step as `base`. None for all columns.
        projected: whether the input of a step is already the product with its weights.
    """

    def __init__(
        self, lstm: nn.LSTM, dropout: nn.Module, *, read: int | None = None, projected: bool = False
    ):
        self.dropout, self.projected = dropout, projected
        self.tables = []
        for number, (w_ih, w_hh, b_ih, b_hh) in enumerate(lstm.all_weights):
            columns = w_ih[:, :read] if number == 0 else w_ih
            weights: list[Tensor] = [w_hh] if projected and number == 0 else [columns, w_hh]
            bias = None if number == 0 and read is not None else b_ih + b_hh
            self.tables.append(SharedTable(torch.cat(weights, 1), bias))

    def __call__(self, value: Tensor, state: Layers, base: Tensor | None = None) -> Layers:
        """Run one step. `base` (sources, 4 hidden) is added to the first layer's gates."""
        new = []
        for number, ((h, c), table) in enumerate(zip(state, self.tables, strict=True)):
            value = value if number == 0 else self.dropout(value)
            given = base if number == 0 else None
            projected = self.projected and number == 0
            value, c = LstmCell.apply(value, h, c, given, table.token, table, projected)
            new.append((value, c))
        return tuple(new)


class LstmCell(torch.autograd.Function):
    """`torch.lstm_cell`: one function forward and backward; weight gradients go to their table."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        h: Tensor,
        c: Tensor,
        base: Tensor | None,
        token: Tensor,
        table: SharedTable,
        projected: bool,
    ) -> tuple[Tensor, Tensor]:
        read = h if projected else torch.cat([value, h], 1)
        if table.bias is None:
            gates = read @ table.table.T
        else:
            gates = torch.addmm(table.bias, read, table.table.T)
        gates = gates.add_(value) if projected else gates
        if base is not None:
            gates.view(len(base), -1, gates.shape[1]).add_(base[:, None])
        size = h.shape[1]
        gates[:, : 2 * size].sigmoid_()
        gates[:, 2 * size : 3 * size].tanh_()
        gates[:, 3 * size :].sigmoid_()
        i, f, g, o = gates.chunk(4, 1)
        new = torch.addcmul(f * c, i, g)
        tanh = new.tanh()
        ctx.save_for_backward(read, c, gates, tanh)
        ctx.table, ctx.projected = table, projected
        ctx.sources = None if base is None else len(base)
        return o * tanh, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        read, c, gates, tanh = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        d_c = d_c + torch.ops.aten.tanh_backward(d_h * o, tanh)
        grad = torch.empty_like(gates)
        size = c.shape[1]
        d_i, d_f, d_g, d_o = grad.chunk(4, 1)
        torch.mul(d_c, g, out=d_i)
        torch.mul(d_c, c, out=d_f)
        torch.ops.aten.tanh_backward(d_c * i, g, grad_input=d_g)
        torch.mul(d_h, tanh, out=d_o)
        for part in (slice(0, 2 * size), slice(3 * size, None)):
            torch.ops.aten.sigmoid_backward(grad[:, part], gates[:, part], grad_input=grad[:, part])
        ctx.table.add(grad, read)
        d_read = grad @ ctx.table.table
        d_value, d_h = grad, d_read
        if not ctx.projected:
            d_value, d_h = d_read.split([d_read.shape[1] - size, size], 1)
        d_base = None
        if ctx.sources is not None:
            d_base = grad.view(ctx.sources, -1, grad.shape[1]).sum(1)
        return d_value, d_h, d_c * f, d_base, None, None, None
