"""Energies of texts under a masked language model (thesis, Sec. 6.2): raw, local, and composed.

An energy is a function from texts to numbers, lower is likelier; any callable of that form serves.
One that is bound to its chains, row by row, also says which energy some of them have (`chosen`).
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softbeam.sampling.masking import ROWS, packed_logits, site_logits
from softbeam.tensors import may_stand
from softbeam.types import BoundEnergy, Energy, MaskedLM


@dataclass(frozen=True, eq=False)
class RawEnergy:
    r"""E_raw(y) = -sum_t of the logit of y_t given y\t, t alone masked (thesis, Sec. 6.2.1).

    Adding a number to all logits of a context changes nothing that a masked language model was
    trained for, but changes this energy: it needs the logits from before the softmax, and refuses
    log-probabilities, which would turn it silently into `LocalEnergy`.

    Args:
        mlm: the masked language model.
        owner: the source of each chain; the first for all unless given.
        counted: positions in the sum; those that hold a token of `mlm.allowed` unless given.
            Frozen words of a prompt belong to the text and count; padding never does.
        rows: largest number of masked rows given to the model at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    owner: Int[Tensor, " chain"] | None = None
    counted: Bool[Tensor, "chain time"] | None = None
    rows: int = ROWS

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return -self.scores(tokens).sum(-1)

    def scores(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, "chain time"]:
        """The logit of each token; 0 where a position does not count."""
        return site_scores(
            self.mlm, tokens, self.score, owner=self.owner, counted=self.counted, rows=self.rows
        )

    def score(
        self, logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
    ) -> Float[Tensor, " cells"]:
        """The target's logit."""
        return raw_score(logits, target)

    def chosen(self, chains: Int[Tensor, " rows"]) -> "RawEnergy":
        return replace(self, owner=pick(self.owner, chains), counted=pick(self.counted, chains))


@dataclass(frozen=True, eq=False)
class LocalEnergy:
    r"""E_local(y) = -sum_t log p(y_t | y\t), the pseudo-log-likelihood (thesis, Sec. 6.2.4).

    Args:
        mlm: the masked language model.
        owner: the source of each chain; the first for all unless given.
        counted: positions in the sum, as in `RawEnergy`.
        restricted: normalize over `mlm.allowed` instead of the whole vocabulary. Both are valid
            energies over the same texts, and differ.
        rows: largest number of masked rows given to the model at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    owner: Int[Tensor, " chain"] | None = None
    counted: Bool[Tensor, "chain time"] | None = None
    restricted: bool = False
    rows: int = ROWS

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        return -self.scores(tokens).sum(-1)

    def scores(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, "chain time"]:
        """The log-probability of each token; 0 where a position does not count."""
        return site_scores(
            self.mlm, tokens, self.score, owner=self.owner, counted=self.counted, rows=self.rows
        )

    def score(
        self, logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
    ) -> Float[Tensor, " cells"]:
        """The target's log-probability."""
        if self.restricted:
            logits = logits.masked_fill(~self.mlm.allowed, float("-inf"))
        return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]

    def chosen(self, chains: Int[Tensor, " rows"]) -> "LocalEnergy":
        return replace(self, owner=pick(self.owner, chains), counted=pick(self.counted, chains))


def site_scores(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    owner: Int[Tensor, " chain"] | None = None,
    counted: Bool[Tensor, "chain time"] | None = None,
    rows: int = ROWS,
) -> Float[Tensor, "chain time"]:
    """`score(logits, token)` of each counted position with that position alone masked, else 0.

    One row for each counted position of each chain, all of them packed together.
    """
    counted = counted_sites(mlm, tokens, counted)
    chain, site = counted.nonzero(as_tuple=True)
    if not len(chain):
        return torch.zeros(tokens.shape, device=tokens.device)
    targets, order, values = tokens[counted], [], []
    for index, logits in site_logits(mlm, tokens, chain, site, owner, limit=rows):
        order.append(index)
        values.append(score(logits, targets[index]))
    in_turn = torch.cat(values)[torch.cat(order).argsort()]
    return in_turn.new_zeros(tokens.shape).masked_scatter(counted, in_turn)


