"""Proposals for Metropolis-Hastings: a masked language model's conditionals (thesis, Sec. 6.4).

All given positions are masked together. The reverse move masks the same positions of the same text,
so a single pass of the model gives the probabilities of both moves.
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
from softbeam.tensors import Allowed, allowed_at, draw, may_stand, moved
from softbeam.types import MaskedLM, Proposed


class ReducibleWarning(UserWarning):
    """Warns that a chain with these proposals cannot reach every text."""


@dataclass(frozen=True, eq=False)
class MaskedConditionals:
    r"""q(y'; y) = prod_{i in M} p(y'_i | y\M), M the masked positions (thesis, Sec. 6.4).

    M is the set of masked positions, not the positions where y and y' differ as in Sec. 6.4.1
    (docs/errata.md), and is chosen without looking at y. Only `allowed` tokens are proposed.

    With a nucleus below 1, a token outside of its nucleus has reverse probability 0: no move away
    from it is accepted until its context changes, and some texts are never reached. This raises a
    warning, and the sampler counts such steps as `stuck`. An epsilon above 0 solves it at no cost:
    q is then (1 - epsilon) nucleus + epsilon whole. The mixture is over the block and not for each
    position, so that the reverse probability of a block with n tokens outside of their nuclei is of
    order epsilon and not epsilon^n.

    Args:
        mlm: the masked language model.
        owner: the source of each chain; by default the first source for all.
        allowed: the tokens that may be proposed; by default `mlm.allowed`.
        temperature: the temperature of q, in both directions; the target has its own.
        nucleus: propose only from the smallest set of tokens that has this probability.
        epsilon: the weight of all tokens in a mixture with the nucleus.
        rows: the largest number of rows that the model gets at once.
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
            raise ValueError(f"epsilon={self.epsilon} must be at least 0 and at most 1")
        if self.nucleus < 1 and self.epsilon == 0:
            warnings.warn(
                f"nucleus={self.nucleus} without an epsilon: some texts are never reached, and "
                "chains cannot leave tokens outside of their nucleus; epsilon=0.05 solves both",
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
        """The tokens that may be proposed."""
        return self.mlm.allowed if self.allowed is None else self.allowed

    def log_probs(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        r"""Compute log p(. | y\M) at the positions, row by row, at the temperature, over `allowed`.

        The tokens at these positions are not read. The nucleus is not applied here.
        """
        return self.normalized(self.logits(tokens, positions), positions)

    def logits(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """The model's logits at the given positions, masked together, row by row."""
        active = positions.any(-1)  # a chain of its own length may have nothing to do
        source = None if self.owner is None else self.owner[active]
        parts = packed_logits(self.mlm, tokens[active], positions[active], source, limit=self.rows)
        packs = list(parts) or [torch.zeros(0, self.choices.shape[-1], device=tokens.device)]
        return torch.cat(packs)

    def normalized(
        self, logits: Float[Tensor, "cells vocab"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """Normalize logits at these positions over `allowed`, at the temperature."""
        allowed = moved(allowed_at(self.choices, positions), logits.device)
        return (logits / self.temperature).masked_fill(~allowed, float("-inf")).log_softmax(-1)

    def parts(
        self, log_p: Float[Tensor, "cells vocab"]
    ) -> list[tuple[float, Float[Tensor, "cells vocab"]]]:
        """The tables of which q is a mixture, with their weights."""
        if self.nucleus == 1 or self.epsilon == 1:
            return [(1.0, log_p)]
        inner = within_nucleus(log_p, self.nucleus)
        if self.epsilon == 0:
            return [(1.0, inner)]
        return [(1 - self.epsilon, inner), (self.epsilon, log_p)]


@dataclass(frozen=True, eq=False)
class UniformProposals:
    """Proposals that draw every allowed token with the same probability, without a model.

    Args:
        allowed: the tokens that may be proposed, as booleans over the vocabulary; or the size of a
            vocabulary whose tokens are all allowed.
    """

    allowed: Allowed | int

    def __post_init__(self) -> None:
        allowed: object = self.allowed
        if isinstance(allowed, int) and allowed > 0 and not isinstance(allowed, bool):
            object.__setattr__(self, "allowed", torch.ones(allowed, dtype=torch.bool))
        elif not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            raise ValueError(
                f"allowed={allowed!r} must be a tensor of booleans over the vocabulary, or its size"
            )

    @property
    def choices(self) -> Allowed:
        """The tokens that may be proposed."""
        assert not isinstance(self.allowed, int)
        return self.allowed

    def __call__(
        self,
        tokens: Int[Tensor, "chain time"],
        positions: Bool[Tensor, "chain time"],
        rng: Generator,
    ) -> Proposed:
        check_tokens(tokens, positions, self.choices)
        return drawn([(1.0, self.log_probs(tokens, positions))], tokens, positions, rng)

    def log_probs(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """log q at the given positions, row by row."""
        allowed = allowed_at(self.choices, positions).expand(int(positions.sum()), -1)
        return torch.where(allowed, 0.0, float("-inf")).log_softmax(-1)


def drawn(
    parts: Sequence[tuple[float, Float[Tensor, "cells vocab"]]],
    tokens: Int[Tensor, "chain time"],
    positions: Bool[Tensor, "chain time"],
    rng: Generator,
) -> Proposed:
    """Draw new tokens at the positions; q is a mixture of (weight, log table) pairs.

    A table is drawn for each chain; from it, each cell is drawn independently. The tables may be on
    another device than the tokens, which then get all results in one copy.
    """
    log_q = parts[0][1]
    device = log_q.device
    if len(parts) > 1:
        weight = torch.tensor([w for w, _ in parts], dtype=torch.float64, device=tokens.device)
        which = draw(weight.expand(len(tokens), -1), rng).expand_as(tokens)[positions]
        tables = torch.stack([table for _, table in parts], 1)
        log_q = tables[torch.arange(len(log_q), device=device), moved(which, device)]
    new = draw(log_q.exp(), rng)
    both = torch.cat([new, moved(tokens[positions], device)[:, None]], -1)
    logs = [table.gather(-1, both) for _, table in parts]
    if device != tokens.device:  # a number below 2^24 is exact in float32
        new, *logs = torch.stack([new.to(log_q).expand_as(both), *logs]).to(tokens.device)
        new = new[:, :1].long()
    forward, reverse = (
        log_mixture([(w, log[:, i]) for (w, _), log in zip(parts, logs, strict=True)], positions)
        for i in (0, 1)
    )
    return Proposed(tokens.masked_scatter(positions, new), forward, reverse)


def log_mixture(
    parts: Sequence[tuple[float, Float[Tensor, " cells"]]], positions: Bool[Tensor, "chain time"]
) -> Float[Tensor, " chain"]:
    """Compute log sum_i w_i prod_cells q_i, of the logarithms of each q_i in these cells."""
    each = [math.log(w) + by_chain(log_q, positions) for w, log_q in parts]
    return torch.stack(each).logsumexp(0)


def by_chain(
    cells: Float[Tensor, " cells"], positions: Bool[Tensor, "chain time"]
) -> Float[Tensor, " chain"]:
    """Sum the cells of each chain."""
    return cells.new_zeros(positions.shape).masked_scatter(positions, cells).sum(-1)


def within_nucleus(
    log_p: Float[Tensor, "cells vocab"], nucleus: float
) -> Float[Tensor, "cells vocab"]:
    """Restrict log p to the smallest set whose probability is at least `nucleus`; renormalize.

    Of equally likely tokens, those with smaller numbers enter first.
    """
    inside = tensors.nucleus(log_p.exp(), nucleus)
    return log_p.masked_fill(~inside, float("-inf")).log_softmax(-1)


def check_tokens(
    tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"], allowed: Allowed
) -> None:
    """Raise ValueError if a position holds a token that is not allowed there."""
    foreign = positions & ~may_stand(tokens, allowed)
    if bool(foreign.any()):
        chain, time = foreign.nonzero()[0].tolist()
        token = int(tokens[chain, time])
        raise ValueError(f"tokens: {token}, at {time} of chain {chain}, is not allowed there")
