"""Joint infilling: texts that fill all gaps together, and the probability of each.

A gap is `[MASK]`, one token, or `[WORD]`, a whole word (`word_gaps` has the law of its lengths).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from softbeam.errors import check_range
from softbeam.sampling.energies import chosen as of_chains
from softbeam.sampling.gaps import count_fillings, every_filling
from softbeam.sampling.kernels import checked
from softbeam.sampling.texts.sampler import Sampler, generator, sampler
from softbeam.sampling.texts.settings import SamplingConfig, check_choice
from softbeam.types import ChainState, TextModel

Method = Literal["mh", "in-turn", "greedy", "enumerate", "auto"]
ENUMERATED = 10_000  # fillings that `auto` lists
MOST_ENUMERATED = 1_000_000
REDRAWN = 16  # gaps that are drawn together after each sweep; more are rarely accepted
CELLS = 2**22  # numbers of the masked rows that are in memory at once


class Filling(NamedTuple):
    """A text with all gaps filled."""

    text: str
    tokens: list[str]  # those at the free positions
    share: float  # of the samples; if all fillings are listed, the probability
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
    if method in ("auto", "enumerate"):
        space = sampler(mlm, [text], replace(config, chains=1))
        number = count_fillings(set_sizes(space))
        if method == "enumerate" or number <= ENUMERATED:
            what = f"--method enumerate: {text[:40]!r}, number of fillings"
            check_range(what, number, most=MOST_ENUMERATED)
            return listed(mlm, space, config.temperature, on_sweep)
        method = "mh"
    if method == "mh":
        chains = min(config.chains, samples)
        sweeps = config.burn_in + math.ceil(samples / chains)
        chosen = sampler(mlm, [text], replace(config, chains=chains, sweeps=sweeps))
        few = 1 < int(chosen.free[0].sum()) <= REDRAWN  # one gap is drawn in every step
        redraw = [chosen.redraw(config.temperature)] if few else []
        states = []
        for number, record in enumerate(chosen.run(rng, between=redraw), 1):
            on_sweep(number / sweeps)
            states += [record.state] if record.phase == "sample" else []
    else:
        greedy = replace(config, chains=1, start="greedy")
        in_turn = replace(config, chains=samples, start="in-turn")
        chosen = sampler(mlm, [text], greedy if method == "greedy" else in_turn)
        states = [chosen.kernel(1.0).init(chosen.start(rng))]
    return fillings(mlm, chosen.free[0], states, samples)


def set_sizes(of: Sampler) -> list[list[int]]:
    """Count the tokens that may stand in each cell of each gap of the first text."""
    sizes: dict[int, list[int]] = {}
    for cell in of.free[0].nonzero()[:, 0].tolist():
        here = of.allowed if of.allowed.dim() == 1 else of.allowed[0, cell]
        sizes.setdefault(int(of.gaps[0, cell]), []).append(int(here.sum()))
    return list(sizes.values())


@torch.inference_mode()
def listed(
    mlm: TextModel, of: Sampler, temperature: float, on_part: Callable[[float], None]
) -> list[Filling]:
    """List all fillings of one text with their probabilities, the likeliest first.

    Fillings without any probability, such as those beyond the limit of a term, are left out.
    """
    allowed = of.allowed.expand(*of.tokens.shape, -1)[0]
    rows = every_filling(of.tokens[0], of.gaps[0], allowed, mlm.pad_id)
    energies: list[Tensor] = []
    parts = rows.split(max(1, CELLS // rows.shape[1] ** 2))
    for number, part in enumerate(parts, 1):
        owner = torch.zeros(len(part), dtype=torch.long)
        energies.append(checked(of_chains(of.energy, owner)(part)).double())
        on_part(number / len(parts))
    energy = torch.cat(energies)
    shares = (-energy / temperature).softmax(0).tolist()
    order = energy.argsort(stable=True)
    order = order[energy[order].isfinite()]
    values = energy.tolist()
    return [
        filling(mlm, of.free[0], rows[i], share=shares[i], energy=values[i]) for i in order.tolist()
    ]


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
    return [
        filling(mlm, gaps, torch.tensor(row), share=times[row] / len(drawn), energy=energies[row])
        for row in sorted(times, key=lambda row: (energies[row], row))
    ]


def filling(mlm: TextModel, gaps: Tensor, row: Tensor, *, share: float, energy: float) -> Filling:
    """Write a row of tokens as a filling; a word has fewer tokens than its gap has cells."""
    ids = row[gaps & (row != mlm.pad_id)].tolist()
    return Filling(mlm.decode(row[None])[0], mlm.token_names(ids), share, energy)
