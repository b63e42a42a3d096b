"""Single steps of an LSTM whose weight gradients are computed once for all steps of a search."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softbeam.tensors import SharedTable

Layers = tuple[Tensor, ...]  # of each layer, h and c side by side: one product mixes both


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

    def __call__(
        self, value: Tensor, state: Layers, base: Tensor | None = None
    ) -> tuple[Tensor, Layers]:
        """Run one step; returns the last layer's h and the state.

        `base` (sources, 4 hidden) is added to the first layer's gates.
        """
        new = []
        for number, (h_c, table) in enumerate(zip(state, self.tables, strict=True)):
            value = value if number == 0 else self.dropout(value)
            given = base if number == 0 else None
            projected = self.projected and number == 0
            value, h_c = LstmCell.apply(value, h_c, given, table.token, table, projected)
            new.append(h_c)
        return value, tuple(new)


class LstmCell(torch.autograd.Function):
    """`torch.lstm_cell`: one function forward and backward; weight gradients go to their table.

    tanh(x) is 2 sigmoid(2x) - 1, which takes a third of the time, so that one sigmoid is enough.
    """

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        h_c: Tensor,
        base: Tensor | None,
        token: Tensor,
        table: SharedTable,
        projected: bool,
    ) -> tuple[Tensor, Tensor]:
        size = h_c.shape[1] // 2
        h, c = h_c.chunk(2, 1)
        read = h if projected else torch.cat([value, h], 1)
        gates = table.product(read)
        if projected:
            gates += value
        if base is not None:
            gates.view(len(base), -1, 4 * size).add_(base[:, None])
        gates[:, 2 * size : 3 * size].mul_(2)
        i, f, g, o = gates.sigmoid_().chunk(4, 1)
        new_c = torch.addcmul(f * c, i, (g + g).sub_(1))
        tanh = (new_c + new_c).sigmoid_().mul_(2).sub_(1)
        new_h = o * tanh
        ctx.save_for_backward(read, c, gates, tanh)
        ctx.table, ctx.projected = table, projected
        ctx.sources = None if base is None else len(base)
        return new_h, torch.cat([new_h, new_c], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h: Tensor, d_h_c: Tensor) -> tuple[Tensor | None, ...]:
        read, c, gates, tanh = ctx.saved_tensors
        size = c.shape[1]
        i, f, g, o = gates.chunk(4, 1)
        more_h, d_c = d_h_c.chunk(2, 1)
        d_h = d_h + more_h
        d_c = torch.ops.aten.tanh_backward(d_h * o, tanh).add_(d_c)
        grad = torch.empty_like(gates)
        d_i, d_f, d_g, d_o = grad.chunk(4, 1)
        torch.mul(d_c, (g + g).sub_(1), out=d_i)
        torch.mul(d_c, c, out=d_f)
        torch.mul(d_c, i, out=d_g).mul_(4)
        torch.mul(d_h, tanh, out=d_o)
        torch.ops.aten.sigmoid_backward(grad, gates, grad_input=grad)
        ctx.table.add(grad, read)
        d_read = grad @ ctx.table.table
        d_before = torch.cat([d_read[:, -size:], d_c * f], 1)
        d_value = grad if ctx.projected else d_read[:, :-size]
        d_base = None
        if ctx.sources is not None:
            d_base = grad.view(ctx.sources, -1, 4 * size).sum(1)
        return d_value, d_before, d_base, None, None, None
