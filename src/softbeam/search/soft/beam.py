"""The soft beam between two steps."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softbeam.errors import NotFinite
from softbeam.search.decoders import checked_scores
from softbeam.search.soft.form import FAST, Form
from softbeam.types import State


class SoftBeam(NamedTuple):
    """The beam between two steps; the i-th slot is a mixture that tends to the i-th best prefix."""

    state: State  # h, rows are batch-major
    emb: Float[Tensor, "rows emb"]  # e
    score: Float[Tensor, "batch beam"]  # s
    cost: Float[Tensor, "batch beam"]  # D
    finished: Float[Tensor, "batch beam"]  # f: the mass that has ended in EOS (0 without eos)
    real: Bool[Tensor, "batch beam"]  # False: filler, in a row that froze while narrower
    dropped: Float[Tensor, " batch"]  # largest bound on the mass a candidate pool left out
    p: Tensor | None = None  # the last relaxed indices; kept where a caller asks for them
    diagnostics: "Diagnostics | None" = None


class Diagnostics(NamedTuple):
    """How soft a soft beam was: means over the beam and over each row's own steps."""

    entropy: Float[Tensor, " batch"]  # of p_i, in nats
    overlap: Float[Tensor, " batch"]  # sum of min(p_i, p_j) over cells, mean over pairs i < j
    dropped: Float[Tensor, " batch"]  # largest bound on the mass a candidate pool left out


class Relaxation(NamedTuple):
    """How hard a beam is relaxed, and how its steps are computed."""

    k: int
    alpha: float
    cost_scale: float = 0.0  # of the cost added to the scores, as in Sec. 2.5
    form: Form = FAST


ALL_FORBIDDEN = "the decoder forbids every token of a step: all scores are -inf"


def within_reach(
    local: Float[Tensor, "rows vocab"], beam: SoftBeam, alpha: float
) -> Float[Tensor, "rows vocab"]:
    """Scores of a step in which a forbidden token (-inf) is finite, but too low to get any mass.

    Infinities would make gradients NaN (docs/errata.md). A forbidden token has no gradient. Raises
    NotFinite if a score is NaN or +inf, or every token of a sentence is forbidden.
    """
    checked_scores(local)
    if not bool(local.isneginf().any()):
        return local
    best = local.detach().amax(-1, keepdim=True)
    if bool(best.unflatten(0, beam.score.shape).amax(1).isneginf().any()):
        raise NotFinite(ALL_FORBIDDEN)
    return with_finite_scores(local, best, alpha)


def with_finite_scores(
    local: Float[Tensor, "rows vocab"], best: Float[Tensor, "rows 1"], alpha: float
) -> Float[Tensor, "rows vocab"]:
    """Scores in which -inf is far below the row's `best`."""
    far = min(1e4 / min(alpha, 1.0), 1e15)
    return torch.where(local.isneginf(), best.where(best.isfinite(), 0.0) - far, local)


def lowest(like: Tensor) -> float:
    """A finite number that a softmax turns into exactly 0."""
    return torch.finfo(like.dtype).min / 4
