"""Figures of finished chains: arrays over repetitions (models, or chains) and draws of sources."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr

from softbeam.experiments.samplers.cells import Sampling, Sums, figures_of
from softbeam.runtime.cells import Result
from softbeam.sampling.diagnostics import pooled_rhat
from softbeam.training.metrics import Array

DRAWS = 4000


class Chains(NamedTuple):
    """The values of one setting, by name.

    The last two axes are repetitions and draws of sources; the first draw is all sources. `sweeps`
    has a first axis of sweeps, of which `kept` are those after the burn-in. `sources` is the number
    of sources that are drawn from. `by_source` has figures by repetition and source: proposals and
    novel ones after the burn-in, tokens, and both energies of the last texts; it is empty if they
    are not known. `rhat` is that of the energy, with chains from other starts; None without such.
    """

    sweeps: Mapping[str, Array]
    kept: Sequence[bool]
    start: Mapping[str, Array]
    mode: Mapping[str, Array]
    sources: int
    by_source: Mapping[str, Array] = {}
    rhat: float | None = None

    def mean(self, name: str) -> Array:
        """The mean over the sweeps after the burn-in."""
        mean: Array = self.sweeps[name][list(self.kept)].mean(0)
        return mean

    def best(self, name: str, sign: int) -> Array:
        """The highest value of all sweeps, or with sign -1 the lowest."""
        best: Array = sign * (sign * self.sweeps[name]).max(0)
        return best


Done = Mapping[Sampling, Chains]


def chains_of(results: Sequence[Result], sums: Sequence[Mapping[str, Sums] | None]) -> Chains:
    """The chains of one setting, joined from its cells, each of which has its own repetitions.

    Unless all cells have their sums, there is a single draw: all sources.
    """
    kind, drawn = results[0]["kind"], draws(results[0]["sources"])
    available = [each for each in sums if each is not None]
    parts: dict[str, dict[str, Array]] = {}
    for part in ("sweeps", "start", "mode"):
        if part not in results[0]:
            parts[part] = {}
        elif len(available) < len(results):
            parts[part] = join_repetitions([as_arrays(result[part]) for result in results])
        else:
            parts[part] = join_repetitions(
                [figures_of(kind, each[part], drawn) for each in available]
            )
    kept = [line.get("phase", "sample") == "sample" for line in results[0]["sweeps"]]
    known = by_source(available, kept) if len(available) == len(results) else {}
    sweeps, start, mode = (parts[name] for name in ("sweeps", "start", "mode"))
    return Chains(sweeps, kept, start, mode, results[0]["sources"], known)


def by_source(sums: Sequence[Mapping[str, Sums]], kept: Sequence[bool]) -> dict[str, Array]:
    """Figures of each repetition and source, as `Chains` has them."""
    sweeps = [each["sweeps"] for each in sums]
    figures = {"tokens": [each["tokens"][-1] for each in sweeps]}
    for name in ("novel", "proposals"):
        if name in sweeps[0]:
            figures[name] = [each[name][list(kept)].sum(0) for each in sweeps]
    if "last" in sums[0]:
        figures |= {name: [each["last"][name] for each in sums] for name in ("energy", "raw")}
    return {name: np.concatenate(arrays) for name, arrays in figures.items()}


def rhat_of(pairs: Sequence[tuple[Mapping[str, Sums], Mapping[str, Sums]]], kept: Any) -> float:
    """R-hat of the energy, with chains from two starts, pooled over models and sources.

    The second of a pair has every k-th source of the first.
    """
    energies = []
    for first, second in pairs:
        a, b = (sums["sweeps"]["energy"][list(kept)] for sums in (first, second))
        step = -(-a.shape[-1] // b.shape[-1])
        energies.append(np.concatenate([a[..., ::step], b], 1))
    return pooled_rhat(torch.from_numpy(np.concatenate(energies, -1)))


def join_repetitions(cells: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The repetitions of several cells, one after the other."""
    return {name: np.concatenate([cell[name] for cell in cells], -2) for name in cells[0]}


def as_arrays(lines: Any) -> dict[str, Array]:
    """A line of a result, or a list of lines, as arrays with one draw."""
    if isinstance(lines, list):
        return {n: np.array([line[n] for line in lines])[..., None] for n in figures_in(lines[0])}
    return {name: np.array(lines[name])[..., None] for name in figures_in(lines)}


def figures_in(line: Mapping[str, Any]) -> list[str]:
    return [name for name, value in line.items() if isinstance(value, list)]


def draws(sources: int) -> Array:
    """How often each source counts: once in the first row, drawn with replacement in others."""
    rng = np.random.default_rng(sources)
    drawn = rng.multinomial(sources, np.full(sources, 1 / sources), size=DRAWS)
    return np.concatenate([np.ones((1, sources)), drawn])


def the(done: Done, **knobs: Any) -> Chains:
    """The first chains that have the given settings."""
    return next(chains for cell, chains in done.items() if alike(cell, knobs))


def alike(cell: Sampling, knobs: Mapping[str, Any]) -> bool:
    """Say whether a cell has the given settings."""
    return all(getattr(cell, name) == value for name, value in knobs.items())


def energies_together(chains: Chains) -> list[float]:
    """Spearman's correlation of raw and local energies a token over last texts, model by model.

    It is empty if the energies are not known, and 0 where one of them never changes.
    """
    figures = chains.by_source
    if "raw" not in figures:
        return []
    rows = zip(figures["energy"], figures["raw"], figures["tokens"], strict=True)
    found = [float(spearmanr(local / time, raw / time).statistic) for local, raw, time in rows]
    return [0.0 if np.isnan(value) else value for value in found]


def length_law(single: Chains, sweeps: int) -> Array:
    """The novel rate of shrinking blocks if sites moved independently, each as often as alone.

    A source whose single sites move in a share a of their proposals has blocks of b that move with
    1 - (1 - a)^b; the sizes are those of `LinearBlocks`. The rate is the mean over the sweeps after
    the burn-in, as in the tables.
    """
    figures = single.by_source
    rate = figures["novel"] / figures["proposals"].clip(1)
    time = figures["tokens"]
    first = (time + 1) // 2
    weights, rates = draws(single.sources).T, []
    for sweep in np.flatnonzero(single.kept):
        size = np.round(first + (1 - first) * sweep / max(sweeps - 1, 1)).clip(1)
        whole, rest = time // size, time % size
        novel = whole * (1 - (1 - rate) ** size) + (1 - (1 - rate) ** rest)
        rates.append((novel @ weights) / ((whole + (rest > 0)) @ weights))
    law: Array = np.mean(rates, axis=0)
    return law
