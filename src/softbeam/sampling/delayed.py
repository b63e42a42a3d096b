r"""Metropolis-Hastings that refuses blocks by the energy of the block before it computes the rest.

The energy is a sum over sites. Its terms at the proposed positions M decide first, with the
proposals (Christen and Fox 2005); only if they accept, the terms of all other sites are computed:

    E = E_M + E_rest
    a = min(1, q(y; y') / q(y'; y) exp(E_M(y) - E_M(y'))) min(1, exp(E_rest(y) - E_rest(y')))

Both factors satisfy detailed balance, so that exp(-E) is invariant. A single uniform number serves
both: u >= the first factor already refuses. The product is at most the probability of
`metropolis_hastings`, so that this is another chain with fewer moves, and a refusal costs the rows
of the block instead of a row for each site of the text.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from softbeam.sampling.energies import WeightedSum
from softbeam.sampling.fast import (
    CachedProposals,
    Parts,
    Scored,
    SiteCache,
    fast_metropolis_hastings,
    score,
    shares_rows,
    sites_of,
    split,
)
from softbeam.sampling.kernels import (
    Temperature,
    cannot_return,
    checked,
    log_acceptance,
    log_uniform,
)
from softbeam.types import ChainState, Energy, Kernel, Propose, StepInfo


def delayed_metropolis_hastings(
    energy: Energy, propose: Propose, *, temperature: Temperature = 1.0
) -> Kernel:
    """Make a kernel that leaves exp(-E / temperature) invariant, for blocks of positions.

    For single sites drawn from the model's conditionals the first stage accepts everything; use
    `fast_metropolis_hastings`. Raises ValueError if the energy has no sum over sites.

    Args:
        energy: a `LocalEnergy` or `RawEnergy`, alone or inside `WeightedSum`, `Tempered` and
            `Constrained`.
        propose: the proposals.
        temperature: the temperature of the target, as in `metropolis_hastings`.
    """
    parts = split(energy, propose)
    if parts is None:
        raise ValueError(f"energy: {type(energy).__name__} is no sum over sites")
    cache = SiteCache()
    init = fast_metropolis_hastings(energy, propose, temperature=temperature, cache=cache).init
    draw = CachedProposals(propose, cache) if shares_rows(propose, parts.sites) else propose
    return Kernel(init, _DelayedKernel(parts, draw, cache, temperature).step)


@dataclass(frozen=True, eq=False)
class _DelayedKernel:
    """The step of `delayed_metropolis_hastings`, and what it uses."""

    parts: Parts
    propose: Propose
    cache: SiteCache
    temperature: Temperature

    @torch.no_grad()
    def step(
        self, state: ChainState, positions: Tensor, rng: Generator
    ) -> tuple[ChainState, StepInfo]:
        """Propose new tokens at the positions; refuse them by their own terms, or by all."""
        with torch.inference_mode():
            self.cache.hold(state.tokens)
            new = self.propose(state.tokens, positions, rng)
            block = sites_of(self.parts, new.tokens) & positions
            log_u = log_uniform(new.log_q_forward, rng)
            repeated = (new.tokens == state.tokens).all(-1)
            novel = (~repeated).nonzero()[:, 0]
            old = self.scored(self.parts, state.tokens, block, novel)
            for rows in old.rows:
                self.cache.put(rows)
            near = self.scored(self.parts, new.tokens, block, novel)
            before = state.energy.double().index_copy(0, novel, old.energy)
            after = before.index_copy(0, novel, checked(near.energy))
            log_first = log_acceptance(
                before / self.temperature,
                after / self.temperature,
                new.log_q_forward,
                new.log_q_reverse,
            ).masked_fill(repeated, 0.0)
            passed = ((log_u < log_first) & ~repeated).nonzero()[:, 0]
            others = sites_of(self.parts, new.tokens) & ~positions
            without = self.parts._replace(rest=WeightedSum([]))
            far = self.scored(without, new.tokens, others, passed)
            rest = (state.energy.double() - before)[passed]
            change = (rest - checked(far.energy)).where(before[passed].isfinite(), 0.0)
            log_second = (torch.zeros_like(before).index_copy(0, passed, change)) / self.temperature
            log_a = log_first + log_second.clamp_max(0.0)
            accepted = log_u < log_a
            tokens = torch.where(accepted[:, None], new.tokens, state.tokens)
            self.cache.hold(tokens)
            for rows in near.rows + far.rows:
                self.cache.put(rows.where(accepted[rows.chain]))
            total = after.index_add(0, passed, far.energy).to(state.energy)
            energy = torch.where(accepted & ~repeated, total, state.energy)
            info = StepInfo(log_a, accepted, accepted & ~repeated, repeated, cannot_return(new))
        # copies made outside of inference mode can be used where gradients are wanted
        return ChainState(tokens.clone(), energy.clone()), StepInfo(*(t.clone() for t in info))

    def scored(
        self,
        parts: Parts,
        tokens: Int[Tensor, "chain time"],
        counted: Bool[Tensor, "chain time"],
        chains: Int[Tensor, " rows"],
    ) -> Scored:
        """Score the counted sites of these chains, with what else `parts` has."""
        some = parts._replace(sites=replace(parts.sites, counted=counted))
        missing = (counted & ~self.cache.known(tokens))[chains]
        return score(some, self.cache, tokens, chains, [missing])
