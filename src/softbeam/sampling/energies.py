"""Energies of texts under a masked language model (thesis, Sec. 6.2): raw, local, and composed.

An energy is a function from texts to numbers; lower is likelier. Any such callable will do. An
energy whose rows belong to particular chains also has `chosen`, which selects some of its chains.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.sampling.masking import ROWS, site_logits
from softbeam.tensors import may_stand, moved
from softbeam.types import BoundEnergy, Energy, MaskedLM


@dataclass(frozen=True, eq=False)
class SiteEnergy(ABC):
    """A sum of scores, one for each position, with its sign changed; subclasses give the score.

    Args:
        mlm: the masked language model.
        owner: the source of each chain; by default the first source for all.
        counted: positions in the sum; by default those that hold a token of `mlm.allowed`. Fixed
            words of a prompt belong to the text and count; padding never counts.
        rows: the largest number of masked rows that the model gets at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    owner: Int[Tensor, " chain"] | None = None
    counted: Bool[Tensor, "chain time"] | None = None
    rows: int = ROWS

    @abstractmethod
    def score(
        self, logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
    ) -> Float[Tensor, " cells"]:
        """Score the target tokens, given the model's logits in their places."""

    def scores(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, "chain time"]:
        """Score each token; positions that do not count have the score 0."""
        return site_scores(
            self.mlm, tokens, self.score, owner=self.owner, counted=self.counted, rows=self.rows
        )

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return -self.scores(tokens).sum(-1)

    def chosen(self, chains: Int[Tensor, " rows"]) -> "SiteEnergy":
        """The energy of rows that belong to these chains."""
        return replace(self, owner=pick(self.owner, chains), counted=pick(self.counted, chains))


@dataclass(frozen=True, eq=False)
class RawEnergy(SiteEnergy):
    r"""E_raw(y) = -sum_t of the logit of y_t given y\t, only t masked (thesis, Sec. 6.2.1).

    Training a masked language model does not fix a constant that is added to all logits of a
    context, but this energy depends on it. So it needs the logits from before the softmax. It
    refuses log-probabilities, which would silently make it a `LocalEnergy`.
    """

    def score(
        self, logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
    ) -> Float[Tensor, " cells"]:
        """The logits of the targets."""
        return raw_score(logits, target)


@dataclass(frozen=True, eq=False)
class LocalEnergy(SiteEnergy):
    r"""E_local(y) = -sum_t log p(y_t | y\t), the pseudo-log-likelihood (thesis, Sec. 6.2.4).

    Args:
        restricted: normalize over `mlm.allowed` instead of the whole vocabulary. Both are valid
            energies over the same texts, but different ones.
    """

    restricted: bool = False

    def score(
        self, logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
    ) -> Float[Tensor, " cells"]:
        """The log-probabilities of the targets."""
        if self.restricted:
            logits = logits.masked_fill(~moved(self.mlm.allowed, logits.device), float("-inf"))
        return local_score(logits, target)


def site_scores(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    owner: Int[Tensor, " chain"] | None = None,
    counted: Bool[Tensor, "chain time"] | None = None,
    rows: int = ROWS,
) -> Float[Tensor, "chain time"]:
    """Compute `score(logits, token)` of each counted position, where only that position is masked.

    The other positions get 0. The model gets a row for each counted position of each chain.
    """
    counted = counted_sites(mlm, tokens, counted)
    chain, site = counted.nonzero(as_tuple=True)
    if not len(chain):
        return torch.zeros(tokens.shape, device=tokens.device)
    targets, order, values = tokens[counted], [], []
    for index, logits in site_logits(mlm, tokens, chain, site, owner, limit=rows):
        order.append(index)
        values.append(score(logits, targets[index]))
    in_turn = torch.cat(values).to(tokens.device)[torch.cat(order).argsort()]
    return in_turn.new_zeros(tokens.shape).masked_scatter(counted, in_turn)


def counted_sites(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    counted: Bool[Tensor, "chain time"] | None = None,
) -> Bool[Tensor, "chain time"]:
    """The positions in an energy's sum: the given ones, or those of allowed tokens; no padding."""
    counted = may_stand(tokens, mlm.allowed) if counted is None else counted
    return counted & (tokens != mlm.pad_id)


