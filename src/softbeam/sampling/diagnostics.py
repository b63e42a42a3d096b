"""Whether chains have found what they sample: split R-hat, effective sample size, unique texts.

The statistics are arviz-stats'. They are given a feature of the texts, one number for each sweep
and chain: the energy, or any function of one's own.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float
from torch import Tensor

FEWEST = 4  # sweeps; half of a shorter chain has no variance to speak of

Values = Float[Tensor, "sweep chain"]


class Mixing(NamedTuple):
    """How well chains agree about one feature; None where too little was sampled to say."""

    mean: float
    rhat: float | None
    ess: float | None
    ess_per_s: float | None


def mixing(features: Mapping[str, Values], *, seconds: float | None = None) -> dict[str, Mixing]:
    """R-hat and effective sample size of each feature, per second of sampling if it is known."""
    found = {}
    for name, values in features.items():
        ess = bulk_ess(values)
        per_s = None if ess is None or not seconds else ess / seconds
        found[name] = Mixing(float(values.double().mean()), split_rhat(values), ess, per_s)
    return found


def split_rhat(values: Values) -> float | None:
    """Rank-normalized split R-hat (Vehtari et al. 2021): 1 where halves of chains agree.

    Where nothing ever changes it is 1 if all chains are at the same value, and infinite if not.
    None for a single chain or fewer than 4 sweeps.
    """
    if values.shape[1] < 2 or len(values) < FEWEST:
        return None
    if bool((values == values[0]).all()):
        return 1.0 if bool((values == values[0, 0]).all()) else float("inf")
    return float(array_stats.rhat(by_chain(values), chain_axis=0, draw_axis=1))


def bulk_ess(values: Values) -> float | None:
    """The number of independent draws that would know as much about the bulk of the values.

    Where nothing ever changes it is 1 for each value that chains are stuck at. None for fewer than
    4 sweeps.
    """
    if len(values) < FEWEST:
        return None
    if bool((values == values[0]).all()):
        return float(len(values[0].unique()))
    return float(array_stats.ess(by_chain(values), chain_axis=0, draw_axis=1, method="bulk"))


def by_chain(values: Values) -> np.ndarray:
    return values.detach().cpu().double().numpy().T


def unique_ratio(texts: Sequence[Hashable]) -> float:
    """Different texts among the samples: 1 where none comes twice."""
    if not texts:
        raise ValueError("texts: there are none")
    return len(set(texts)) / len(texts)
