"""Costs of tokens at each step of a target: the decomposed task loss d (2018, Sec. 2).

Costs are frozen dataclasses, so that a run's configuration can name them; a cost of your own is
a subclass of `Cost`. Costs past a target's end are 0, and positions past the
end but inside the mask (searches that run on) have padding as their gold token.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import check_range

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional

    from softbeam.types import Batch
else:
    torch, functional = lazy("torch"), lazy("torch.nn.functional")


@dataclass(frozen=True, kw_only=True)
class Cost(ABC):
    """A cost for every token at every position of a batch's targets: (batch, time, vocab)."""

    def check(self, vocab: int) -> None:
        """Raises UserError if the cost does not fit a vocabulary of this size."""
        return

    @abstractmethod
    def __call__(self, batch: "Batch", vocab: int) -> "Tensor": ...


@dataclass(frozen=True, kw_only=True)
class Hamming(Cost):
    """1 for a token that is not the gold one."""

    def __call__(self, batch: "Batch", vocab: int) -> "Tensor":
        return mismatch(batch, vocab)


@dataclass(frozen=True, kw_only=True)
class DoubledO(Cost):
    """Hamming, but predicting 'O' for an entity costs 2 (2018, Sec. 3.1).

    Args:
        label: number of 'O'; label sets are ordered by frequency, and 'O' is the most frequent.
    """

    label: int = 0

    def check(self, vocab: int) -> None:
        check_range("label", self.label, least=0, below=vocab)

    def __call__(self, batch: "Batch", vocab: int) -> "Tensor":
        cost = mismatch(batch, vocab)
        cost[:, :, self.label] *= 2
        return cost


@dataclass(frozen=True, kw_only=True)
class Windowed(Cost):
    """Alignment-aware Hamming: a gold token at most `width` places off costs `penalty` a place.

    A positional Hamming cost charges a whole suffix for one insertion; this one does not.

    Args:
        width: how far off a token may be.
        penalty: cost for each place; at least 1 makes it Hamming.
    """

    width: int = 1
    penalty: float = 0.5

    def __post_init__(self) -> None:
        check_range("width", self.width, least=0)
        check_range("penalty", self.penalty, least=0)

    def __call__(self, batch: "Batch", vocab: int) -> "Tensor":
        cost = mismatch(batch, vocab)
        for shift in range(1, self.width + 1):
            for moved, real in shifted(batch.target, batch.mask, shift):
                near = torch.where(real, min(shift * self.penalty, 1.0), 1.0).to(cost.dtype)
                cost.scatter_reduce_(-1, moved[:, :, None], near[:, :, None], "amin")
        return cost


COSTS: tuple[type[Cost], ...] = (Hamming, DoubledO, Windowed)


def mismatch(batch: "Batch", vocab: int) -> "Tensor":
    """1 everywhere but at the target token, and 0 past the target's end: batch, time, vocab."""
    cost = batch.mask[:, :, None].to(torch.get_default_dtype()).repeat(1, 1, vocab)
    return cost.scatter_(-1, batch.target[:, :, None], 0.0)


def shifted(target: "Tensor", mask: "Tensor", by: int) -> "list[tuple[Tensor, Tensor]]":
    """The targets and masks moved `by` places to the right and to the left."""
    pad = functional.pad
    time = target.shape[1]
    right = (pad(target, (by, 0))[:, :time], pad(mask, (by, 0))[:, :time])
    left = (pad(target, (0, by))[:, by:], pad(mask, (0, by))[:, by:])
    return [right, left]
