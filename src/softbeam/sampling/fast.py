r"""Metropolis-Hastings on a masked language model: the chain of `kernels`, with far fewer rows.

E(y) needs a row for each site, in which that site is masked. Proposals at single sites are drawn
from the same rows. So the rows are kept, and a proposal from an unchanged text needs no call of the
model. A proposal that repeats the text needs no new energy. A site's row does not depend on the
token at that site, so a new token there needs only the rows of the other sites; if the proposal is
accepted, those rows are kept.

With the same generator in float64 the chain is that of `sampling.kernels.metropolis_hastings`,
token by token: the same numbers are drawn in the same order, and energies agree up to rounding.

In float32 the distribution is the same up to rounding. Rounding depends on which rows are computed
together, so that the two chains differ after a while. The same holds for a model that is loaded in
bfloat16, whose logits have about three digits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.energies import (
    Constrained,
    LocalEnergy,
    RawEnergy,
    Tempered,
    WeightedSum,
    counted_sites,
)
from softbeam.sampling.kernels import (
    Temperature,
    cannot_return,
    check_temperature,
    checked,
    energy_of,
    log_acceptance,
    log_uniform,
    metropolis_hastings,
)
from softbeam.sampling.masking import site_logits
from softbeam.sampling.proposals import MaskedConditionals, check_tokens, drawn
from softbeam.tensors import moved, rank
from softbeam.types import ChainState, Energy, Kernel, MaskedLM, Propose, Proposed, StepInfo

BYTES = 2**30  # of logits to keep


class Rows(NamedTuple):
    """The model's logits at some sites, each masked alone."""

    chain: Int[Tensor, " cells"]
    site: Int[Tensor, " cells"]
    logits: Float[Tensor, "cells vocab"]

    def where(self, chosen: Bool[Tensor, " cells"]) -> "Rows":
        """The chosen rows."""
        if bool(chosen.all()):
            return self
        index = chosen.nonzero()[:, 0]
        return Rows(self.chain[index], self.site[index], self.logits[on_device(index, self.logits)])


def on_device(index: Any, table: Tensor) -> Any:
    """Indices, or a tuple of them, on the device of the table that they are for."""
    parts = index if isinstance(index, tuple) else (index,)
    moves = tuple(moved(part, table.device) for part in parts)
    return moves if isinstance(index, tuple) else moves[0]


class SiteCache:
    """A cache of a masked language model's logits at each site, for the current texts.

    A row is kept with the text that it was computed from, and is used only for texts with the same
    tokens at all other sites, so it is never out of date. Changes of the model's weights are not
    noticed; a kernel's `init` empties the cache.

    The cache has chains * time * vocab numbers, and a step holds as many again until it accepts.
    If not all chains fit into `limit`, only the first ones are kept. The others cost a row for
    each proposal; their chains are the same.

    Args:
        limit: the largest number of bytes, of the cache and of a step together.
    """

    def __init__(self, *, limit: int = BYTES):
        self.limit = limit
        self.bound: tuple[MaskedLM, Tensor | None] | None = None
        self.forget()

    def forget(self) -> None:
        """Empty the cache."""
        self.tokens = torch.empty(0, 0, dtype=torch.long)
        self.fresh = torch.empty(0, 0, dtype=torch.bool)  # rows that are valid for `tokens`
        self.logits = torch.empty(0, 0, 0)

    def bind(self, mlm: MaskedLM, owner: Tensor | None) -> None:
        """Raise ValueError if the cache belongs to another model, or to chains of other sources."""
        if self.bound is not None and not (self.bound[0] is mlm and equal(self.bound[1], owner)):
            raise ValueError("cache: belongs to another model, or to other sources")
        self.bound = mlm, owner

    def known(self, tokens: Int[Tensor, "chain time"]) -> Bool[Tensor, "chain time"]:
        """True where the row of a site is valid for these texts: all other tokens are equal."""
        if tokens.shape != self.tokens.shape:
            return torch.zeros_like(tokens, dtype=torch.bool)
        changed = (tokens != self.tokens).long()
        return self.fresh & (changed.sum(-1, keepdim=True) == changed)

    def hold(self, tokens: Int[Tensor, "chain time"]) -> None:
        """Make these the current texts; rows that are not valid for them are dropped."""
        self.fresh = self.known(tokens)
        self.tokens = tokens.clone()  # the caller may change its own

    def put(self, rows: "Rows") -> None:
        """Keep rows of the current texts, as far as there is room."""
        if not len(rows.chain):
            return
        chains, time = self.tokens.shape
        shape = (min(chains, self.room(rows.logits)), time, rows.logits.shape[-1])
        if self.logits.shape != shape:
            self.logits = rows.logits.new_empty(shape)
            self.fresh = torch.zeros_like(self.fresh)
        chain, site, logits = rows.where(rows.chain < len(self.logits))
        self.logits[on_device((chain, site), self.logits)] = logits.to(self.logits)
        self.fresh[chain, site] = True

    def at(
        self, chain: Int[Tensor, " cells"], site: Int[Tensor, " cells"]
    ) -> Float[Tensor, "cells vocab"]:
        """The logits of some sites."""
        return self.logits[on_device((chain, site), self.logits)]

    def room(self, logits: Float[Tensor, "cells vocab"]) -> int:
        """The number of chains that fit; each needs two numbers for each site and token."""
        each = 2 * self.tokens.shape[1] * logits.shape[-1] * logits.element_size()
        return self.limit // max(each, 1)


