"""Numbers that training can go on with: finite losses, gradients and weights."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from softbeam.errors import UserError

SHOWN, LONGEST = 3, 80  # sentences, and characters of each


class NotFinite(Exception):
    """A loss or gradient that is infinite or not a number, before any weight has changed."""


def check_step(loss: float, norm: float | Tensor) -> None:
    """Raise if an optimizer step would take an infinity, or what is not a number, to the weights.

    Args:
        loss: of the update.
        norm: of its gradient.
    """
    if not math.isfinite(loss):
        raise NotFinite(f"the loss became {loss}")
    if not math.isfinite(norm):
        raise NotFinite(f"the gradient's norm became {float(norm)} (the loss is {loss:.6g})")


def check_weights(model: nn.Module, when: str) -> None:
    """Raise a sentence if a weight is infinite or not a number."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"the weights became infinite or not a number ({name}) {when}; lower the learning "
                "rate (the last checkpoint is kept)"
            )


def quoted(sentences: Sequence[str]) -> str:
    """The first few of a batch's sentences."""
    cut = [s if len(s) <= LONGEST else s[:LONGEST] + "…" for s in sentences[:SHOWN]]
    more = len(sentences) - len(cut)
    return ", ".join(map(repr, cut)) + (f" and {more} more" if more else "")
