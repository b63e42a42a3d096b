"""Check with cross-ratios whether a joint distribution has given conditionals (thesis, Sec. 6.2.1).

Let p(x_i | x_j, rest) and p(x_j | x_i, rest) be positive. Tokens a, a' at i and b, b' at j have the
cross-ratio p(a|b) p(a'|b') / (p(a|b') p(a'|b)), which can be computed from either family. If there
is a joint distribution, both values are p(a,b) p(a',b') / (p(a,b') p(a',b)). Conversely, if they
agree for all pairs of positions, pairs of tokens and contexts, there is a joint distribution:
log-ratios of the conditionals then sum to zero around every square of single changes, and every
cycle is made of such squares and of changes at one position. Normalizers cancel, so logits suffice.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.types import MaskedLM

CHUNK = 256  # rows that the model gets at once


class CrossRatios(NamedTuple):
    """Log cross-ratios of each square of tokens a < a', b < b', from both families.

    Squares are in the order of `torch.combinations`; the pair b, b' changes fastest.
    """

    first: Float[Tensor, "*batch squares"]  # from p(x_i | x_j)
    second: Float[Tensor, "*batch squares"]  # from p(x_j | x_i)

    @property
    def discrepancy(self) -> Float[Tensor, "*batch squares"]:
        """Difference of both families in nats: 0 everywhere if there is a joint distribution."""
        return self.first - self.second

    def summary(self) -> dict[str, float]:
        """Compute the largest and the mean absolute discrepancy, in nats.

        Compare them with `mean_abs_log_ratio`, the mean absolute log cross-ratio of both families.
        """
        size = torch.stack([self.first, self.second]).abs()
        apart = self.discrepancy.abs()
        return {
            "max": apart.max().item(),
            "mean_abs": apart.mean().item(),
            "mean_abs_log_ratio": size.mean().item(),
        }


def log_cross_ratios(scores: Float[Tensor, "*batch a b"]) -> Float[Tensor, "*batch squares"]:
    """Compute s(a,b) + s(a',b') - s(a,b') - s(a',b) for all a < a' and b < b'."""
    if min(scores.shape[-2:]) < 2:
        raise ValueError(f"scores {tuple(scores.shape)}: a square needs two tokens on each side")
    a = torch.combinations(torch.arange(scores.shape[-2], device=scores.device))
    b = torch.combinations(torch.arange(scores.shape[-1], device=scores.device))
    along_a = scores[..., a[:, 0], :] - scores[..., a[:, 1], :]
    return (along_a[..., b[:, 0]] - along_a[..., b[:, 1]]).flatten(-2)


def cross_ratios(
    p_i_given_j: Float[Tensor, "*batch a b"], p_j_given_i: Float[Tensor, "*batch a b"]
) -> CrossRatios:
    """Compute the cross-ratios of two tables of probabilities, both indexed [x_i, x_j].

    The thesis's example has 9801 from p(y_1 | y_2) and 1 from p(y_2 | y_1). A pair of tables has a
    joint distribution if and only if the ratios of all squares agree.
    """
    for name, table, axis in (("p_i_given_j", p_i_given_j, -2), ("p_j_given_i", p_j_given_i, -1)):
        total = table.sum(axis)
        if not (table > 0).all():
            raise ValueError(f"{name} has the entry {table.min()}: cross-ratios need all above 0")
        if (total - 1).abs().max() > 1e-5:
            worst = total.flatten()[(total - 1).abs().argmax()]
            raise ValueError(f"{name} sums to {worst:.6g} along axis {axis}; it must be 1")
    return CrossRatios(log_cross_ratios(p_i_given_j.log()), log_cross_ratios(p_j_given_i.log()))


@torch.no_grad()
def masked_cross_ratios(
    lm: MaskedLM,
    text: Int[Tensor, " time"],
    pairs: Sequence[tuple[int, int]],
    tokens: Int[Tensor, " tokens"],
    *,
    owner: int = 0,
    chunk: int = CHUNK,
) -> CrossRatios:
    """Compute the cross-ratios of a masked LM's conditionals, for each pair of positions.

    Each family masks one position and puts each of the tokens at the other; the rest of the text
    stays. The tokens of the text at the two positions are not read.

    Args:
        lm: the masked language model.
        text: the text around the two positions.
        pairs: pairs of different positions i and j.
        tokens: the tokens of the squares, at both positions.
        owner: the source that the text belongs to; not read by models without sources.
        chunk: the largest number of rows that the model gets at once.
    """
    for i, j in pairs:
        if i == j or not (0 <= i < len(text) and 0 <= j < len(text)):
            raise ValueError(f"pairs: {i}, {j} are not two positions below {len(text)}")
    if not lm.allowed[tokens].all():
        bad = tokens[~lm.allowed[tokens]].tolist()
        raise ValueError(f"tokens: {bad} may not occur in a text of this model")
    n = len(tokens)
    i, j = torch.tensor(list(pairs), device=text.device).reshape(-1, 2).T
    hidden = torch.cat([i, j])  # the first family hides i, the second j
    given = torch.cat([j, i])
    rows = text.repeat(len(hidden), n, 1)  # family and pair, token at the other place, time
    rows.scatter_(
        2, given[:, None, None].expand(-1, n, 1), tokens.expand(len(hidden), n)[..., None]
    )
    masked = torch.zeros_like(rows, dtype=torch.bool)
    masked.scatter_(2, hidden[:, None, None].expand(-1, n, 1), True)
    parts = zip(rows.flatten(0, 1).split(chunk), masked.flatten(0, 1).split(chunk), strict=True)
    logits = torch.cat(
        [
            lm.logits(r, m, torch.full((len(r),), owner, device=r.device))[:, tokens]
            for r, m in parts
        ]
    )
    first, second = logits.to(text.device).double().unflatten(0, (2, len(pairs), n))
    return CrossRatios(log_cross_ratios(first.mT), log_cross_ratios(second))
