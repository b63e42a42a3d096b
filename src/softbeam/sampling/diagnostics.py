"""Diagnostics of chains: split R-hat, effective sample size, share of unique texts.

The statistics are those of arviz-stats. They are computed for a feature of the texts, one number
for each sweep and chain: the energy, or any other function of a text.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float
from torch import Tensor

FEWEST = 4  # sweeps; half of a shorter chain is too short for a variance

Values = Float[Tensor, "sweep chain"]


class Mixing(NamedTuple):
    """How well chains agree about one feature; None if there are too few samples."""

    mean: float
    rhat: float | None
    ess: float | None
    ess_per_s: float | None


def mixing(features: Mapping[str, Values], *, seconds: float | None = None) -> dict[str, Mixing]:
    """Compute R-hat and effective sample size of each feature; per second if `seconds` is given."""
    diagnostics = {}
    for name, values in features.items():
        ess = bulk_ess(values)
        per_s = None if ess is None or not seconds else ess / seconds
        diagnostics[name] = Mixing(float(values.double().mean()), split_rhat(values), ess, per_s)
    return diagnostics


def split_rhat(values: Values) -> float | None:
    """Compute rank-normalized split R-hat (Vehtari et al. 2021): 1 if halves of chains agree.

    If no chain ever changes, it is 1 if all chains have the same value, and infinite if not.
    None for a single chain or fewer than 4 sweeps.
    """
    if values.shape[1] < 2 or len(values) < FEWEST:
        return None
    if bool((values == values[0]).all()):
        return 1.0 if bool((values == values[0, 0]).all()) else float("inf")
    return float(array_stats.rhat(by_chain(values), chain_axis=0, draw_axis=1))


def bulk_ess(values: Values) -> float | None:
    """Compute the effective sample size of the bulk of the values (Vehtari et al. 2021).

    If no chain ever changes, it is the number of distinct values. None for fewer than 4 sweeps.
    """
    if len(values) < FEWEST:
        return None
    if bool((values == values[0]).all()):
        return float(len(values[0].unique()))
    return float(array_stats.ess(by_chain(values), chain_axis=0, draw_axis=1, method="bulk"))


def by_chain(values: Values) -> np.ndarray:
    """Convert to the array of arviz-stats: chains first."""
    return values.detach().cpu().double().numpy().T


def unique_ratio(texts: Sequence[Hashable]) -> float:
    """The share of distinct texts among the samples: 1 if all differ."""
    if not texts:
        raise ValueError("texts: must have at least 1")
    return len(set(texts)) / len(texts)