class Parts(NamedTuple):
    """An energy E = weight * sites + rest, where `sites` is a sum over sites."""

    weight: float
    sites: RawEnergy | LocalEnergy
    rest: WeightedSum


def fast_metropolis_hastings(
    energy: Energy,
    propose: Propose,
    *,
    temperature: Temperature = 1.0,
    sites_a_round: int | None = None,
    cache: SiteCache | None = None,
) -> Kernel:
    """Make the kernel `metropolis_hastings(energy, propose)`, which calls the model less often.

    `LocalEnergy` and `RawEnergy` are fast, alone or inside `WeightedSum`, `Tempered` and
    `Constrained`; the other terms are computed for each new text. Any other energy gets the plain
    kernel. Proposals at single sites are free with `MaskedConditionals` of the same model and
    sources. A block costs one row, besides the rows of its energy. Any other proposals work, too.

    `sites_a_round` rejects early: the terms of a local energy are never negative, so that a sum
    that is already too large can only grow. The uniform number is drawn first, and the sites are
    scored a few at a time, starting with those nearest to the change. The chain stays the same, but
    the `log_accept` of a proposal that was rejected early is only an upper bound.

    States are plain tensors: continuing from one, here or in another process, gives the same chain.
    The cache belongs to the kernel and not to the state, so that keeping all states is cheap.

    Args:
        energy: the energy of the target.
        propose: the proposals.
        temperature: the temperature of the target, as in `metropolis_hastings`.
        sites_a_round: the number of sites to score before checking whether the proposal is already
            rejected; by default all at once.
        cache: the cache to use; kernels that differ only in temperature can share one.
    """
    check_temperature(temperature)
    parts = split(energy, propose)
    if parts is None:
        return metropolis_hastings(energy, propose, temperature=temperature)
    if sites_a_round is not None:
        check_early(parts, sites_a_round)
    held = SiteCache() if cache is None else cache
    held.bind(parts.sites.mlm, parts.sites.owner)
    draw = CachedProposals(propose, held) if shares_rows(propose, parts.sites) else propose
    kernel = _FastKernel(parts, draw, held, temperature, sites_a_round)
    return Kernel(kernel.init, kernel.step)


