r"""The chain rule over a masked language model: exact likelihoods and exact samples in one order.

A masked language model that has seen many masks at once, as text diffusion models have, gives
p(y_t | the positions that are not masked). For a fixed order o of the positions, the product

    p_o(y) = prod_i p(y_o(i) | y_o(1), ..., y_o(i-1), the rest masked)

is a distribution over texts: its log Z is 0, an ancestral sample is exact, and its energy is T rows
that can be computed together. Every order is another distribution, unless the conditionals of the
model belong to one joint distribution.

It is not the local energy. E_local(y) = -sum_t log p(y_t | y\t) conditions on *both* sides, and is
not -log p(y) even if the conditionals are those of a joint p: for two positions that are always
equal, with two equally frequent words, p(aa) = p(bb) = 1/2, and E_local(aa) = 0 = -log 1.
"""

from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.energies import counted_sites, pick
from softbeam.sampling.masking import ROWS
from softbeam.tensors import distinct_rows, draw, moved
from softbeam.types import MaskedLM


@dataclass(frozen=True, eq=False)
class ChainEnergy:
    """E_o(y) = -log p_o(y), by the chain rule in the order o; or its mean over several orders.

    The mean over orders is an upper bound of -log of the mean of their probabilities, as diffusion
    models report it. Positions that are in no order belong to the prompt: they are never masked.

    Args:
        mlm: the masked language model.
        order: positions, first to last; or several orders of the same positions.
        owner: the source of each chain; by default the first source for all.
        rows: the largest number of rows that the model gets at once.
    """

    mlm: MaskedLM
    order: Int[Tensor, "*orders sites"]
    _: KW_ONLY
    owner: Int[Tensor, " chain"] | None = None
    rows: int = ROWS

    def __post_init__(self) -> None:
        orders = self.order.sort(-1).values.reshape(-1, self.order.shape[-1])
        if (orders != orders[0]).any() or (orders.diff() == 0).any() or (orders < 0).any():
            raise ValueError("order: must list positions once each, and every order the same ones")

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        orders = self.order.reshape(-1, self.order.shape[-1])
        return -torch.stack([self.log_probs(tokens, order).sum(-1) for order in orders]).mean(0)

    def chosen(self, chains: Int[Tensor, " rows"]) -> "ChainEnergy":
        """The energy of rows that belong to these chains."""
        return replace(self, owner=pick(self.owner, chains))

    @torch.no_grad()
    def log_probs(
        self, tokens: Int[Tensor, "chain time"], order: Int[Tensor, " sites"]
    ) -> Float[Tensor, "chain sites"]:
        """Compute log p(y_o(i) | earlier ones) for each i; a position with padding has 0."""
        steps, chains = len(order), len(tokens)
        texts, site = tokens.repeat_interleave(steps, 0), order.repeat(chains)
        real = texts != self.mlm.pad_id
        hidden = masks(order, tokens.shape[1]).repeat(chains, 1) & real
        owner = (
            torch.zeros_like(site) if self.owner is None else self.owner.repeat_interleave(steps)
        )
        shown = texts.masked_fill(hidden, -1)  # texts with a common beginning share rows
        distinct, which = distinct_rows(torch.cat([shown, site[:, None], owner[:, None]], 1))
        every = torch.arange(len(which), device=which.device)
        first = which.new_zeros(len(distinct)).scatter(0, which, every)
        counted = real.gather(1, site[:, None])[:, 0]
        values = torch.zeros(chains * steps, dtype=torch.float64, device=tokens.device)
        for index in counted[first].nonzero()[:, 0].split(self.rows):
            rows = first[index]
            cells = self.normalized(self.mlm.logits(texts[rows], hidden[rows], owner[rows]))
            asked = torch.zeros_like(hidden[rows]).scatter(1, site[rows, None], True)[hidden[rows]]
            scores = cells[moved(asked.nonzero()[:, 0], cells.device)]
            equal = torch.isin(which, index).nonzero()[:, 0]
            target = texts[equal].gather(1, site[equal, None])
            place = torch.searchsorted(index, which[equal])
            at = (moved(part, cells.device) for part in (place, target[:, 0]))
            values[equal] = scores[tuple(at)].to(values)
        return values.unflatten(0, (chains, steps))

    @torch.no_grad()
    def sample(
        self, tokens: Int[Tensor, "chain time"], rng: Generator
    ) -> Int[Tensor, "chain time"]:
        """Draw texts from p_o exactly; the tokens at the positions of the order are not read.

        Raises ValueError if there are several orders.
        """
        if self.order.dim() > 1:
            raise ValueError(f"order: has {len(self.order)} orders; a sample follows one")
        owner = torch.zeros_like(tokens[:, 0]) if self.owner is None else self.owner
        real = tokens != self.mlm.pad_id
        for site, later in zip(self.order, masks(self.order, tokens.shape[1]), strict=True):
            active = real[:, site].nonzero()[:, 0]
            hidden = (later & real)[active]
            cells = self.normalized(self.mlm.logits(tokens[active], hidden, owner[active]))
            here = torch.zeros_like(hidden)
            here[:, site] = True
            p = cells[moved(here[hidden].nonzero()[:, 0], cells.device)].exp()
            column = tokens[:, site].index_copy(0, active, draw(p, rng)[:, 0].to(tokens.device))
            tokens = tokens.index_copy(1, site[None], column[:, None])
        return tokens

    def normalized(self, logits: Float[Tensor, "cells vocab"]) -> Float[Tensor, "cells vocab"]:
        """Normalize over the allowed tokens, so that the texts have a total probability of 1."""
        allowed = moved(self.mlm.allowed, logits.device)
        return logits.double().masked_fill(~allowed, float("-inf")).log_softmax(-1)


def masks(order: Int[Tensor, " sites"], time: int) -> Bool[Tensor, "sites time"]:
    """Say which positions are masked when the i-th of an order is predicted: it and later ones."""
    turn = order.new_full((time,), -1).index_copy(
        0, order, torch.arange(len(order), device=order.device)
    )
    return turn >= torch.arange(len(order), device=order.device)[:, None]


@dataclass(frozen=True, eq=False)
class LeftToRight:
    """E(y) = -log p(y) by the chain rule from left to right, over the counted positions of a text.

    A counted position is masked until its turn; all others are given from the start. So this is a
    normalized distribution over the fillings of a prompt's gaps, given the text on both sides.

    Args:
        mlm: the masked language model.
        counted: the positions of each chain; by default those that hold a token of `mlm.allowed`.
        rows: the largest number of rows that the model gets at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    counted: Bool[Tensor, "chain time"] | None = None
    rows: int = ROWS

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return -self.scores(tokens).sum(-1)

    def scores(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, "chain time"]:
        """Compute log p of each token given the earlier ones; 0 where nothing counts."""
        counted = counted_sites(self.mlm, tokens, self.counted)
        table = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
        patterns, which = distinct_rows(counted.long())
        for number, pattern in enumerate(patterns):
            order, chains = pattern.nonzero()[:, 0], (which == number).nonzero()[:, 0]
            if len(order):
                energy = ChainEnergy(self.mlm, order, rows=self.rows)
                table[chains[:, None], order] = energy.log_probs(tokens[chains], order)
        return table

    def chosen(self, chains: Int[Tensor, " rows"]) -> "LeftToRight":
        """The energy of rows that belong to these chains."""
        return replace(self, counted=pick(self.counted, chains))
