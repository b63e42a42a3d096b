"""Joint infilling: what may stand in all gaps of a text together, and how likely each is."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.runtime import ranks
from softbeam.sampling.texts.sampler import sample, sampler
from softbeam.sampling.texts.settings import SamplingConfig
from softbeam.types import TextModel

Method = Literal["mh", "in-turn", "greedy"]


class Filling(NamedTuple):
    """One way to fill the gaps."""

    text: str
    tokens: list[str]  # in the gaps
    share: float  # of the samples
    energy: float


def infill_all(
    mlm: TextModel,
    texts: Sequence[str],
    config: SamplingConfig,
    *,
    samples: int,
    method: Method = "mh",
) -> Iterator[list[Filling]]:
    """The fillings of each text, in order, while they are found; processes share the texts.

    Each text has random numbers of its own, whatever the others are.
    """

    def one(number: int) -> list[Filling]:
        own = replace(config, seed=config.stream(number))
        return infill(mlm, texts[number], own, samples=samples, method=method)

    for found in ranks.in_turn(range(len(texts)), one):
        yield [Filling(*filling) for filling in found]


def infill(
    mlm: TextModel, text: str, config: SamplingConfig, *, samples: int, method: Method = "mh"
) -> list[Filling]:
    """The distinct fillings among so many samples, lowest energy first.

    - mh: chains over the gaps together; shares tend to exp(-E), the joint distribution.
    - in-turn: gaps filled one after another, in random order: independent, but of another law.
    - greedy: the likeliest token of each gap, all masked together: one filling.

    Args:
        mlm: the masked language model.
        text: with gaps, `[MASK]`.
        config: of the chains; the number of sweeps follows from `samples` and the burn-in.
        samples: number of samples.
        method: how they are drawn.
    """
    rng = torch.Generator().manual_seed(config.seed)
    if method == "mh":
        chains = min(config.chains, samples)
        sweeps = config.burn_in + math.ceil(samples / chains)
        made = sampler(mlm, [text], replace(config, chains=chains, sweeps=sweeps))
        kept = [r.state for r in sample(made, rng) if r.phase == "sample"]
        found = [(state.tokens, state.energy) for state in kept]
    else:
        number = 1 if method == "greedy" else samples
        made = sampler(mlm, [text], replace(config, chains=number, start=method))
        state = made.kernel(1.0).init(made.start(rng))
        found = [(state.tokens, state.energy)]
    return fillings(mlm, made.tokens[0] == mlm.mask_id, found, samples)


def fillings(
    mlm: TextModel,
    gaps: Tensor,
    found: Iterable[tuple[Int[Tensor, "chain time"], Float[Tensor, " chain"]]],
    samples: int,
) -> list[Filling]:
    """Distinct texts with their shares, lowest energy first."""
    drawn = [
        (tuple(row), e)
        for tokens, energy in found
        for row, e in zip(tokens.tolist(), energy.tolist(), strict=True)
    ][:samples]
    energies = dict(drawn)
    times = Counter(row for row, _ in drawn)
    made = []
    for row in sorted(times, key=lambda row: (energies[row], row)):
        ids = torch.tensor(row)
        tokens = mlm.token_names(ids[gaps].tolist())
        share = times[row] / len(drawn)
        made.append(Filling(mlm.decode(ids[None])[0], tokens, share, energies[row]))
    return made
