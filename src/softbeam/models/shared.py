"""Linear layers whose weight gradients are added up over the steps of a search."""

from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softbeam.tensors import SharedTable

M = TypeVar("M", bound=nn.Module)


class SharedLinear(nn.Module):
    """A linear layer during one search; it has no parameters of its own."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.table = SharedTable(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.table.token, self.table)


class _Product(torch.autograd.Function):
    """The product with a `SharedTable`, which also gets the gradient of its weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, table: SharedTable) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows)
        ctx.table, ctx.shape = table, x.shape
        return table.product(rows).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.reshape(-1, grad.shape[-1])
        ctx.table.add(grad, *ctx.saved_tensors)
        return (grad @ ctx.table.table).view(ctx.shape), None, None


def shared(module: M) -> M:
    """A copy of a module whose linear layers are shared by the steps of one search.

    Modules without children, such as dropout, are the module's own.
    """
    other = copy(module)
    other._modules = {name: of_search(child) for name, child in module._modules.items()}
    return other


def of_search(child: nn.Module | None) -> nn.Module | None:
    """What takes the place of a child in the copy."""
    if type(child) is nn.Linear:
        return SharedLinear(child)
    return shared(child) if child is not None and child._modules else child
