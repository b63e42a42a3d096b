r"""Metropolis-Hastings on a masked language model: the chain of `kernels`, with far fewer rows.

The rows that give E(y), each with one site masked, are also what proposals at single sites are
drawn from. They are kept, so that a proposal from an unchanged text asks the model nothing. What
proposes the text itself needs no energy. A site's row doesn't read the site's own token, so a new
word there needs the rows of the other sites alone; if it is accepted, these are what is kept next.

With the same generator in float64 the chain is that of `sampling.kernels.metropolis_hastings`,
token by token: the same numbers are drawn in the same order, and energies agree to rounding.

In float32 the law is the same up to rounding, which depends on the rows that are packed together,
and so the chains part after a while. For bfloat16, load a model in it or wrap it in
`sampling.masking.HalfPrecision`, which says what that costs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

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
from softbeam.tensors import rank
from softbeam.types import ChainState, Energy, Kernel, MaskedLM, Propose, Proposed, StepInfo

BYTES = 2**30  # of kept logits


class Rows(NamedTuple):
    """What the model said of some sites, each masked alone."""

    chain: Int[Tensor, " cells"]
    site: Int[Tensor, " cells"]
    logits: Float[Tensor, "cells vocab"]

    def where(self, chosen: Bool[Tensor, " cells"]) -> "Rows":
        return self if bool(chosen.all()) else Rows(*(part[chosen] for part in self))


class SiteCache:
    """A masked language model's logits at each site given the others, for the texts last seen.

    A row is kept together with the text that it was computed from, and is given out only for a text
    with the same tokens at all other sites: it cannot be stale. What changes without a trace in the
    tokens, the model's weights, is forgotten by a kernel's `init`.

    Chains * time * vocab numbers are kept, and a step holds as many again while it decides. Of
    more chains than fit into `limit`, only the first are kept; the others cost a row for each
    proposal, and the chain is the same.

    Args:
        limit: largest number of bytes, both halves together.
    """

    def __init__(self, *, limit: int = BYTES):
        self.limit = limit
        self.bound: tuple[MaskedLM, Tensor | None] | None = None
        self.forget()

    def forget(self) -> None:
        self.tokens = torch.empty(0, 0, dtype=torch.long)
        self.fresh = torch.empty(0, 0, dtype=torch.bool)  # rows that are right for `tokens`
        self.logits = torch.empty(0, 0, 0)

    def bind(self, mlm: MaskedLM, owner: Tensor | None) -> None:
        """An error if it already belongs to another model, or to chains of other sources."""
        if self.bound is not None and not (self.bound[0] is mlm and equal(self.bound[1], owner)):
            raise ValueError("cache: it holds rows of another model, or of other sources")
        self.bound = mlm, owner

    def known(self, tokens: Int[Tensor, "chain time"]) -> Bool[Tensor, "chain time"]:
        """True where the row of a site is right for these texts: all other tokens are the same."""
        if tokens.shape != self.tokens.shape:
            return torch.zeros_like(tokens, dtype=torch.bool)
        changed = (tokens != self.tokens).long()
        return self.fresh & (changed.sum(-1, keepdim=True) == changed)

    def hold(self, tokens: Int[Tensor, "chain time"]) -> None:
        """From now on these texts; rows that are not right for them are forgotten."""
        self.fresh = self.known(tokens)
        self.tokens = tokens.clone()  # the caller may change its own

    def put(self, rows: "Rows") -> None:
        """Keep rows of the texts held, as far as there is room."""
        if not len(rows.chain):
            return
        chains, time = self.tokens.shape
        shape = (min(chains, self.room(rows.logits)), time, rows.logits.shape[-1])
        if self.logits.shape != shape:
            self.logits = rows.logits.new_empty(shape)
            self.fresh = torch.zeros_like(self.fresh)
        chain, site, logits = rows.where(rows.chain < len(self.logits))
        self.logits[chain, site] = logits.to(self.logits)
        self.fresh[chain, site] = True

    def room(self, logits: Float[Tensor, "cells vocab"]) -> int:
        """Number of chains that fit: each has two numbers for each site and token."""
        each = 2 * self.tokens.shape[1] * logits.shape[-1] * logits.element_size()
        return self.limit // max(each, 1)


class Parts(NamedTuple):
    """E = weight * sites + rest; only the first knows its energy site by site."""

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
    """The kernel `metropolis_hastings(energy, propose)`: the same chain, asking the model less.

    Fast are `LocalEnergy` and `RawEnergy`, alone or inside of `WeightedSum`, `Tempered` and
    `Constrained`; the other terms are computed for each new text. Any other energy gets the plain
    kernel. Proposals at single sites are free for `MaskedConditionals` of the same model and
    sources; a block costs one row, and all its energy's, and proposals of one's own work.

    `sites_a_round` rejects early: the terms of a local energy are never negative, so a sum that is
    already too large can only grow. The uniform number is drawn first, and the sites are scored a
    few at a time, nearest to the change first. The chain stays the same, but the `log_accept` of a
    proposal that was rejected early is only an upper bound.

    States are plain: going on from one, here or in another process, gives the same chain. The cache
    is in the kernel and not in the state, since whoever keeps all states would keep all caches.

    Args:
        energy: of the target.
        propose: the proposals.
        temperature: of the target, as in `metropolis_hastings`.
        sites_a_round: sites of a chain that are scored before asking whether it is rejected
            already; all at once unless given.
        cache: what is kept; kernels that differ in their temperature alone can share one.
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

    @torch.no_grad()
    def init(tokens: Tensor) -> ChainState:
        with torch.inference_mode():
            held.forget()
            held.hold(tokens)
            every = torch.arange(len(tokens), device=tokens.device)
            scored = score(parts, held, tokens, every, [sites_of(parts, tokens)])
            for rows in scored.rows:
                held.put(rows)
        return ChainState(tokens, checked(scored.energy).clone())

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        with torch.inference_mode():
            held.hold(state.tokens)
            new = draw(state.tokens, positions, rng)
            log_u = log_uniform(new.log_q_forward, rng)
            changed = new.tokens != state.tokens
            repeated = ~changed.any(-1)
            novel = (~repeated).nonzero()[:, 0]
            missing = (sites_of(parts, new.tokens) & ~held.known(new.tokens))[novel]
            if sites_a_round is None:
                scored = score(parts, held, new.tokens, novel, [missing])
            else:
                rounds = nearest_first(missing, changed[novel], sites_a_round)
                limit = largest_accepted(state.energy, new, log_u, temperature)[novel]
                scored = score(parts, held, new.tokens, novel, rounds, limit)

            new_energy = state.energy.index_copy(0, novel, scored.energy.to(state.energy))
            log_a = log_acceptance(
                state.energy / temperature,
                checked(new_energy) / temperature,
                new.log_q_forward,
                new.log_q_reverse,
            ).masked_fill(repeated, 0.0)
            accepted = log_u < log_a
            tokens = torch.where(accepted[:, None], new.tokens, state.tokens)
            held.hold(tokens)
            for rows in scored.rows:
                held.put(rows.where(accepted[rows.chain]))
            after = ChainState(tokens, torch.where(accepted, new_energy, state.energy))
            info = StepInfo(log_a, accepted, accepted & ~repeated, repeated, cannot_return(new))
        # copies from outside of inference mode can be used where gradients are wanted
        return ChainState(*(t.clone() for t in after)), StepInfo(*(t.clone() for t in info))

    return Kernel(init, step)