def counted_sites(
    mlm: MaskedLM,
    tokens: Int[Tensor, "chain time"],
    counted: Bool[Tensor, "chain time"] | None = None,
) -> Bool[Tensor, "chain time"]:
    """The positions of an energy's sum: those given, or those of allowed tokens; no padding."""
    counted = may_stand(tokens, mlm.allowed) if counted is None else counted
    return counted & (tokens != mlm.pad_id)


def raw_score(
    logits: Float[Tensor, "cells vocab"], target: Int[Tensor, " cells"]
) -> Float[Tensor, " cells"]:
    """The target's logit. An error if the logits are log-probabilities."""
    # By chance one cell may sum to one; that several do, to rounding, is no chance.
    rounding = min(64 * torch.finfo(logits.dtype).eps, 0.05)
    if len(logits) > 1 and bool((logits.logsumexp(-1).abs() < rounding).all()):
        raise ValueError(
            f"mlm.logits: all {len(logits)} cells sum to one, so they are log-probabilities. "
            "RawEnergy needs the logits from before the softmax; for these, use LocalEnergy"
        )
    return logits.gather(-1, target[:, None])[:, 0]


# Composition


@dataclass(frozen=True, eq=False)
class Tempered:
    """E(y) / temperature: above 1 flatter, below 1 around the modes (thesis, Sec. 6.8).

    For a fixed target. Kernels take a temperature of their own, which may change by the sweep
    while their states keep the energy E.
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
    """sum_i w_i E_i(y) of (weight, energy) pairs: a product of experts.

    The energies may be any callables: a classifier's, a distance to a text, a count of words. A
    term of weight 0 is not computed.
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
    """The energy, and infinite for a text that holds what is not allowed where it stands.

    Proposals with the same `allowed` never propose such a text; this is the check that they don't.

    Args:
        energy: the energy of the other texts.
        text: what stands at the frozen positions.
        allowed: what may stand where; a position where nothing may is frozen.
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
    """The energy of rows that belong to these chains; one bound to none serves any rows."""
    return energy.chosen(chains) if isinstance(energy, BoundEnergy) else energy


def pick(table: Tensor | None, chains: Int[Tensor, " rows"]) -> Tensor | None:
    """The rows of a table that may be missing."""
    return None if table is None else table[chains]


@dataclass(frozen=True, eq=False)
class StridedEnergy:
    """Like `LocalEnergy`, but every `stride`-th token is masked together: `stride` rows a text.

    Another energy, near enough to refuse by: the first stage of delayed acceptance. With a stride
    as long as the text it is `LocalEnergy`.

    Args:
        mlm: the masked language model.
        stride: rows of each text, and distance between positions masked together.
        owner: the source of each chain; the first for all unless given.
        rows: largest number of rows given to the model at once.
    """

    mlm: MaskedLM
    _: KW_ONLY
    stride: int = 4
    owner: Int[Tensor, " chain"] | None = None
    rows: int = ROWS

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride={self.stride} must be at least 1")

    def __call__(self, tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
        counted = may_stand(tokens, self.mlm.allowed) & (tokens != self.mlm.pad_id)
        turn = torch.arange(tokens.shape[1], device=tokens.device) % self.stride
        masked = (counted[:, None] & (turn == torch.arange(self.stride)[:, None])).flatten(0, 1)
        texts = tokens.repeat_interleave(self.stride, 0)
        owner = None if self.owner is None else self.owner.repeat_interleave(self.stride)
        some = masked.any(-1)  # a short text has fewer rows
        if not bool(some.any()):
            return torch.zeros(len(tokens), device=tokens.device)
        source = None if owner is None else owner[some]
        packs = packed_logits(self.mlm, texts[some], masked[some], source, limit=self.rows)
        targets, scores = texts[masked], []
        for logits in packs:
            now, targets = targets[: len(logits)], targets[len(logits) :]
            scores.append(logits.log_softmax(-1).gather(-1, now[:, None])[:, 0])
        values = torch.cat(scores)
        cells = values.new_zeros(masked.shape).masked_scatter(masked, values)
        return -cells.unflatten(0, (len(tokens), self.stride)).sum((1, 2))

    def chosen(self, chains: Int[Tensor, " rows"]) -> "StridedEnergy":
        return replace(self, owner=pick(self.owner, chains))
