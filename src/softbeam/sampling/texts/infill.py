"""Joint infilling: texts that fill all gaps together, and the probability of each."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from softbeam.errors import check_range
from softbeam.sampling.texts.sampler import generator, sampler
from softbeam.sampling.texts.settings import SamplingConfig, check_choice
from softbeam.types import ChainState, TextModel

Method = Literal["mh", "in-turn", "greedy"]


class Filling(NamedTuple):
    """A text with all gaps filled."""

    text: str
    tokens: list[str]  # those at the free positions
    share: float  # of the samples
    energy: float


def fill_texts(
    mlm: TextModel,
    texts: Sequence[str],
    config: SamplingConfig,
    *,
    samples: int,
    method: str = "mh",
    first: int = 0,
    on_sweep: Callable[[float], None] = lambda share: None,
) -> Iterator[list[Filling]]:
    """Yield the fillings of each text, in order.

    Each text has its own random numbers, so that it does not matter which texts are beside it.
    `first` is the number of the first text. `api.infill` describes the methods. `on_sweep` gets
    the share of a text's sweeps that is done.
    """
    check_range("--samples", samples, least=1)
    check_choice("--method", method, get_args(Method))
    for number, text in enumerate(texts, first):
        own = replace(config, seed=config.stream(number))
        yield fill_gaps(mlm, text, own, samples=samples, method=method, on_sweep=on_sweep)


def fill_gaps(
    mlm: TextModel,
    text: str,
    config: SamplingConfig,
    *,
    samples: int,
    method: str,
    on_sweep: Callable[[float], None],
) -> list[Filling]:
    """Find the distinct fillings of one text, lowest energy first.

    The number of sweeps follows from the number of samples and the burn-in.
    """
    rng = generator(config, 0)
    if method == "mh":
        chains = min(config.chains, samples)
        sweeps = config.burn_in + math.ceil(samples / chains)
        chosen = sampler(mlm, [text], replace(config, chains=chains, sweeps=sweeps))
        states = []
        for number, record in enumerate(chosen.run(rng), 1):
            on_sweep(number / sweeps)
            states += [record.state] if record.phase == "sample" else []
    else:
        greedy = replace(config, chains=1, start="greedy")
        in_turn = replace(config, chains=samples, start="in-turn")
        chosen = sampler(mlm, [text], greedy if method == "greedy" else in_turn)
        states = [chosen.kernel(1.0).init(chosen.start(rng))]
    return fillings(mlm, chosen.free[0], states, samples)


def fillings(
    mlm: TextModel, gaps: Tensor, states: Iterable[ChainState], samples: int
) -> list[Filling]:
    """Count the distinct texts among the first samples; the lowest energy comes first."""
    drawn = [
        (tuple(row), energy)
        for state in states
        for row, energy in zip(state.tokens.tolist(), state.energy.tolist(), strict=True)
    ][:samples]
    energies = dict(drawn)
    times = Counter(row for row, _ in drawn)
    distinct = []
    for row in sorted(times, key=lambda row: (energies[row], row)):
        ids = torch.tensor(row)
        tokens = mlm.token_names(ids[gaps].tolist())
        share = times[row] / len(drawn)
        distinct.append(Filling(mlm.decode(ids[None])[0], tokens, share, energies[row]))
    return distinct