# What an energy is made of


def terms(energy: Energy, weight: float = 1.0) -> list[tuple[float, Energy]]:
    """(weight, energy) pairs of which it is the sum; a constraint is a term of 0 or infinity."""
    match energy:
        case Tempered(inner, temperature):
            return terms(inner, weight / temperature)
        case WeightedSum(pairs):
            return [term for w, inner in pairs if w for term in terms(inner, weight * w)]
        case Constrained(inner):
            return [*terms(inner, weight), (weight, replace(energy, energy=zero))]
    return [(weight, energy)]


def zero(tokens: Int[Tensor, "chain time"]) -> Float[Tensor, " chain"]:
    return torch.zeros(len(tokens), device=tokens.device)


def split(energy: Energy, propose: Propose) -> Parts | None:
    """The energy's masked language model and the rest; None without one.

    Of several, the one whose rows the proposals are drawn from.
    """
    pairs = terms(energy)
    found = [i for i, (_, e) in enumerate(pairs) if isinstance(e, RawEnergy | LocalEnergy)]
    if not found:
        return None
    best = max(found, key=lambda i: shares_rows(propose, pairs[i][1]))
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
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def sites_of(parts: Parts, tokens: Int[Tensor, "chain time"]) -> Bool[Tensor, "chain time"]:
    return counted_sites(parts.sites.mlm, tokens, parts.sites.counted)


