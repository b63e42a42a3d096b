"""Markov kernels over texts, in the `init`/`step` form; all of them in logs.

Each fixed set of positions is a kernel of its own, so that it can be tested exactly (`testing`);
sweeps are compositions and live in `chains`. A state carries the energy E of its text; where a
kernel has a target temperature, its target is exp(-E / temperature).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.energies import chosen
from softbeam.tensors import Allowed, allowed_at
from softbeam.types import ChainState, Energy, Kernel, Propose, Proposed, StepInfo

Temperature = float | Float[Tensor, " chain"]


def metropolis_hastings(
    energy: Energy, propose: Propose, *, temperature: Temperature = 1.0
) -> Kernel:
    """Leaves exp(-E / temperature) invariant, at any positions (thesis, Algorithm 4).

    The printed algorithm divides energies and masks its own state; see docs/errata.md.
    """
    check_temperature(temperature)

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        new = propose(state.tokens, positions, rng)  # lines 7-9
        new_energy = checked(energy(new.tokens))  # line 10
        repeated = (new.tokens == state.tokens).all(-1)
        log_a = log_acceptance(
            state.energy / temperature,
            new_energy / temperature,
            new.log_q_forward,
            new.log_q_reverse,
        ).masked_fill(repeated, 0.0)  # line 11
        accepted = log_uniform(log_a, rng) < log_a  # line 12
        return (
            ChainState(
                torch.where(accepted[:, None], new.tokens, state.tokens),
                torch.where(accepted & ~repeated, new_energy, state.energy),
            ),
            StepInfo(log_a, accepted, accepted & ~repeated, repeated, cannot_return(new)),
        )

    return Kernel(starting_with(energy), step)


def log_acceptance(
    energy: Float[Tensor, " chain"],
    new_energy: Float[Tensor, " chain"],
    log_q_forward: Float[Tensor, " chain"],
    log_q_reverse: Float[Tensor, " chain"],
) -> Float[Tensor, " chain"]:
    """log min(1, phi(y') q(y; y') / (phi(y) q(y'; y))) with phi = exp(-E) (thesis, Sec. 6.3).

    Never NaN: what has probability 0 is not entered, nor is what cannot be returned from, but any
    possible text is entered from an impossible one.
    """
    ratio = (energy - new_energy) + (log_q_reverse - log_q_forward)
    ratio = ratio.masked_fill(log_q_reverse.isneginf(), float("-inf"))
    ratio = ratio.masked_fill(energy.isposinf(), 0.0)
    return ratio.masked_fill(new_energy.isposinf(), float("-inf")).clamp_max(0.0)


def degenerate_gibbs(propose: Propose, energy: Energy) -> Kernel:
    """Accepts every proposal (Wang and Cho 2019; thesis, Sec. 6.6): does *not* leave exp(-E).

    A masked language model's conditionals are those of no joint distribution in general, least of
    all of exp(-E). The energy is computed only to be watched.
    """

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        new = propose(state.tokens, positions, rng)
        new_energy = checked(energy(new.tokens))
        repeated = (new.tokens == state.tokens).all(-1)
        accepted = torch.ones_like(repeated)
        log_a = torch.zeros_like(new_energy)
        info = StepInfo(log_a, accepted, ~repeated, repeated, cannot_return(new))
        return ChainState(new.tokens, new_energy), info

    return Kernel(starting_with(energy), step)


def exact_gibbs(energy: Energy, *, allowed: Allowed, temperature: Temperature = 1.0) -> Kernel:
    """Draws one site from its true conditional under exp(-E / temperature): never refuses.

    One energy for each allowed token of each chain, so for small vocabularies. One position in a
    chain at most.
    """
    check_temperature(temperature)

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        if bool((positions.sum(-1) > 1).any()):
            most = int(positions.sum(-1).max())
            raise ValueError(f"positions: {most} in one chain; exact Gibbs takes 1")
        sets = allowed_at(allowed, positions)
        active = positions.any(-1).nonzero()[:, 0]
        tried = sets.expand(len(active), -1)
        chain, token = active[tried.nonzero()[:, 0]], tried.nonzero()[:, 1]
        rows = torch.where(positions[chain], token[:, None], state.tokens[chain])
        e = energy_of(energy, rows, chain, like=state.energy)
        e = e.new_full(tried.shape, float("inf")).masked_scatter(tried, e)
        at = temperature[active, None] if isinstance(temperature, Tensor) else temperature
        new = torch.multinomial((-e / at).softmax(-1), 1, generator=rng)
        tokens = state.tokens.masked_scatter(positions, new)
        moved = (tokens != state.tokens).any(-1)
        every, never = torch.ones_like(moved), torch.zeros_like(moved)
        return (
            ChainState(tokens, state.energy.index_copy(0, active, e.gather(-1, new)[:, 0])),
            StepInfo(torch.zeros_like(state.energy), every, moved, ~moved, never),
        )

    return Kernel(starting_with(energy), step)


def delayed_acceptance(
    cheap: Energy, energy: Energy, propose: Propose, *, temperature: Temperature = 1.0
) -> Kernel:
    """Metropolis-Hastings that computes `energy` only for what `cheap` would accept.

    The second stage corrects the first (Christen and Fox 2005), so exp(-E / temperature) is
    invariant whatever the cheap energy is; a bad one only refuses more. One uniform number serves
    both stages. Where the first stage refuses, `log_accept` is that of the first stage alone.
    """
    check_temperature(temperature)

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        new = propose(state.tokens, positions, rng)
        repeated = (new.tokens == state.tokens).all(-1)
        c, c_new = (checked(cheap(text)) / temperature for text in (state.tokens, new.tokens))
        first = log_acceptance(c, c_new, new.log_q_forward, new.log_q_reverse)
        log_u = log_uniform(first, rng)

        promoted = ((log_u < first) & ~repeated).nonzero()[:, 0]
        e = energy_of(energy, new.tokens[promoted], promoted, like=state.energy)
        new_energy = state.energy.index_copy(0, promoted, e)
        # The first stage proposes reversibly for exp(-c): q(y; y') / q(y'; y) = exp(-c) / exp(-c').
        second = log_acceptance(state.energy / temperature, new_energy / temperature, -c_new, -c)
        log_a = first.index_copy(0, promoted, (first + second)[promoted])
        log_a = log_a.masked_fill(repeated, 0.0)
        accepted = log_u < log_a
        return (
            ChainState(
                torch.where(accepted[:, None], new.tokens, state.tokens),
                torch.where(accepted, new_energy, state.energy),
            ),
            StepInfo(log_a, accepted, accepted & ~repeated, repeated, cannot_return(new)),
        )

    return Kernel(starting_with(energy), step)


def replica_exchange(
    energy: Energy, *, temperatures: Float[Tensor, " rungs"], first: int = 0
) -> Kernel:
    """The swaps of parallel tempering: rungs (first, first + 1), (first + 2, first + 3) ...

    Row c * rungs + r is rung r of ensemble c. Rows are run as chains of their own, by a kernel of
    temperature `ladder(temperatures, ensembles)`, with the swaps of `first` 0 and then of 1 between
    its sweeps. All of them leave the product of the rungs' targets invariant, so with a first
    temperature of 1 the rows of rung 0 are samples of exp(-E).

    In the info both rows of a pair say whether they were exchanged. Positions are not read.
    """
    check_temperature(temperatures)
    rungs = len(temperatures)
    lower = torch.arange(first, rungs - 1, 2)  # of each pair
    if first not in (0, 1) or not len(lower):
        raise ValueError(f"first={first}: no pair of the {rungs} rungs starts there, or at 0 or 1")
    partner = torch.arange(rungs)
    partner[lower], partner[lower + 1] = lower + 1, lower
    pair = (torch.arange(rungs) - first).div(2, rounding_mode="floor").clamp(0, len(lower) - 1)

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        if len(state.energy) % rungs:
            raise ValueError(f"{len(state.energy)} chains are not whole ensembles of {rungs} rungs")
        e, tokens = (table.unflatten(0, (-1, rungs)) for table in (state.energy, state.tokens))
        beta = 1 / temperatures.to(e)
        log_a = ((beta - beta[partner]) * (e - e[:, partner])).clamp_max(0.0)
        log_u = log_uniform(e[:, lower], rng)[:, pair]  # one for both
        accepted = (log_u < log_a) & (partner != torch.arange(rungs))
        new = torch.where(accepted[:, :, None], tokens[:, partner], tokens)
        moved = (new != tokens).any(-1)
        flags = (accepted, moved, accepted & ~moved, torch.zeros_like(moved))
        return (
            ChainState(new.flatten(0, 1), torch.where(accepted, e[:, partner], e).flatten()),
            StepInfo(log_a.flatten(), *(flag.flatten() for flag in flags)),
        )

    return Kernel(starting_with(energy), step)


def ladder(temperatures: Float[Tensor, " rungs"], ensembles: int) -> Float[Tensor, " chain"]:
    """The temperature of each row of `replica_exchange`: the rungs, ensemble after ensemble."""
    return temperatures.repeat(ensembles)


# Shared parts


def starting_with(energy: Energy) -> Callable[[Tensor], ChainState]:
    """`init` of a kernel: the texts and their energies."""

    @torch.no_grad()
    def init(tokens: Tensor) -> ChainState:
        return ChainState(tokens, checked(energy(tokens)))

    return init


def energy_of(
    energy: Energy,
    tokens: Int[Tensor, "rows time"],
    chains: Int[Tensor, " rows"],
    *,
    like: Float[Tensor, " chain"],
) -> Float[Tensor, " rows"]:
    """The energy of rows that belong to these chains, in the type of `like`; there may be none."""
    if not len(tokens):
        return like[:0]
    return checked(chosen(energy, chains)(tokens)).to(like)


def checked(energy: Float[Tensor, " chain"]) -> Float[Tensor, " chain"]:
    """The energies. An error if one is NaN, which every comparison would quietly refuse."""
    bad = energy.isnan() | energy.isneginf()
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        raise ValueError(f"energy: {energy[rows[0]].item()} for row {rows[0]} (of {len(rows)})")
    return energy


def check_temperature(temperature: Temperature) -> None:
    if not bool(torch.as_tensor(temperature > 0).all()):
        raise ValueError(f"temperature={temperature} must be above 0")


def log_uniform(like: Float[Tensor, "*shape"], rng: Generator) -> Float[Tensor, "*shape"]:
    """log U in float64: in float32 nothing below 2^-24 could be refused or accepted rightly."""
    return torch.rand(like.shape, generator=rng, dtype=torch.float64, device=like.device).log()


def cannot_return(new: Proposed) -> Bool[Tensor, " chain"]:
    """True where q(y; y') = 0: a token outside of its nucleus."""
    return new.log_q_reverse.isneginf()
