"""Markov kernels over texts, each a pair of functions `init` and `step`, computed in logs.

For each fixed set of positions, a step is a Markov kernel that can be checked exactly
(`certificates`). Sweeps over many positions are in `chains`. A state carries the energy E of its
text; the target of a kernel with a temperature is exp(-E / temperature).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.energies import chosen
from softbeam.tensors import Allowed, allowed_at, draw, uniform
from softbeam.types import ChainState, Energy, Kernel, Propose, Proposed, StepInfo

Temperature = float | Float[Tensor, " chain"]


def metropolis_hastings(
    energy: Energy, propose: Propose, *, temperature: Temperature = 1.0
) -> Kernel:
    """Make a kernel that leaves exp(-E / temperature) invariant (thesis, Algorithm 4).

    Algorithm 4 as published divides energies and masks its own state; see docs/errata.md.
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
            StepInfo(
                log_a, accepted, accepted & ~repeated, repeated, cannot_return(new), new.tokens
            ),
        )

    return Kernel(starting_with(energy), step)


def log_acceptance(
    energy: Float[Tensor, " chain"],
    new_energy: Float[Tensor, " chain"],
    log_q_forward: Float[Tensor, " chain"],
    log_q_reverse: Float[Tensor, " chain"],
) -> Float[Tensor, " chain"]:
    """log min(1, phi(y') q(y; y') / (phi(y) q(y'; y))) with phi = exp(-E) (thesis, Sec. 6.3).

    Never NaN: texts of probability 0, and texts from which the chain cannot return, are refused;
    from a text of probability 0, any possible text is accepted.
    """
    ratio = (energy - new_energy) + (log_q_reverse - log_q_forward)
    ratio = ratio.masked_fill(log_q_reverse.isneginf(), float("-inf"))
    ratio = ratio.masked_fill(energy.isposinf(), 0.0)
    return ratio.masked_fill(new_energy.isposinf(), float("-inf")).clamp_max(0.0)


def degenerate_gibbs(propose: Propose, energy: Energy) -> Kernel:
    """Make a kernel that accepts every proposal (Wang and Cho 2019; thesis, Sec. 6.6).

    It does *not* leave exp(-E) invariant: in general no joint distribution has the conditionals of
    a masked language model. The energy is computed only for the records.
    """

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        new = propose(state.tokens, positions, rng)
        new_energy = checked(energy(new.tokens))
        repeated = (new.tokens == state.tokens).all(-1)
        accepted = torch.ones_like(repeated)
        log_a = torch.zeros_like(new_energy)
        info = StepInfo(log_a, accepted, ~repeated, repeated, cannot_return(new), new.tokens)
        return ChainState(new.tokens, new_energy), info

    return Kernel(starting_with(energy), step)


def exact_gibbs(energy: Energy, *, allowed: Allowed, temperature: Temperature = 1.0) -> Kernel:
    """Make a kernel that draws one site from its conditional under exp(-E / temperature).

    It accepts every draw. It computes an energy for each allowed token of each chain, and so suits
    small vocabularies. A chain may have at most one position in a step.
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
        new = draw((-e / at).softmax(-1), rng)
        tokens = state.tokens.masked_scatter(positions, new)
        moved = (tokens != state.tokens).any(-1)
        every, never = torch.ones_like(moved), torch.zeros_like(moved)
        return (
            ChainState(tokens, state.energy.index_copy(0, active, e.gather(-1, new)[:, 0])),
            StepInfo(torch.zeros_like(state.energy), every, moved, ~moved, never, tokens),
        )

    return Kernel(starting_with(energy), step)


def replica_exchange(
    energy: Energy, *, temperatures: Float[Tensor, " rungs"], first: int = 0
) -> Kernel:
    """Make the swaps of parallel tempering: rungs (first, first + 1), (first + 2, first + 3) ...

    Row c * rungs + r is rung r of ensemble c. Run the rows as chains, with a kernel of the
    temperatures `ladder(temperatures, ensembles)`, and between the sweeps the swaps of `first` 0
    and then of `first` 1. All of them leave the product of the rungs' targets invariant. So if the
    first temperature is 1, the rows of rung 0 are samples of exp(-E).

    In the info, both rows of a pair say whether they were exchanged. Positions are not read.
    """
    check_temperature(temperatures)
    rungs = len(temperatures)
    lower = torch.arange(first, rungs - 1, 2)  # of each pair
    if first not in (0, 1) or not len(lower):
        raise ValueError(f"first={first}: no pair of the {rungs} rungs starts there, or at 0 or 1")
    partner = torch.arange(rungs)
    partner[lower], partner[lower + 1] = lower + 1, lower
    paired = partner != torch.arange(rungs)
    pair = (torch.arange(rungs) - first).div(2, rounding_mode="floor").clamp(0, len(lower) - 1)

    @torch.no_grad()
    def step(state: ChainState, positions: Tensor, rng: Generator) -> tuple[ChainState, StepInfo]:
        if len(state.energy) % rungs:
            raise ValueError(f"{len(state.energy)} chains are not whole ensembles of {rungs} rungs")
        e, tokens = (table.unflatten(0, (-1, rungs)) for table in (state.energy, state.tokens))
        beta = 1 / temperatures.to(e)
        log_a = ((beta - beta[partner]) * (e - e[:, partner])).clamp_max(0.0)
        log_u = log_uniform(e[:, lower], rng)[:, pair]  # one for both
        accepted = (log_u < log_a) & paired.to(e.device)
        new = torch.where(accepted[:, :, None], tokens[:, partner], tokens)
        moved = (new != tokens).any(-1)
        flags = (accepted, moved, accepted & ~moved, torch.zeros_like(moved))
        return (
            ChainState(new.flatten(0, 1), torch.where(accepted, e[:, partner], e).flatten()),
            StepInfo(log_a.flatten(), *(flag.flatten() for flag in flags)),
        )

    return Kernel(starting_with(energy), step)


def ladder(temperatures: Float[Tensor, " rungs"], ensembles: int) -> Float[Tensor, " chain"]:
    """List the temperature of each row of `replica_exchange`, ensemble after ensemble."""
    return temperatures.repeat(ensembles)


# Shared parts


def starting_with(energy: Energy) -> Callable[[Tensor], ChainState]:
    """Make the `init` of a kernel, which computes the energies of texts."""

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
    """Compute the energy of rows that belong to these chains, in the type of `like`."""
    if not len(tokens):
        return like[:0]
    return checked(chosen(energy, chains)(tokens)).to(like)


def checked(energy: Float[Tensor, " chain"]) -> Float[Tensor, " chain"]:
    """Return the energies. Raises ValueError if one is NaN or -inf."""
    bad = energy.isnan() | energy.isneginf()
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        raise ValueError(f"energy: {energy[rows[0]].item()} for row {rows[0]} (of {len(rows)})")
    return energy


def check_temperature(temperature: Temperature) -> None:
    """Raise ValueError if a temperature is not above 0."""
    if not bool(torch.as_tensor(temperature > 0).all()):
        raise ValueError(f"temperature={temperature} must be above 0")


def log_uniform(like: Float[Tensor, "*shape"], rng: Generator) -> Float[Tensor, "*shape"]:
    """Draw log U in float64: float32 has no uniform numbers between 0 and 2^-24."""
    return uniform(like.shape, rng, like.device).log()


def cannot_return(new: Proposed) -> Bool[Tensor, " chain"]:
    """True where q(y; y') = 0: the old text has a token outside of its nucleus."""
    return new.log_q_reverse.isneginf()
