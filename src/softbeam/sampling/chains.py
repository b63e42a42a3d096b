"""Chains: starting texts, sweeps over the positions, annealing, burn-in (thesis, Sec. 6.5 to 6.8).

A sweep applies a kernel to one block of positions after another. The blocks partition the free
positions and are drawn without looking at the text. Chains are rows: many run at once, padded where
their lengths differ. `run_chains` yields a record after each sweep; the same seed gives the same
chain.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from softbeam.sampling.proposals import MaskedConditionals
from softbeam.schedules import Constant, Schedule
from softbeam.tensors import Allowed, allowed_at, draw, moved, rank, uniform
from softbeam.types import ChainState, Kernel, StepInfo

Phase = Literal["forced", "burn-in", "sample"]


# Starting texts: ways to fill the hidden positions of a text.


@torch.no_grad()
def fill_greedily(
    conditionals: MaskedConditionals,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
) -> Int[Tensor, "chain time"]:
    """Put the likeliest token at each hidden position, all masked together (Algorithm 4)."""
    best = conditionals.log_probs(tokens, hidden).argmax(-1)
    return tokens.masked_scatter(hidden, best.to(tokens.device))


@torch.no_grad()
def fill_in_turn(
    conditionals: MaskedConditionals,
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    rng: Generator,
) -> Int[Tensor, "chain time"]:
    """Draw a token at each hidden position in random order, given those filled before it.

    This equals a first sweep over masks in which every proposal is accepted.
    """
    for now in partition(hidden, torch.ones_like(tokens[:, 0]), order="random", rng=rng):
        log_p = conditionals.log_probs(tokens, hidden)
        cells = log_p[moved(now[hidden].nonzero()[:, 0], log_p.device)]
        tokens = tokens.masked_scatter(now, draw(cells.exp(), rng).to(tokens.device))
        hidden = hidden & ~now
    return tokens


def fill_randomly(
    tokens: Int[Tensor, "chain time"],
    hidden: Bool[Tensor, "chain time"],
    allowed: Allowed,
    rng: Generator,
) -> Int[Tensor, "chain time"]:
    """Draw each hidden position uniformly from the allowed tokens."""
    sets = allowed_at(allowed, hidden).expand(int(hidden.sum()), -1)
    return tokens.masked_scatter(hidden, draw(sets.double(), rng))


# Blocks


def partition(
    free: Bool[Tensor, "chain time"],
    size: Int[Tensor, " chain"],
    *,
    order: Literal["random", "sequential"] = "random",
    rng: Generator,
) -> Bool[Tensor, "step chain time"]:
    """Divide the free positions into the blocks of one sweep; the last block may be smaller.

    Each free position is in exactly one block. Random order is a permutation for each chain
    (thesis, Sec. 6.5: without replacement). A chain with fewer blocks than others has empty blocks
    at the end.
    """
    if order not in ("random", "sequential"):
        raise ValueError(f"order={order!r} must be random or sequential")
    if bool((size < 1).any()):
        raise ValueError(f"size={size.tolist()}: a block holds at least 1 position")
    key = torch.arange(free.shape[1], device=free.device, dtype=torch.float64).expand(free.shape)
    if order == "random":
        key = uniform(free.shape, rng, free.device)
    block = rank(key.masked_fill(~free, float("inf"))) // size[:, None]
    steps = int(block.where(free, -1).max()) + 1
    return free & (block == torch.arange(steps, device=free.device)[:, None, None])


@dataclass(frozen=True, kw_only=True)
class ConstantBlocks:
    """Blocks of the same size in every sweep; size 1 is a single position."""

    size: int = 1

    def __call__(
        self, free: Int[Tensor, " chain"], sweep: int, sweeps: int, rng: Generator
    ) -> Int[Tensor, " chain"]:
        return torch.full_like(free, self.size)


@dataclass(frozen=True, kw_only=True)
class LinearBlocks:
    """Blocks that shrink from `start` to single positions in the last sweep (thesis, Sec. 6.7.3).

    Args:
        start: size in the first sweep; by default half of the free positions, rounded up.
    """

    start: int | None = None

    def __call__(
        self, free: Int[Tensor, " chain"], sweep: int, sweeps: int, rng: Generator
    ) -> Int[Tensor, " chain"]:
        start = (free + 1) // 2 if self.start is None else torch.full_like(free, self.start)
        return (start + (1 - start) * sweep / max(sweeps - 1, 1)).round().long()


@dataclass(frozen=True, kw_only=True)
class RandomBlocks:
    """Blocks whose size is drawn for each chain and sweep, uniformly between 1 and `largest`.

    Args:
        largest: the largest size; by default all free positions.
    """

    largest: int | None = None

    def __call__(
        self, free: Int[Tensor, " chain"], sweep: int, sweeps: int, rng: Generator
    ) -> Int[Tensor, " chain"]:
        largest = free if self.largest is None else free.clamp_max(self.largest)
        return 1 + (uniform(free.shape, rng, free.device) * largest).long()


Blocks = ConstantBlocks | LinearBlocks | RandomBlocks  # number of free positions -> size


# Sweeps


class Counts(NamedTuple):
    """Numbers of proposals of each chain, by outcome; accepted = repeated + novel."""

    proposals: Int[Tensor, " chain"]
    accepted: Int[Tensor, " chain"]
    repeated: Int[Tensor, " chain"]  # proposals of the text that was there
    novel: Int[Tensor, " chain"]  # accepted and different
    stuck: Int[Tensor, " chain"]  # proposals after which the old text could not be proposed

    def rate(self, name: str) -> Float[Tensor, " chain"]:
        """A count divided by the number of proposals; 0 without proposals."""
        count: Tensor = getattr(self, name)
        return count / self.proposals.clamp_min(1)


def sweep_once(
    kernel: Kernel, state: ChainState, blocks: Iterable[Bool[Tensor, "chain time"]], rng: Generator
) -> tuple[ChainState, Counts]:
    """Apply the kernel to each block in turn.

    A sweep leaves the target invariant if the kernel does; it is not reversible in general.
    """
    counts = Counts(
        *torch.zeros(5, len(state.tokens), dtype=torch.long, device=state.tokens.device)
    )
    for positions in blocks:
        state, info = kernel.step(state, positions, rng)
        counts = add_step(counts, info, positions.any(-1))
    return state, counts


def add_step(counts: Counts, info: StepInfo, active: Bool[Tensor, " chain"]) -> Counts:
    """Add a step of the active chains to the counts."""
    flags = (active, info.accepted, info.repeated, info.moved, info.stuck)
    return Counts(*(n + (flag & active) for n, flag in zip(counts, flags, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a chain does in each sweep. The defaults are those of the thesis, Sec. 6.5.

    Args:
        sweeps: the number of sweeps, including the burn-in.
        burn_in: sweeps at the start that are left out of the statistics.
        forced: sweeps at the very start in which every proposal is accepted (Table 6.6: 2). They
            are not Metropolis-Hastings, have a phase of their own, and are part of the burn-in.
        order: the order of the positions in a sweep.
        blocks: how many positions are masked together.
        temperature: the temperature of the target in each sweep. Annealing as in Sec. 6.8 needs a
            floor to stay above 0: `Linear(start=1.0, slope=-0.02, floor=0.05)`.
    """

    sweeps: int = 33
    burn_in: int = 7
    forced: int = 0
    order: Literal["random", "sequential"] = "random"
    blocks: Blocks = field(default_factory=ConstantBlocks)
    temperature: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if not 0 <= self.forced <= self.burn_in <= self.sweeps:
            numbers = f"forced={self.forced}, burn_in={self.burn_in}, sweeps={self.sweeps}"
            raise ValueError(f"{numbers}: each must be at least 0 and at most the next")
        if not (coldest := min(map(self.temperature.at, range(self.sweeps)), default=1.0)) > 0:
            raise ValueError(f"temperature falls to {coldest}; give it a floor above 0")

    def phase(self, sweep: int) -> Phase:
        """The phase that a sweep belongs to."""
        if sweep < self.forced:
            return "forced"
        return "burn-in" if sweep < self.burn_in else "sample"


