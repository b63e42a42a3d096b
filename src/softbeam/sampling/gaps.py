"""Gaps of one to n tokens, such as a whole word of a word-piece model, and all their fillings.

A gap has n cells. If it holds fewer tokens, its last cells hold padding, so that all fillings of a
text have one layout, in which padding stands inside of texts. `SqueezedMlm` lets a model read such
rows: energies and proposals of this package then work on them as on any text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from softbeam.sampling.energies import chosen, pick
from softbeam.sampling.masking import WrappedMlm
from softbeam.sampling.proposals import MaskedConditionals, by_chain
from softbeam.tensors import distinct_rows, draw, moved
from softbeam.types import Energy, Proposed


def right_padded(real: Bool[Tensor, "rows time"]) -> Int[Tensor, "rows time"]:
    """The order of positions in which all that are not real come last."""
    return (~real).byte().argsort(dim=-1, stable=True)


class SqueezedMlm(WrappedMlm):
    """A masked language model that reads rows with padding anywhere, as if it stood at the end."""

    every_logits = None

    def logits(
        self,
        tokens: Int[Tensor, "rows time"],
        masked: Bool[Tensor, "rows time"],
        owner: Int[Tensor, " rows"],
    ) -> Float[Tensor, "cells vocab"]:
        order = right_padded((tokens != self.pad_id) | masked)
        return self.mlm.logits(tokens.gather(1, order), masked.gather(1, order), owner)


@dataclass(frozen=True, eq=False)
class SqueezedEnergy:
    """An energy of texts whose padding is moved to the end."""

    energy: Energy
    pad_id: int

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return self.energy(tokens.gather(1, right_padded(tokens != self.pad_id)))

    def chosen(self, chains: Int[Tensor, " rows"]) -> "SqueezedEnergy":
        return replace(self, energy=chosen(self.energy, chains))


@dataclass(frozen=True, eq=False)
class WholeGaps:
    """Proposals that draw gaps anew: their numbers of tokens, then these from left to right.

    All numbers from 1 to the number of a gap's cells are equally likely. Each token is drawn from
    the model's conditional, given the text and the tokens drawn before it, with those that are
    still to be drawn masked.

    Args:
        conditionals: the conditionals of a model that reads padding anywhere, and what may stand in
            each cell. Their nucleus is not read.
        gaps: the number of the gap that each position belongs to; -1 where a text is fixed.
        together: draw all gaps in one step, and read no positions; by default the position of a
            chain, at most one, names the gap.
    """

    conditionals: MaskedConditionals
    gaps: Int[Tensor, "chain time"]
    together: bool = False

    @torch.no_grad()
    def __call__(
        self,
        tokens: Int[Tensor, "chain time"],
        positions: Bool[Tensor, "chain time"],
        rng: Generator,
    ) -> Proposed:
        pad_id, gaps = self.conditionals.mlm.pad_id, self.gaps.expand(tokens.shape)
        if not self.together:
            number = gaps.where(positions, -1).amax(-1, keepdim=True)
            gaps = gaps.where(gaps == number, -1)
        cells, used = gaps >= 0, used_cells(gaps, rng)
        empty = tokens.masked_fill(cells & ~used, pad_id)
        steps, old = int(cells.sum(-1).max()), cells & (tokens != pad_id)
        new, forward = left_to_right(self.conditionals, empty, used, steps=steps, rng=rng)
        _, reverse = left_to_right(self.conditionals, tokens, old, steps=steps)
        return Proposed(new, forward, reverse)


def left_to_right(
    conditionals: MaskedConditionals,
    tokens: Int[Tensor, "chain time"],
    cells: Bool[Tensor, "chain time"],
    *,
    steps: int,
    rng: Generator | None = None,
) -> tuple[Int[Tensor, "chain time"], Float[Tensor, " chain"]]:
    """Fill cells from left to right; returns the texts and log q of what was drawn.

    Without a generator, the tokens stay as they are. With one, every chain draws a number in each
    step, so that all chains draw equally often; a chain without a cell left does not use it.
    """
    turn = cells.cumsum(-1) - 1
    log_q = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    for i in range(steps):
        now, hidden = cells & (turn == i), cells & (turn >= i)
        active = now.any(-1).nonzero()[:, 0]
        logits = first_hidden(conditionals, tokens[active], hidden[active], active)
        here = conditionals.normalized(logits, now).double()
        if rng is not None:
            p = pad(here.new_ones(len(tokens), 1), (0, here.shape[1] - 1))
            p[moved(active, p.device)] = here.exp()
            tokens = tokens.masked_scatter(now, draw(p, rng).to(tokens.device)[active])
        token = moved(tokens[now][:, None], here.device)
        log_q = log_q + by_chain(here.gather(1, token)[:, 0].to(log_q), now)
    return tokens, log_q


def first_hidden(
    conditionals: MaskedConditionals,
    tokens: Int[Tensor, "rows time"],
    hidden: Bool[Tensor, "rows time"],
    chains: Int[Tensor, " rows"],
) -> Float[Tensor, "rows vocab"]:
    """The logits of the first hidden cell of each row; equal rows are computed once."""
    owner = pick(conditionals.owner, chains)
    key = torch.zeros_like(chains) if owner is None else owner
    shown = tokens.masked_fill(hidden, -1)
    distinct, which = distinct_rows(torch.cat([shown, key[:, None]], 1))
    every = torch.arange(len(which), device=which.device)
    some = which.new_zeros(len(distinct)).scatter(0, which, every)
    own = replace(conditionals, owner=pick(owner, some))
    table = own.logits(tokens[some], hidden[some])
    first = hidden[some] & (hidden[some].cumsum(-1) == 1)
    cells = first[hidden[some]].nonzero()[:, 0]
    return table[moved(cells, table.device)][moved(which, table.device)]


def used_cells(gaps: Int[Tensor, "chain time"], rng: Generator) -> Bool[Tensor, "chain time"]:
    """Draw a number of tokens for each gap of each chain; returns the cells that hold them."""
    used = gaps < -1  # none
    for number in gaps.unique().tolist():
        cells = (gaps == number) & (gaps >= 0)
        size = cells.sum(-1, keepdim=True).clamp_min(1)
        if int(size.max()) > 1:
            lengths = torch.arange(int(size.max()), device=gaps.device)
            drawn = draw((lengths < size).double(), rng).to(gaps.device)
            cells &= cells.cumsum(-1) <= 1 + drawn
        used |= cells
    return used


# All fillings


def count_fillings(sets: Sequence[Sequence[int]]) -> int:
    """Count the fillings of gaps, of which the numbers of allowed tokens in each cell are given."""
    return math.prod(sum(math.prod(gap[: n + 1]) for n in range(len(gap))) for gap in sets)


def every_filling(
    tokens: Int[Tensor, " time"],
    gaps: Int[Tensor, " time"],
    allowed: Bool[Tensor, "time vocab"],
    pad_id: int,
) -> Int[Tensor, "fillings time"]:
    """List all fillings of the gaps of one text; the last gap changes fastest."""
    parts: list[Tensor] = []
    for number in range(int(gaps.max()) + 1):
        sets = [row.nonzero()[:, 0] for row in allowed[gaps == number]]
        lengths = [
            torch.cartesian_prod(*sets[: n + 1]).reshape(-1, n + 1) for n in range(len(sets))
        ]
        parts.append(
            torch.cat([pad(row, (0, len(sets) - row.shape[1]), value=pad_id) for row in lengths])
        )
    choices = torch.cartesian_prod(*(torch.arange(len(part)) for part in parts))
    choices = choices.reshape(-1, len(parts))
    table = tokens.repeat(len(choices), 1)
    for number, part in enumerate(parts):
        table[:, gaps == number] = part[choices[:, number]]
    return table
