"""Rows for a masked language model: packed within a bound, and what may stand where in a text.

`allowed` is everywhere the same thing: the tokens that may stand at each position, as one set for
all (`vocab`) or as a table (`chain time vocab`). A position where nothing may stand is frozen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from softbeam.types import MaskedLM

ROWS = 256  # rows given to the model at once


def packed_logits(
    mlm: MaskedLM,
    tokens: Int[Tensor, "rows time"],
    masked: Bool[Tensor, "rows time"],
    owner: Int[Tensor, " rows"] | None = None,
    *,
    limit: int = ROWS,
) -> Iterator[Float[Tensor, "cells vocab"]]:
    """Logits of the masked cells, row by row, from at most `limit` rows at a time.

    The packs, one after another, are what a single call would give. Without `owner`, every row
    belongs to source 0.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} rows; at least 1 is needed")
    if owner is None:
        owner = torch.zeros_like(tokens[:, 0])
    parts = zip(tokens.split(limit), masked.split(limit), owner.split(limit), strict=True)
    return (mlm.logits(*part) for part in parts if len(part[0]))


def site_logits(
    mlm: MaskedLM,
    tokens: Int[Tensor, "rows time"],
    row: Int[Tensor, " sites"],
    site: Int[Tensor, " sites"],
    owner: Int[Tensor, " rows"] | None = None,
    *,
    limit: int = ROWS,
) -> Iterator[tuple[Int[Tensor, " cells"], Float[Tensor, "cells vocab"]]]:
    """Logits of the sites (row, site), each masked alone: which of them these are, and theirs.

    At most `limit` at a time. Texts of like lengths go together, cut to the longest of them, so
    that short ones are not filled up to long ones.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} rows; at least 1 is needed")
    place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    lengths = (place * (tokens != mlm.pad_id)).amax(-1)[row].maximum(site + 1)
    for index in lengths.argsort(stable=True).split(limit):
        if len(index):
            width = int(lengths[index].max())
            alone = one_hot(site[index], width).bool()
            source = torch.zeros_like(index) if owner is None else owner[row[index]]
            yield index, mlm.logits(tokens[row[index], :width], alone, source)


@dataclass(frozen=True, eq=False)
class HalfPrecision:
    """The same model with its matrix products in bfloat16 (autocast); logits are float32.

    For speed where the processor has such products. Not exact: logits have some three digits, and
    their rounding depends on the rows that they are packed with, so that a kernel samples its
    target only up to that, and kernels that pack differently give different chains.
    """

    mlm: MaskedLM

    @property
    def pad_id(self) -> int:
        return self.mlm.pad_id

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.mlm.allowed

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            return self.mlm.logits(tokens, masked, owner).float()
