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

from softbeam.sampling.energies import pick
from softbeam.sampling.masking import ROWS
from softbeam.tensors import draw, moved
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
        later = masks(order, tokens.shape[1]).repeat(chains, 1)
        texts, site = tokens.repeat_interleave(steps, 0), order.repeat(chains)
        real = texts != self.mlm.pad_id
        owner = (
            torch.zeros_like(site) if self.owner is None else self.owner.repeat_interleave(steps)
        )
        counted = real.gather(1, site[:, None])[:, 0].nonzero()[:, 0]
        values = torch.zeros(chains * steps, dtype=torch.float64, device=tokens.device)
        for index in counted.split(self.rows):
            hidden = (later & real)[index]
            cells = self.normalized(self.mlm.logits(texts[index], hidden, owner[index]))
            asked = torch.zeros_like(hidden).scatter(1, site[index, None], True)[hidden]
            target = texts[index].gather(1, site[index, None])
            scores = cells[moved(asked.nonzero()[:, 0], cells.device)]
            values[index] = scores.gather(1, moved(target, cells.device))[:, 0].to(values)
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
