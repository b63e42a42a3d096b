"""Do conditionals admit a joint? By cross-ratios (thesis, Sec. 6.2.1).

Of positive conditionals p(x_i | x_j, rest) and p(x_j | x_i, rest), every pair of tokens a, a' at i
and b, b' at j gives the cross-ratio p(a|b) p(a'|b') / (p(a|b') p(a'|b)) in two ways, once from each
family. Under a joint both are p(a,b) p(a',b') / (p(a,b') p(a',b)). If they agree for all pairs of
positions, pairs of tokens and contexts, there is a joint: log-ratios of the conditionals then sum
to zero around every square of single changes, and squares and changes at one place make up every
cycle. Normalizers cancel, so that logits will do: what MLM training leaves open changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softbeam.types import MaskedLM

CHUNK = 256  # rows given to a model at once


class CrossRatios(NamedTuple):
    """log cross-ratios of each square of tokens a < a', b < b', from the one family and the other.

    Squares are in the order of `torch.combinations`: those of a, a' outside, of b, b' inside.
    """

    first: Float[Tensor, "*batch squares"]  # from p(x_i | x_j)
    second: Float[Tensor, "*batch squares"]  # from p(x_j | x_i)

    @property
    def discrepancy(self) -> Float[Tensor, "*batch squares"]:
        """Their difference, in nats: 0 throughout if there is a joint."""
        return self.first - self.second

    def summary(self) -> dict[str, float]:
        """The largest and the mean absolute discrepancy in nats, and the mean size of the ratios.

        The last is the scale to judge by: the mean absolute log cross-ratio of both families.
        """
        size = torch.stack([self.first, self.second]).abs()
        apart = self.discrepancy.abs()
        return {
            "max": apart.max().item(),
            "mean_abs": apart.mean().item(),
            "mean_abs_log_ratio": size.mean().item(),
        }


def log_cross_ratios(scores: Float[Tensor, "*batch a b"]) -> Float[Tensor, "*batch squares"]:
    """s(a,b) + s(a',b') - s(a,b') - s(a',b) for all a < a' and b < b'."""
    if min(scores.shape[-2:]) < 2:
        raise ValueError(f"scores {tuple(scores.shape)}: a square needs two tokens on each side")
    a = torch.combinations(torch.arange(scores.shape[-2], device=scores.device))
    b = torch.combinations(torch.arange(scores.shape[-1], device=scores.device))
    along_a = scores[..., a[:, 0], :] - scores[..., a[:, 1], :]
    return (along_a[..., b[:, 0]] - along_a[..., b[:, 1]]).flatten(-2)


def cross_ratios(
    p_i_given_j: Float[Tensor, "*batch a b"], p_j_given_i: Float[Tensor, "*batch a b"]
) -> CrossRatios:
    """The cross-ratios of two tables of probabilities, both indexed [x_i, x_j].

    The thesis's example has 9801 from p(y_1 | y_2) and 1 from p(y_2 | y_1). A pair of tables has a
    joint if and only if no square differs.
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
    """The cross-ratios of a masked LM's conditionals, a row of squares for each pair of positions.

    Each family masks one position and tries the tokens at the other; the rest of the text stays.
    What the text holds at the two positions is not read.

    Args:
        pairs: positions i and j, different ones.
        tokens: those that make up the squares, at both positions.
        owner: the source that the text belongs to; unread without sources.
        chunk: largest number of rows given to the model at once.
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
    first, second = logits.double().unflatten(0, (2, len(pairs), n))
    return CrossRatios(log_cross_ratios(first.mT), log_cross_ratios(second))
