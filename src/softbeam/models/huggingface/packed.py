"""Linear layers that are packed once for oneDNN, and when the packed copy is out of date."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

LARGE = 1024  # outputs of a layer that gains by being packed


class Linear(NamedTuple):
    """A linear layer: weights, which may be packed for oneDNN, and a bias."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows wide"]:
        if not self.weight.is_mkldnn:
            return nn.functional.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y


def packed(layer: Linear) -> Linear:
    """The layer, packed for oneDNN if it is large and this build can do it."""
    weight, bias = layer
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or len(weight) < LARGE:
        return layer
    try:
        return Linear(torch.ops.mkldnn._reorder_linear_weight(weight, None), bias)
    except (AttributeError, RuntimeError):
        return layer


def stamp(model: nn.Module) -> list[tuple[int, int]]:
    """Numbers that change when a model's weights do."""
    return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters()]