class Record(NamedTuple):
    """All chains after one sweep."""

    sweep: int
    phase: Phase
    temperature: float
    state: ChainState
    counts: Counts
    between: tuple[StepInfo, ...]  # steps of the kernels between the sweeps, e.g. swaps of rungs


def run_chains(
    kernel: Kernel | Callable[[float], Kernel],
    start: Int[Tensor, "chain time"] | ChainState,
    free: Bool[Tensor, "chain time"],
    *,
    plan: Plan,
    rng: Generator,
    warm_up: Kernel | None = None,
    between: Sequence[Kernel] = (),
    first: int = 0,
    on_step: Callable[[float], object] = bool,
) -> Iterator[Record]:
    """Run chains sweep by sweep, and yield a record after each.

    To continue a run, pass the state of its last record as `start`, the next sweep as `first`, and
    the generator as it was then: the chain is the same.

    Args:
        kernel: the kernel; for a plan with temperatures, a function from temperature to kernel.
        start: texts, whose energies must be finite, or a state to continue from.
        free: positions to sample; the others stay as they are.
        plan: how many sweeps, of which blocks, at which temperature.
        rng: the source of all random numbers.
        warm_up: the kernel of forced sweeps, such as `degenerate_gibbs`.
        between: kernels applied once after each sweep, such as `replica_exchange`.
        first: the number of the first sweep to run.
        on_step: called after each step with the share of the sweep that is done.
    """
    if plan.forced and warm_up is None:
        raise ValueError(f"forced={plan.forced} sweeps need the kernel warm_up")
    if isinstance(kernel, Kernel) and any(plan.temperature.at(s) != 1 for s in range(plan.sweeps)):
        raise ValueError("kernel: a plan with temperatures needs the kernel at each temperature")
    at = (lambda _: kernel) if isinstance(kernel, Kernel) else kernel
    state = start if isinstance(start, ChainState) else at(plan.temperature.at(first)).init(start)
    if not bool(state.energy.isfinite().all()):
        chain = int((~state.energy.isfinite()).nonzero()[0])
        raise ValueError(f"start: chain {chain} has the energy {state.energy[chain].item()}")
    return _sweeps(at, state, free, plan, rng, warm_up, between, first, on_step)