def raw_score(
    logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
) -> Float[Tensor, " cells"]:
    """The target's logit. Raises ValueError if the logits are log-probabilities.

    Elsewhere than on the CPU, where raising would wait for the device, it returns NaN, which
    kernels refuse.
    """
    values = logits.gather(-1, moved(target, logits.device)[:, None])[:, 0]
    if len(logits) < 2:  # the probabilities of one cell may sum to 1 by chance
        return values
    rounding = min(64 * torch.finfo(logits.dtype).eps, 0.05)
    sums_to_one = (logits.logsumexp(-1).abs() < rounding).all()
    if logits.device.type != "cpu":
        return values.masked_fill(sums_to_one, float("nan"))
    if bool(sums_to_one):
        raise ValueError(
            f"mlm.logits: all {len(logits)} cells sum to one, so they are log-probabilities. "
            "RawEnergy needs the logits from before the softmax; for these, use LocalEnergy"
        )
    return values


def local_score(
    logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
) -> Float[Tensor, " cells"]:
    """The target's log-probability."""
    return logits.log_softmax(-1).gather(-1, moved(target, logits.device)[:, None])[:, 0]


# Composition


@dataclass(frozen=True, eq=False)
class Tempered:
    """E(y) / temperature: flatter above 1, closer to the modes below 1 (thesis, Sec. 6.8).

    For a fixed target. For a temperature that changes from sweep to sweep, use that of the kernels:
    their states keep the energy E itself.
    """

    energy: Energy
    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be above 0")

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return self.energy(tokens) / self.temperature

    def chosen(self, chains: Int[Tensor, " rows"]) -> "Tempered":
        return replace(self, energy=chosen(self.energy, chains))


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """A product of experts: sum_i w_i E_i(y) of (weight, energy) pairs.

    The energies may be any callables, such as a classifier, a distance to a text, or a count of
    words. A term of weight 0 is not computed.
    """

    terms: Sequence[tuple[float, Energy]]

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        total = torch.zeros(len(tokens), device=tokens.device)
        for i, (weight, energy) in enumerate(self.terms):
            if weight == 0:
                continue
            value = energy(tokens)
            if value.shape != total.shape:
                shape, limit = tuple(value.shape), tuple(total.shape)
                raise ValueError(f"terms[{i}] has the shape {shape}; {limit} is needed")
            total = total + weight * value
        return total

    def chosen(self, chains: Int[Tensor, " rows"]) -> "WeightedSum":
        return WeightedSum([(weight, chosen(energy, chains)) for weight, energy in self.terms])


@dataclass(frozen=True, eq=False)
class Constrained:
    """An energy that is infinite for texts with a token that is not allowed in its place.

    Proposals with the same `allowed` never propose such a text; this energy verifies it.

    Args:
        energy: the energy of all other texts.
        text: the tokens of the frozen positions.
        allowed: the tokens allowed at each position; a position without any is frozen.
    """

    energy: Energy
    _: KW_ONLY
    text: Int[Tensor, "chain time"]
    allowed: Bool[Tensor, "chain time vocab"]

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        kept = ~self.allowed.any(-1) & (tokens == self.text)
        fine = (kept | may_stand(tokens, self.allowed)).all(-1)
        return self.energy(tokens).where(fine, float("inf"))

    def chosen(self, chains: Int[Tensor, " rows"]) -> "Constrained":
        return Constrained(
            chosen(self.energy, chains), text=self.text[chains], allowed=self.allowed[chains]
        )


def chosen(energy: Energy, chains: Int[Tensor, " rows"]) -> Energy:
    """The energy of rows that belong to these chains; some energies serve any rows."""
    return energy.chosen(chains) if isinstance(energy, BoundEnergy) else energy


def pick(table: Tensor | None, chains: Int[Tensor, " rows"]) -> Tensor | None:
    """The chosen rows of a table; None if there is no table."""
    return None if table is None else table[chains]
