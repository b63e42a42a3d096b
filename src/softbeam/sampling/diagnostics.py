"""Diagnostics of chains: split R-hat, effective sample size, share of unique texts.

The statistics are those of arviz-stats. They are computed for a feature of the texts, one number
for each sweep and chain: the energy, or any other function of a text. Chains in different modes can
have the same energies, so `text_mixing` also asks which tokens stand where.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch
from arviz_stats.base import array_stats
from jaxtyping import Float, Int
from torch import Tensor

FEWEST = 4  # sweeps; half of a shorter chain is too short for a variance
HIGH = 1.05  # R-hat above which chains disagree, unless chance alone explains more
LEVEL = 0.01  # probability that independent draws give a larger R-hat than the limit
SEEN = 3.0  # draws of a half chain in which a token is expected, for a feature of its own
SUSPECTS = 8  # features whose R-hat, and as many whose ESS, are computed by arviz-stats

Values = Float[Tensor, "sweep chain"]


class Mixing(NamedTuple):
    """How well chains agree about one feature; None if there are too few samples."""

    mean: float
    rhat: float | None
    ess: float | None
    ess_per_s: float | None


class TextMixing(NamedTuple):
    """How well chains agree about the energy and about the tokens at each position.

    `rhat` and `ess` are the worst of all; None if there are too few samples. Independent draws
    have an R-hat above `limit` with a probability of about 1 %.
    """

    mean: float  #: of the energy
    rhat: float | None
    ess: float | None
    ess_per_s: float | None
    energy_rhat: float | None
    energy_ess: float | None
    worst: str  #: the feature of `rhat`: energy, or a token at a position
    limit: float

    @property
    def mixed(self) -> bool:
        """Whether no R-hat is above the limit."""
        return self.rhat is None or self.rhat <= self.limit


def text_mixing(
    energy: Values, tokens: Int[Tensor, "sweep chain time"], *, seconds: float | None = None
) -> TextMixing:
    """Compute the worst R-hat and effective sample size of the energy and of tokens at positions.

    The features of tokens are 1 where a token stands at a position and 0 elsewhere, for all tokens
    that are neither rare nor constant. The worst are found by a cheap statistic, and computed by
    arviz-stats.
    """
    own = mixing({"energy": energy}, seconds=seconds)["energy"]
    n, halves = len(energy) // 2, 2 * energy.shape[1]
    names, features = token_features(tokens)
    rhats, sizes = {"energy": own.rhat}, {"energy": own.ess}
    if len(energy) >= FEWEST and names:
        for i in suspects(features):
            rhats[names[i]], sizes[names[i]] = split_rhat(features[i]), bulk_ess(features[i])
    worst = max(rhats, key=lambda name: rhats[name] or 0.0)
    ess = min((size for size in sizes.values() if size is not None), default=None)
    per_s = None if ess is None or not seconds else ess / seconds
    limit = rhat_limit(n, halves, features=len(names) + 2)  # R-hat of the energy is of two
    return TextMixing(own.mean, rhats[worst], ess, per_s, own.rhat, own.ess, worst, limit)


def token_features(
    tokens: Int[Tensor, "sweep chain time"],
) -> tuple[list[str], Float[Tensor, "feature sweep chain"]]:
    """Names and values of the features of tokens that are neither rare nor constant."""
    return indicators(tokens, fewest=SEEN / max(len(tokens) // 2, 1))


def indicators(
    tokens: Int[Tensor, "sweep chain time"], *, fewest: float
) -> tuple[list[str], Float[Tensor, "feature sweep chain"]]:
    """Names and values of the features 1[token v at position t] with shares away from 0 and 1."""
    names, features = [], []
    for time, column in enumerate(tokens.unbind(-1)):
        values, counts = column.unique(return_counts=True)
        shares = counts / column.numel()
        kept = values[(shares >= fewest) & (1 - shares >= fewest)].tolist()
        names += [f"token {value} at position {time}" for value in kept]
        features += [(column == value).double() for value in kept]
    empty = tokens.new_zeros((0, *tokens.shape[:2])).double()
    return names, torch.stack(features) if features else empty


def suspects(features: Float[Tensor, "feature sweep chain"]) -> list[int]:
    """The features of which halves of chains differ most, and those that change most rarely."""
    n = features.shape[1] // 2
    halves = torch.cat([features[:, :n], features[:, -n:]], 2)  # feature, n, 2 * chains
    within = halves.var(1).mean(1).clamp_min(1e-12)
    apart = halves.mean(1).var(1) / within
    share = features.mean((1, 2))
    changes = (features[:, 1:] != features[:, :-1]).double().mean((1, 2)) / (share * (1 - share))
    most = min(SUSPECTS, len(features))
    return sorted({*apart.topk(most).indices.tolist(), *(-changes).topk(most).indices.tolist()})


def rhat_limit(n: int, halves: int, *, features: int) -> float:
    """An R-hat that independent draws exceed in any of the features with probability `LEVEL`.

    For normal draws n (R-hat^2 - 1) + 1 has Fisher's F distribution; at least `HIGH`.
    """
    if n < 2 or halves < 4:
        return HIGH
    ratio = float(scipy.stats.f.isf(LEVEL / features, halves - 1, halves * (n - 1)))
    return max(HIGH, math.sqrt((n - 1 + ratio) / n))


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
    method = "rank" if len(values.unique()) > 2 else "split"  # ranks of two values change nothing
    with np.errstate(divide="ignore"):  # halves that never change, at different values: infinite
        return float(array_stats.rhat(by_chain(values), chain_axis=0, draw_axis=1, method=method))


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


def pooled_rhat(values: Float[Tensor, "sweep chain group"]) -> float:
    """Compute split R-hat over many targets, each with its own chains and its own mean.

    Variances within and between half chains are averaged over the groups first, so that the chains
    of a group may be few. It is infinite if no chain moves and chains of a group differ.
    """
    n = len(values) // 2
    halves = torch.cat([values[:n], values[-n:]], 1).double()
    within = halves.var(0).mean().item()
    between = halves.mean(0).var(0).mean().item()
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((n - 1) / n + between / within)