def _sweeps(
    at: Callable[[float], Kernel],
    state: ChainState,
    free: Bool[Tensor, "chain time"],
    plan: Plan,
    rng: Generator,
    warm_up: Kernel | None,
    between: Sequence[Kernel],
    first: int,
    on_step: Callable[[float], object],
) -> Iterator[Record]:
    """The loop of `run_chains`, after its checks."""
    for s in range(first, plan.sweeps):
        phase, temperature = plan.phase(s), plan.temperature.at(s)
        used = warm_up if phase == "forced" and warm_up is not None else at(temperature)
        size = plan.blocks(free.sum(-1), s, plan.sweeps, rng).clamp_min(1)
        blocks = partition(free, size, order=plan.order, rng=rng)
        state, counts = sweep_once(used, state, watched(blocks, on_step), rng)
        infos = []
        for other in between:
            state, info = other.step(state, torch.zeros_like(free), rng)
            infos.append(info)
        yield Record(s, phase, temperature, state, counts, tuple(infos))


def watched(
    blocks: Bool[Tensor, "step chain time"], on_step: Callable[[float], object]
) -> Iterator[Bool[Tensor, "chain time"]]:
    """Yield the blocks of a sweep; after each has been used, say which share is done."""
    for number, positions in enumerate(blocks, 1):
        yield positions
        on_step(number / len(blocks))


class Trace(NamedTuple):
    """Energies and rates of chains, sweep by sweep."""

    phase: tuple[Phase, ...]
    temperature: Float[Tensor, " sweep"]
    energy: Float[Tensor, "sweep chain"]
    accept: Float[Tensor, "sweep chain"]  # rates: shares of the proposals
    repeated: Float[Tensor, "sweep chain"]
    novel: Float[Tensor, "sweep chain"]
    stuck: Float[Tensor, "sweep chain"]

    @property
    def kept(self) -> list[int]:
        """The sweeps after the burn-in."""
        return [s for s, phase in enumerate(self.phase) if phase == "sample"]

    def samples(self) -> "Trace":
        """The part of the trace after the burn-in, for statistics."""
        keep = self.kept
        return Trace(tuple(self.phase[s] for s in keep), *(table[keep] for table in self[1:]))


def trace(records: Iterable[Record]) -> Trace:
    """Collect the energies and rates of records."""
    kept = list(records)
    rates = (
        torch.stack([record.counts.rate(name) for record in kept])
        for name in ("accepted", "repeated", "novel", "stuck")
    )
    return Trace(
        tuple(record.phase for record in kept),
        torch.tensor([record.temperature for record in kept]),
        torch.stack([record.state.energy for record in kept]),
        *rates,
    )


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """Join traces of the same plan into one trace of all their chains."""
    first = traces[0]
    tables = zip(*(each[2:] for each in traces), strict=True)
    return Trace(first.phase, first.temperature, *(torch.cat(table, 1) for table in tables))
