"""Audit a sampler on a real model: compare its texts with exact ancestral samples.

The law of a model with any conditionals is that of the chain rule in one fixed order: its texts can
be drawn exactly and their probabilities are known (`ChainEnergy`). The sampler's texts and as many
exact ones are described by figures of each text, and the figures are compared by two-sample tests.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import ks_2samp, ttest_ind
from torch import Generator, Tensor

from softbeam.sampling.audit import entropy_of_each
from softbeam.sampling.chain_rule import ChainEnergy
from softbeam.sampling.tiny import CountedMlm
from softbeam.sampling.unmasking import Unmask
from softbeam.types import MaskedLM

LEVEL = 1e-4  # the smallest p-value of a right sampler, over all figures


class Gap(NamedTuple):
    """A figure of the sampler's texts, beside that of exact ones."""

    name: str
    value: float
    exact: float
    p_value: float


class ModelAudit(NamedTuple):
    """The figures of a sampler on a model, and how many rows of the model a text took."""

    gaps: list[Gap]
    rows: float
    draws: int

    @property
    def limit(self) -> float:
        """The smallest p-value of a figure that holds."""
        return LEVEL / len(self.gaps)

    @property
    def holds(self) -> bool:
        """True if no figure differs."""
        return all(gap.p_value >= self.limit for gap in self.gaps)


@torch.no_grad()
def audit_model(
    sampler: Unmask,
    mlm: MaskedLM,
    tokens: Int[Tensor, "draws time"],
    hidden: Bool[Tensor, "draws time"],
    order: Int[Tensor, " sites"],
    *,
    seed: int = 0,
) -> ModelAudit:
    """Let a sampler fill texts, and compare them with samples of the chain rule in this order.

    Args:
        sampler: a function (mlm, tokens, hidden, rng) -> tokens that fills the hidden positions.
        mlm: the model.
        tokens: the texts, a row for each draw.
        hidden: the positions to fill, the same ones in every row.
        order: the same positions, first to last.
        seed: the seed of all draws.
    """
    counted = CountedMlm(mlm)
    texts = sampler(counted, tokens, hidden, Generator().manual_seed(seed))
    energy = ChainEnergy(mlm, order)
    exact = energy.sample(tokens, Generator().manual_seed(seed + 1))
    both = [described_texts(rows, energy, len(mlm.allowed)) for rows in (texts, exact)]
    gaps = [compared(name, *(figures[name] for figures in both)) for name in both[0]]
    values = [figures["energy"].tolist() for figures in both]
    p = float(ks_2samp(*values).pvalue)
    spread = [float(torch.tensor(row).std()) for row in values]
    gaps.insert(1, Gap("energy, distribution", spread[0], spread[1], p))
    return ModelAudit(gaps, counted.rows / len(tokens), len(tokens))


def described_texts(
    texts: Int[Tensor, "texts time"], energy: ChainEnergy, vocab: int
) -> dict[str, Float[Tensor, " texts"]]:
    """Describe each text by its energy, its repetitions and the entropy of its tokens."""
    return {
        "energy": energy(texts).double(),
        "repeated tokens": (texts[:, 1:] == texts[:, :-1]).double().mean(-1),
        "entropy of tokens": entropy_of_each(texts, vocab),
    }


def compared(name: str, value: Float[Tensor, " texts"], exact: Float[Tensor, " texts"]) -> Gap:
    """Compare the means of a figure by Welch's test."""
    means = float(value.mean()), float(exact.mean())
    if bool((value == value[0]).all() & (exact == value[0]).all()):
        return Gap(name, *means, 1.0)
    return Gap(name, *means, float(ttest_ind(value, exact, equal_var=False).pvalue))


def as_text(result: ModelAudit) -> str:
    """Write the figures as a table, and the verdict below it; a distribution has its spread."""
    lines = [f"{'':20} {'sampler':>9} {'exact':>9} {'p-value':>9}"]
    for gap in result.gaps:
        wrong = "" if gap.p_value >= result.limit else "  WRONG"
        lines.append(f"{gap.name:20} {gap.value:9.4f} {gap.exact:9.4f} {gap.p_value:9.1e}{wrong}")
    verdict = "the law of the chain rule" if result.holds else "ANOTHER LAW"
    lines.append(f"{result.draws:,} texts, {result.rows:.1f} rows of the model each: {verdict}")
    return "\n".join(lines)