@dataclass(frozen=True, eq=False)
class _FastKernel:
    """The two functions of `fast_metropolis_hastings`, and what they share."""

    parts: "Parts"
    propose: Propose
    cache: SiteCache
    temperature: Temperature
    sites_a_round: int | None

    @torch.no_grad()
    def init(self, tokens: Tensor) -> ChainState:
        """Score the texts from scratch, and keep their rows."""
        with torch.inference_mode():
            self.cache.forget()
            self.cache.hold(tokens)
            every = torch.arange(len(tokens), device=tokens.device)
            scored = score(self.parts, self.cache, tokens, every, [sites_of(self.parts, tokens)])
            for rows in scored.rows:
                self.cache.put(rows)
        return ChainState(tokens, checked(scored.energy).clone())

    @torch.no_grad()
    def step(
        self, state: ChainState, positions: Tensor, rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Propose new tokens at the positions; accept or refuse them."""
        temperature = self.temperature
        with torch.inference_mode():
            self.cache.hold(state.tokens)
            new = self.propose(state.tokens, positions, rng)
            log_u = log_uniform(new.log_q_forward, rng)
            repeated = (new.tokens == state.tokens).all(-1)
            novel = (~repeated).nonzero()[:, 0]
            scored = self.score_novel(state, new, log_u, novel)
            new_energy = state.energy.index_copy(0, novel, scored.energy.to(state.energy))
            log_a = log_acceptance(
                state.energy / temperature,
                checked(new_energy) / temperature,
                new.log_q_forward,
                new.log_q_reverse,
            ).masked_fill(repeated, 0.0)
            accepted = log_u < log_a
            tokens = torch.where(accepted[:, None], new.tokens, state.tokens)
            self.cache.hold(tokens)
            for rows in scored.rows:
                self.cache.put(rows.where(accepted[rows.chain]))
            after = ChainState(tokens, torch.where(accepted, new_energy, state.energy))
            told = (log_a, accepted, accepted & ~repeated, repeated, cannot_return(new), new.tokens)
        # copies made outside of inference mode can be used where gradients are wanted
        return ChainState(*(t.clone() for t in after)), StepInfo(*(t.clone() for t in told))

    def score_novel(
        self,
        state: ChainState,
        new: Proposed,
        log_u: Float[Tensor, " chain"],
        novel: Int[Tensor, " rows"],
    ) -> "Scored":
        """Score the proposals of the chains `novel`, which differ from their texts."""
        known = self.cache.known(new.tokens)
        missing = (sites_of(self.parts, new.tokens) & ~known)[novel]
        if self.sites_a_round is None:
            return score(self.parts, self.cache, new.tokens, novel, [missing])
        changed = (new.tokens != state.tokens)[novel]
        rounds = nearest_first(missing, changed, self.sites_a_round)
        limit = largest_accepted(state.energy, new, log_u, self.temperature)[novel]
        return score(self.parts, self.cache, new.tokens, novel, rounds, limit)


# Parts of an energy


def terms(energy: Energy, weight: float = 1.0) -> list[tuple[float, Energy]]:
    """Split an energy into a sum of (weight, energy) pairs; constraints are 0 or infinite."""
    match energy:
        case Tempered(inner, temperature):
            return terms(inner, weight / temperature)
        case WeightedSum(pairs):
            return [term for w, inner in pairs if w for term in terms(inner, weight * w)]
        case Constrained(inner):
            return [*terms(inner, weight), (weight, replace(energy, energy=zero))]
    return [(weight, energy)]


def zero(tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
    """The energy 0 of every text."""
    return torch.zeros(len(tokens), device=tokens.device)


def split(energy: Energy, propose: Propose) -> Parts | None:
    """Separate a sum over sites from the rest of an energy; None if there is no such sum.

    Of several sums, take the one whose rows the proposals are drawn from.
    """
    pairs = terms(energy)
    sums = [i for i, (_, e) in enumerate(pairs) if isinstance(e, RawEnergy | LocalEnergy)]
    if not sums:
        return None
    best = max(sums, key=lambda i: shares_rows(propose, pairs[i][1]))
    weight, sites = pairs.pop(best)
    assert isinstance(sites, RawEnergy | LocalEnergy)
    return Parts(weight, sites, WeightedSum(pairs))


def shares_rows(propose: Propose, energy: Energy) -> TypeGuard[MaskedConditionals]:
    """True if proposals at single sites are drawn from the rows of this energy."""
    return (
        isinstance(propose, MaskedConditionals)
        and isinstance(energy, RawEnergy | LocalEnergy)
        and propose.mlm is energy.mlm
        and equal(propose.owner, energy.owner)
    )


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """True for two equal tensors, or none at all."""
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def sites_of(parts: Parts, tokens: Int[Tensor, "chain time"]) -> Bool[Tensor, "chain time"]:
    """The positions in the sum over sites."""
    return counted_sites(parts.sites.mlm, tokens, parts.sites.counted)


# Proposals


@dataclass(frozen=True, eq=False)
class CachedProposals:
    """Masked conditionals that take the logits of single sites from a cache where it has them."""

    propose: MaskedConditionals
    cache: SiteCache

    def __call__(
        self,
        tokens: Int[Tensor, "chain time"],
        positions: Bool[Tensor, "chain time"],
        rng: Generator,
    ) -> Proposed:
        check_tokens(tokens, positions, self.propose.choices)
        log_p = self.propose.normalized(self.logits(tokens, positions), positions)
        return drawn(self.propose.parts(log_p), tokens, positions, rng)

    def logits(
        self, tokens: Int[Tensor, "chain time"], positions: Bool[Tensor, "chain time"]
    ) -> Float[Tensor, "cells vocab"]:
        """The model's logits at the given positions, masked together, row by row."""
        alone = positions & (positions.sum(-1, keepdim=True) == 1)
        kept = alone & self.cache.known(tokens)
        old = self.cache.at(*kept.nonzero(as_tuple=True))
        if torch.equal(kept, positions):
            return old
        asked = positions & ~kept
        new = self.propose.logits(tokens, asked)
        chain, site = asked.nonzero(as_tuple=True)
        self.cache.put(Rows(chain, site, new).where(alone[asked]))
        if not len(old):
            return new
        cells = kept[positions]
        order = torch.cat([cells.nonzero()[:, 0], (~cells).nonzero()[:, 0]]).argsort()
        return torch.cat([old, new.to(old)])[on_device(order, old)]


# Energies


class Scored(NamedTuple):
    """Energies of new texts, and the rows they needed, as far as there is room for them."""

    energy: Float[Tensor, " rows"]  # in float64; where the limit was passed, a lower bound
    rows: list[Rows]


def score(
    parts: Parts,
    cache: SiteCache,
    tokens: Int[Tensor, "chain time"],
    chains: Int[Tensor, " rows"],
    rounds: Iterable[Bool[Tensor, "rows time"]],
    limit: Float[Tensor, " rows"] | None = None,
) -> Scored:
    """Compute the energies of these chains: first from the cache, then round by round.

    A text whose energy is already above its limit, or infinite, is left out of further rounds.
    """
    sites, texts = parts.sites.chosen(chains), tokens[chains]
    kept = counted_sites(sites.mlm, texts, sites.counted) & cache.known(tokens)[chains]
    rest = energy_of(parts.rest, texts, chains, like=texts.new_zeros(len(texts)).double())
    scores = rest.new_zeros(texts.shape)
    found: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, sites, and their scores on a device

    def settle() -> None:
        """Copy the scores to the texts' device, all at once."""
        if found:
            rows, places, values = (torch.cat(part) for part in zip(*found, strict=True))
            scores[rows, places] = values.to(scores.device).double()
            found.clear()

    if bool(kept.any()):
        row, site = kept.nonzero(as_tuple=True)
        found.append((row, site, sites.score(cache.at(chains[row], site), texts[kept])))
        if limit is not None or cache.logits.device == scores.device:
            settle()

    def so_far() -> Tensor:
        return rest - parts.weight * scores.sum(-1)

    seen = []
    for asked in rounds:
        going = so_far().isfinite()
        if limit is not None:
            going &= ~(so_far() > limit)
        row, site = (asked & going[:, None]).nonzero(as_tuple=True)
        for index, logits in site_logits(
            sites.mlm, texts, row, site, sites.owner, limit=sites.rows
        ):
            r, s = row[index], site[index]
            found.append((r, s, sites.score(logits, texts[r, s])))
            seen.append(Rows(chains[r], s, logits).where(chains[r] < cache.room(logits)))
        settle()
    settle()
    return Scored(so_far(), seen)


# Early rejection


def largest_accepted(
    energy: Float[Tensor, " chain"],
    new: Proposed,
    log_u: Float[Tensor, " chain"],
    temperature: Temperature,
) -> Float[Tensor, " chain"]:
    """The energy above which a proposal is rejected, plus a margin for rounding."""
    margin = 64 * torch.finfo(energy.dtype).eps * (1 + energy.abs())
    return energy + temperature * (new.log_q_reverse - new.log_q_forward - log_u) + margin


def nearest_first(
    sites: Bool[Tensor, "chain time"], changed: Bool[Tensor, "chain time"], size: int
) -> Iterator[Bool[Tensor, "chain time"]]:
    """Yield `size` sites of each chain at a time, those nearest to a change first."""
    place = torch.arange(sites.shape[1], device=sites.device)
    gap = (place[:, None] - place).abs().where(changed[:, None], len(place)).amin(-1)
    turn = rank(gap.masked_fill(~sites, len(place) + 1))
    for first in range(0, int(sites.sum(-1).amax()) if len(sites) else 0, size):
        yield sites & (turn >= first) & (turn < first + size)


def check_early(parts: Parts, sites_a_round: int) -> None:
    """Raise ValueError if proposals cannot be rejected early."""
    if sites_a_round < 1:
        raise ValueError(f"sites_a_round={sites_a_round} must be at least 1")
    if not isinstance(parts.sites, LocalEnergy) or not parts.weight > 0:
        kind = type(parts.sites).__name__
        raise ValueError(
            f"sites_a_round={sites_a_round}: the terms of {kind} with weight {parts.weight} may be "
            "negative; only those of LocalEnergy with a weight above 0 never are"
        )