# Proposals


@dataclass(frozen=True, eq=False)
class CachedProposals:
    """The same proposals; those at a single site ask the model only for what is not known."""

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
        known = alone & self.cache.known(tokens)
        old = self.cache.logits[known.nonzero(as_tuple=True)]
        if torch.equal(known, positions):
            return old
        asked = positions & ~known
        new = self.propose.logits(tokens, asked)
        chain, site = asked.nonzero(as_tuple=True)
        self.cache.put(Rows(chain, site, new).where(alone[asked]))
        if not len(old):
            return new
        table, cells = old.new_empty(int(positions.sum()), old.shape[-1]), known[positions]
        table[cells], table[~cells] = old, new.to(old)
        return table


# Energies


class Scored(NamedTuple):
    """Energies of new texts, and the rows that they took as far as there is room for them."""

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
    """The energies of these chains: known sites first, then the model is asked, round by round.

    A text whose energy is above its limit already, or infinite, is not asked about any more.
    """
    sites, texts = parts.sites.chosen(chains), tokens[chains]
    known = counted_sites(sites.mlm, texts, sites.counted) & cache.known(tokens)[chains]
    rest = energy_of(parts.rest, texts, chains, like=texts.new_zeros(len(texts)).double())
    scores = rest.new_zeros(texts.shape)
    if bool(known.any()):
        row, site = known.nonzero(as_tuple=True)
        scores[known] = sites.score(cache.logits[chains[row], site], texts[known]).double()

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
            scores[r, s] = sites.score(logits, texts[r, s]).double()
            seen.append(Rows(chains[r], s, logits).where(chains[r] < cache.room(logits)))
    return Scored(so_far(), seen)


# Early rejection


def largest_accepted(
    energy: Float[Tensor, " chain"],
    new: Proposed,
    log_u: Float[Tensor, " chain"],
    temperature: Temperature,
) -> Float[Tensor, " chain"]:
    """The energy above which a proposal is rejected, and a little more so that rounding is safe."""
    margin = 64 * torch.finfo(energy.dtype).eps * (1 + energy.abs())
    return energy + temperature * (new.log_q_reverse - new.log_q_forward - log_u) + margin


def nearest_first(
    sites: Bool[Tensor, "chain time"], changed: Bool[Tensor, "chain time"], size: int
) -> Iterator[Bool[Tensor, "chain time"]]:
    """The sites, so many of each chain at a time, in the order of their distance to a change."""
    place = torch.arange(sites.shape[1], device=sites.device)
    gap = (place[:, None] - place).abs().where(changed[:, None], len(place)).amin(-1)
    turn = rank(gap.masked_fill(~sites, len(place) + 1))
    for first in range(0, int(sites.sum(-1).amax()) if len(sites) else 0, size):
        yield sites & (turn >= first) & (turn < first + size)


def check_early(parts: Parts, sites_a_round: int) -> None:
    if sites_a_round < 1:
        raise ValueError(f"sites_a_round={sites_a_round}; at least 1 is needed")
    if not isinstance(parts.sites, LocalEnergy) or not parts.weight > 0:
        kind = type(parts.sites).__name__
        raise ValueError(
            f"sites_a_round={sites_a_round}: the terms of {kind} with weight {parts.weight} may be "
            "negative; only those of LocalEnergy with a weight above 0 never are"
        )
