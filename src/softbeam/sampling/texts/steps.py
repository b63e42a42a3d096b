"""Watch the chains of one text step by step: what is proposed where, and what becomes of it.

The chains are those of `Sampler.run`, and so of `softbeam.sample`: kernels are wrapped, nothing is
drawn and nothing computed besides.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from softbeam.sampling.chains import Record
from softbeam.sampling.texts.positions import places
from softbeam.sampling.texts.sampler import Sampler
from softbeam.types import ChainState, Kernel, StepInfo, TextModel

Outcome = Literal["accepted", "rejected", "same", "none"]


class Start(NamedTuple):
    """The chains before their first step."""

    tokens: list[list[str]]  # of each chain, without the tokenizer's frame
    free: list[int]  # the cells that are sampled, from 0
    energy: list[float]


class Move(NamedTuple):
    """What one chain did in a step."""

    cells: list[int]  # that were masked, from 0
    proposed: list[str]  # tokens for these cells
    outcome: Outcome  # same: the proposal is what was there; none: the chain had no cell
    chance: float  # the probability of acceptance
    energy: float  # after the step


class ChainStep(NamedTuple):
    """A step of all chains."""

    sweep: int  # from 0
    moves: list[Move]


def watched(
    mlm: TextModel,
    sampler: Sampler,
    rng: Generator,
    *,
    on_start: Callable[[Start], object],
    on_move: Callable[[ChainStep], object],
) -> Iterator[Record]:
    """Run the chains of a sampler of one text, and report their start and each step.

    What a callback raises ends the chains.
    """
    own = (places(mlm, sampler.tokens)[0] > 0).nonzero()[:, 0]
    cell_of = {int(position): cell for cell, position in enumerate(own)}
    sweep = 0

    def on_step(share: float) -> None:
        nonlocal sweep
        sweep += share == 1

    def seen(inner: Kernel) -> Kernel:
        def init(tokens: Tensor) -> ChainState:
            state = inner.init(tokens)
            names = [mlm.token_names(row.tolist()) for row in state.tokens[:, own]]
            free = [cell_of[int(position)] for position in sampler.free[0].nonzero()[:, 0]]
            on_start(Start(names, free, state.energy.tolist()))
            return state

        def step(
            state: ChainState, positions: Tensor, rng: Generator
        ) -> tuple[ChainState, StepInfo]:
            after, info = inner.step(state, positions, rng)
            on_move(ChainStep(sweep, moves(mlm, after, info, positions, cell_of)))
            return after, info

        return Kernel(init, step)

    watching = sampler._replace(
        kernel=lambda temperature: seen(sampler.kernel(temperature)), warm_up=seen(sampler.warm_up)
    )
    return watching.run(rng, on_step=on_step)


def moves(
    mlm: TextModel,
    after: ChainState,
    info: StepInfo,
    positions: Tensor,
    cell_of: dict[int, int],
) -> list[Move]:
    """Describe a step of each chain."""
    proposed = after.tokens if info.proposed is None else info.proposed
    found = []
    for c, masked in enumerate(positions):
        places = masked.nonzero()[:, 0].tolist()
        outcome: Outcome = "accepted" if bool(info.accepted[c]) else "rejected"
        if not places:
            outcome = "none"
        elif bool(info.repeated[c]):
            outcome = "same"
        names = mlm.token_names(proposed[c][masked].tolist())
        chance = float(torch.exp(info.log_accept[c]))
        cells = [cell_of[place] for place in places]
        found.append(Move(cells, names, outcome, chance, float(after.energy[c])))
    return found
