"""Give rows to a masked language model, a bounded number at a time.

In all of this package `allowed` is the set of tokens that a position may hold: one set for all
positions (`vocab`), or a table (`chain time vocab`). A position with an empty set is frozen.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from softbeam.tensors import distinct_rows, moved
from softbeam.types import MaskedLM

ROWS = 256  # rows that the model gets at once
ONE_PASS = 8  # a row of all sites costs this many times the output layer of a row of one site


def packed_logits(
    mlm: MaskedLM,
    tokens: Int[Tensor, "rows time"],
    masked: Bool[Tensor, "rows time"],
    owner: Int[Tensor, " rows"] | None = None,
    *,
    limit: int = ROWS,
) -> Iterator[Float[Tensor, "cells vocab"]]:
    """Yield the logits of the masked cells, row by row, from at most `limit` rows at a time.

    Together the packs are what a single call would return. Without `owner`, every row belongs to
    source 0.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
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
    """Yield indices of sites (row, site), and the logits at these sites, each masked alone.

    At most `limit` sites are computed at a time. Texts of similar lengths go together, cut to the
    longest of them, so that short texts are not padded to the length of long ones. Rows that are
    equal with their sites masked, as those of chains that hold the same text, are computed once.
    A `OnePassMlm` computes a row for each text instead of one for each site.
    """
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    if (whole := in_one_pass(mlm)) is not None:
        yield from one_pass_logits(mlm.pad_id, whole, tokens, row, site, owner, limit=limit)
        return
    place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    lengths = (place * (tokens != mlm.pad_id)).amax(-1)[row].maximum(site + 1)
    source = torch.zeros_like(row) if owner is None else owner[row]
    hidden = tokens[row].scatter(1, site[:, None], mlm.pad_id)
    distinct, which = distinct_rows(torch.cat([hidden, site[:, None], source[:, None]], 1))
    every = torch.arange(len(row), device=row.device)
    first = every.new_full((len(distinct),), len(row)).scatter_reduce(0, which, every, "amin")
    order = (lengths[first] * len(row) + first).argsort()
    turn = order.argsort()[which]  # equal rows have the same
    for start in range(0, len(order), limit):
        index = first[order[start : start + limit]]
        width = int(lengths[index].max())
        alone = one_hot(site[index], width).bool()
        logits = mlm.logits(tokens[row[index], :width], alone, source[index])
        equal = ((turn >= start) & (turn < start + limit)).nonzero()[:, 0]
        if len(equal) > len(index):
            index, logits = equal, logits[moved(turn[equal] - start, logits.device)]
        yield index, logits


Every = Callable[[Tensor, Tensor], Tensor]  # `every_logits` of a `OnePassMlm`


def in_one_pass(mlm: MaskedLM) -> Every | None:
    """Return the `every_logits` of a model, also of a wrapped one; None if it has none."""
    return getattr(mlm, "every_logits", None)


def one_pass_logits(
    pad_id: int,
    every: Every,
    tokens: Int[Tensor, "rows time"],
    row: Int[Tensor, " sites"],
    site: Int[Tensor, " sites"],
    owner: Int[Tensor, " rows"] | None,
    *,
    limit: int,
) -> Iterator[tuple[Int[Tensor, " cells"], Float[Tensor, "cells vocab"]]]:
    """Yield what `site_logits` yields, from one row for each distinct text.

    As many texts go together as have about `ONE_PASS` times `limit` tokens, shorter ones first.
    """
    source = torch.zeros_like(tokens[:, 0]) if owner is None else owner
    used, which = row.unique(return_inverse=True)
    distinct, place = distinct_rows(torch.cat([tokens, source[:, None]], 1)[used])
    texts, sources = distinct[:, :-1], distinct[:, -1]
    order = (texts != pad_id).sum(-1).argsort()
    turn = order.argsort()[place[which]]
    size = max(1, ONE_PASS * limit // max(tokens.shape[1], 1))
    for start in range(0, len(order), size):
        some = order[start : start + size]
        index = ((turn >= start) & (turn < start + size)).nonzero()[:, 0]
        width = int((texts[some] != pad_id).sum(-1).max())
        logits = every(texts[some, :width], sources[some])
        at = (moved(part, logits.device) for part in (turn[index] - start, site[index]))
        yield index, logits[tuple(at)]


class WrappedMlm:
    """A masked language model that passes everything on to another; subclasses change a part."""

    def __init__(self, mlm: MaskedLM):
        self.mlm = mlm

    @property
    def pad_id(self) -> int:
        return self.mlm.pad_id

    @property
    def allowed(self) -> Bool[Tensor, " vocab"]:
        return self.mlm.allowed

    @property
    def every_logits(self) -> Every | None:
        """That of the other model, if it has one."""
        return in_one_pass(self.mlm)

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        return self.mlm.logits(tokens, masked, owner)
