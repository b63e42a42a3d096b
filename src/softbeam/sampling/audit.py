"""Audit a sampler: does it draw from the law of its model?

The model is an oracle, whose law is known (`oracles`). The sampler's texts are described by a few
figures, and so are texts that were drawn exactly, as many of them, again and again: their mean is
the noise floor, the value that a right sampler has. A figure that is more than `LIMIT` of their
standard deviations off is wrong. With 20 repetitions a right sampler has such a figure once in ten
thousand times.
"""

import statistics
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from softbeam.sampling.oracles import Oracle, every, table_index
from softbeam.sampling.tiny import CountedMlm
from softbeam.sampling.unmasking import Unmask

LIMIT = 5.0  # standard deviations
LARGEST_TABLE = 100_000  # texts whose frequencies are counted


class Figure(NamedTuple):
    """A figure of a sampler's texts, beside that of texts which were drawn exactly."""

    name: str
    value: float
    floor: float  # the mean of exact draws
    spread: float  # their standard deviation
    distance: bool  # only larger values are wrong

    @property
    def off(self) -> float:
        """How far off it is, in standard deviations of exact draws."""
        gap = self.value - self.floor
        gap = gap if self.distance else abs(gap)
        return gap / max(self.spread, 1e-12) if gap > 1e-12 else 0.0

    @property
    def holds(self) -> bool:
        return self.off <= LIMIT


class Audit(NamedTuple):
    """The figures of a sampler, and how many rows of the model a text took."""

    figures: list[Figure]
    rows: float
    draws: int

    @property
    def holds(self) -> bool:
        """True if no figure is wrong."""
        return all(figure.holds for figure in self.figures)


@torch.no_grad()
def audit(
    sampler: Unmask, oracle: Oracle, *, draws: int = 20_000, repetitions: int = 20, seed: int = 0
) -> Audit:
    """Let a sampler fill texts of an oracle, and compare them with the oracle's own law.

    Args:
        sampler: a function (mlm, tokens, hidden, rng) -> tokens that fills the hidden positions.
        oracle: the model.
        draws: the number of texts.
        repetitions: the number of times that as many texts are drawn exactly.
        seed: the seed of all draws.
    """
    counted = CountedMlm(oracle)
    texts = sampler(counted, *oracle.hidden(draws), Generator().manual_seed(seed))
    if texts.shape != (draws, oracle.time) or not bool(
        ((texts >= 0) & (texts < oracle.vocab)).all()
    ):
        raise ValueError(f"the sampler returned no {draws} texts of {oracle.time} tokens each")
    rng = Generator().manual_seed(seed + 1)
    values = described(texts, oracle)
    exact = [described(oracle.sample(draws, rng), oracle) for _ in range(repetitions)]
    figures = [
        Figure(name, value, *mean_and_spread([each[name] for each in exact]), name in DISTANCES)
        for name, value in values.items()
    ]
    return Audit(figures, counted.rows / draws, draws)


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values)


# Figures


def described(texts: Int[Tensor, "texts time"], oracle: Oracle) -> dict[str, float]:
    """Describe texts by figures."""
    figures: dict[str, float] = {}
    if oracle.vocab**oracle.time <= LARGEST_TABLE:
        figures["total variation"] = total_variation(texts, oracle)
    found, expected = frequencies(texts, oracle.vocab), oracle.pairs()
    figures["marginals"] = float(half(found.sum(-1) - expected.sum(-1)).mean())
    figures["pairs"] = float(half((found - expected).flatten(1)).mean())
    figures["energy"] = float(oracle.energy(texts).mean())
    figures["repeated tokens"] = float((texts[:, 1:] == texts[:, :-1]).double().mean())
    figures["entropy of tokens"] = float(entropy_of_each(texts, oracle.vocab).mean())
    return figures


DISTANCES = ("total variation", "marginals", "pairs")


def half(difference: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows"]:
    """The total variation of two distributions, of their difference."""
    return difference.abs().sum(-1) / 2


def total_variation(texts: Int[Tensor, "texts time"], oracle: Oracle) -> float:
    """The total variation of the texts' frequencies and the oracle's law."""
    size = oracle.vocab**oracle.time
    shares = torch.bincount(table_index(texts, oracle.vocab), minlength=size) / len(texts)
    return float(half(shares - (-oracle.energy(every(oracle.vocab, oracle.time))).exp()))


def frequencies(texts: Int[Tensor, "texts time"], vocab: int) -> Float[Tensor, "edges vocab vocab"]:
    """The share of each two tokens at the positions (t, t + 1)."""
    edges = texts.shape[1] - 1
    place = torch.arange(edges) * vocab**2 + texts[:, :-1] * vocab + texts[:, 1:]
    counts = torch.bincount(place.flatten(), minlength=edges * vocab**2)
    return counts.double().unflatten(0, (edges, vocab, vocab)) / len(texts)


def entropy_of_each(texts: Int[Tensor, "texts time"], vocab: int) -> Float[Tensor, " texts"]:
    """The entropy of the tokens within each text, in nats: low for monotonous texts."""
    counts = torch.nn.functional.one_hot(texts, vocab).double().mean(1)
    return torch.special.entr(counts).sum(-1)


def as_text(result: Audit) -> str:
    """Write the figures as a table, and the verdict below it."""
    lines = [f"{'':20} {'sampler':>9} {'exact':>9} {'':>3}off"]
    for figure in result.figures:
        wrong = "" if figure.holds else "  WRONG"
        lines.append(
            f"{figure.name:20} {figure.value:9.4f} {figure.floor:9.4f} {figure.off:6.1f}{wrong}"
        )
    verdict = "the law of the model" if result.holds else "ANOTHER LAW"
    lines.append(f"{result.draws:,} texts, {result.rows:.1f} rows of the model each: {verdict}")
    return "\n".join(lines)
