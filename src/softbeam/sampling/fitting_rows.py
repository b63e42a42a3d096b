"""Give a masked language model as many rows at once as fit into the memory of its device."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.errors import NO_MEMORY
from softbeam.sampling.masking import ROWS, WrappedMlm
from softbeam.types import MaskedLM

FIRST = 64  # rows of the first call


class FittingRows(WrappedMlm):
    """A masked language model that finds the largest batch of rows that fits.

    Batches double in size until the memory is full; then, and whenever it is full later, they
    become half as large and the rows are tried again. On the CPU, where larger batches are no
    faster, a batch has at most 256 rows.

    Args:
        mlm: the masked language model.
        first: the number of rows of the first batch.
    """

    def __init__(self, mlm: MaskedLM, *, first: int = FIRST):
        super().__init__(mlm)
        self.limit, self.full = first, False

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        parts: list[Tensor] = []
        done = 0
        while done < len(tokens) or not parts:
            rows = slice(done, done + self.limit)
            part = self.tried(tokens[rows], masked[rows], owner[rows])
            if part is not None:
                parts.append(part)
                done = rows.stop
                if rows.stop <= len(tokens) and not self.full:
                    most = ROWS if part.device.type == "cpu" else 2 * self.limit
                    self.limit = max(self.limit, min(2 * self.limit, most))
        return torch.cat(parts)

    def tried(self, tokens: Tensor, masked: Tensor, owner: Tensor) -> Tensor | None:
        """The logits of some rows; None if they do not fit, after which batches are smaller."""
        try:
            return self.mlm.logits(tokens, masked, owner)
        except RuntimeError as error:  # torch.OutOfMemoryError is one, on every device
            if len(tokens) < 2 or not NO_MEMORY.search(str(error)):
                raise
        self.limit, self.full = len(tokens) // 2, True
        return None
