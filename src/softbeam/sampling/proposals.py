"""Proposals for Metropolis-Hastings: a masked language model's conditionals (thesis, Sec. 6.4).

All given positions are masked together, and one pass gives q both ways: the reverse move masks the
same positions of the same text, so what it conditions on is the same.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam import tensors
from softbeam.sampling.masking import ROWS, packed_logits
from softbeam.tensors import Allowed, allowed_at, may_stand
from softbeam.types import MaskedLM, Proposed


class ReducibleWarning(UserWarning):
    """A chain with these proposals cannot reach every text."""


@dataclass(frozen=True, eq=False)
class MaskedConditionals:
    r"""q(y'; y) = prod_{i in M} p(y'_i | y\M), M the masked positions (thesis, Sec. 6.4).

    M is what was masked, not where y and y' differ as in Sec. 6.4.1 (docs/errata.md), and is
    chosen without looking at y. Nothing outside of `allowed` is ever proposed.

    With a nucleus below 1, a token outside of its nucleus has reverse probability 0: no move away
    from it is accepted until its context changes, and some texts are never reached at all. It
    warns; the sampler counts such steps as `stuck`. An epsilon above 0 mends it at no cost: q is
    then (1 - epsilon) nucleus + epsilon whole, mixed over the block and not cell by cell, so that a
    block with n tokens outside of their nuclei has the reverse probability of order epsilon and not
    epsilon^n.

    Args:
        mlm: the masked language model.
        owner: the source of each chain; the first for all unless given.
        allowed: what may be proposed where; `mlm.allowed` unless given.
        temperature: of q alone, both ways; the target keeps its own.
        nucleus: each token is of the smallest set that has this probability, renormalized.
        epsilon: weight of the whole conditionals in a mixture with their nuclei.
        rows: largest number of rows given to the model at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    owner: Int[Tensor, " chain"] | None = None
    allowed: Allowed | None = None
    temperature: float = 1.0
    nucleus: float = 1.0
    epsilon: float = 0.0
    rows: int = ROWS

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be above 0")
        if not 0 < self.nucleus <= 1:
            raise ValueError(f"nucleus={self.nucleus} must be above 0 and at most 1")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon={self.epsilon} must be between 0 and 1")
        if self.nucleus < 1 and self.epsilon == 0:
            warnings.warn(
                f"nucleus={self.nucleus} without an epsilon: some texts are never reached, and "
                "tokens outside of their nucleus are not left; epsilon=0.05 mends both",
                ReducibleWarning,
                stacklevel=3,
            )

    def __call__(
        self,
        tokens: Int[Tensor, "chain time"],
        positions: Bool[Tensor, "chain time"],
        rng: Generator,
    ) -> Proposed:
        check_tokens(tokens, positions, self.choices)
        return drawn(self.parts(self.log_probs(tokens, positions)), tokens, positions, rng)

    @property
    def choices(self) -> Allowed:
        return self.mlm.allowed if self.allowed is None else self.allowed

    def log_probs(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        r"""log p(. | y\M) at the given positions, row by row, at the temperature, over `allowed`.

        What `tokens` holds there is not read. Of a nucleus it knows nothing yet.
        """
        return self.normalized(self.logits(tokens, positions), positions)

    def logits(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """The model's logits at the given positions, masked together, row by row."""
        active = positions.any(-1)  # a chain of its own length may have nothing to do
        source = None if self.owner is None else self.owner[active]
        packs = packed_logits(self.mlm, tokens[active], positions[active], source, limit=self.rows)
        return torch.cat([torch.zeros(0, self.choices.shape[-1], device=tokens.device), *packs])

    def normalized(
        self, logits: Float[Tensor, "cells vocab"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """Log-probabilities at the temperature, over `allowed`, of logits at these positions."""
        allowed = allowed_at(self.choices, positions)
        return (logits / self.temperature).masked_fill(~allowed, float("-inf")).log_softmax(-1)

    def parts(
        self, log_p: Float[Tensor, "cells vocab"]
    ) -> list[tuple[float, Float[Tensor, "cells vocab"]]]:
        """The tables that q is a mixture of, with their weights."""
        if self.nucleus == 1 or self.epsilon == 1:
            return [(1.0, log_p)]
        inner = within_nucleus(log_p, self.nucleus)
        if self.epsilon == 0:
            return [(1.0, inner)]
        return [(1 - self.epsilon, inner), (self.epsilon, log_p)]


@dataclass(frozen=True, eq=False)
class UniformProposals:
    """Every allowed token with the same probability: the baseline that needs no model."""

    allowed: Allowed

    def __call__(
        self,
        tokens: Int[Tensor, "chain time"],
        positions: Bool[Tensor, "chain time"],
        rng: Generator,
    ) -> Proposed:
        check_tokens(tokens, positions, self.allowed)
        return drawn([(1.0, self.log_probs(tokens, positions))], tokens, positions, rng)

    def log_probs(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """log q at the given positions, row by row."""
        allowed = allowed_at(self.allowed, positions).expand(int(positions.sum()), -1)
        return torch.where(allowed, 0.0, float("-inf")).log_softmax(-1)


def drawn(
    parts: Sequence[tuple[float, Float[Tensor, "cells vocab"]]],
    tokens: Int[Tensor, "chain time"],
    positions: Bool[Tensor, "chain time"],
    rng: Generator,
) -> Proposed:
    """New tokens at the positions and log q both ways; q is a mixture of (weight, log table).

    One table is drawn for each chain, and from it each cell by itself.
    """
    weight = torch.tensor([w for w, _ in parts], dtype=torch.float64, device=tokens.device)
    log_q = parts[0][1]
    if len(parts) > 1:
        which = torch.multinomial(weight.expand(len(tokens), -1), 1, generator=rng)
        tables = torch.stack([table for _, table in parts], 1)
        log_q = tables[torch.arange(len(log_q)), which.expand_as(tokens)[positions]]
    new = torch.multinomial(log_q.exp(), 1, generator=rng)
    old = tokens[positions][:, None]
    return Proposed(
        tokens=tokens.masked_scatter(positions, new),
        log_q_forward=log_mixture(parts, new, positions),
        log_q_reverse=log_mixture(parts, old, positions),
    )


def log_mixture(
    parts: Sequence[tuple[float, Float[Tensor, "cells vocab"]]],
    cells: Int[Tensor, "cells 1"],
    positions: Bool[Tensor, "chain time"],
) -> Float[Tensor, " chain"]:
    """log sum_i w_i prod_cells q_i of the tokens in these cells."""
    each = [math.log(w) + by_chain(table.gather(-1, cells), positions) for w, table in parts]
    return torch.stack(each).logsumexp(0)


def by_chain(
    cells: Float[Tensor, "cells 1"], positions: Bool[Tensor, "chain time"]
) -> Float[Tensor, " chain"]:
    """The sum of each chain's cells."""
    return cells.new_zeros(positions.shape).masked_scatter(positions, cells).sum(-1)


def within_nucleus(
    log_p: Float[Tensor, "cells vocab"], nucleus: float
) -> Float[Tensor, "cells vocab"]:
    """log p over the smallest set whose probability is at least `nucleus`, renormalized.

    Of equally likely tokens the first enter first.
    """
    inside = tensors.nucleus(log_p.exp(), nucleus)
    return log_p.masked_fill(~inside, float("-inf")).log_softmax(-1)


def check_tokens(
    tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"], allowed: Allowed
) -> None:
    """An error where a position holds what may not stand there: a special, a mask, padding."""
    foreign = positions & ~may_stand(tokens, allowed)
    if bool(foreign.any()):
        chain, time = foreign.nonzero()[0].tolist()
        token = int(tokens[chain, time])
        raise ValueError(f"tokens: {token}, at {time} of chain {chain}, is not allowed there")
