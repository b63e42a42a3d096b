"""Objectives on a hard beam that keeps the gold prefix in view; formulas in `losses.hard_beam`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import WIDEST_BEAM, check_range
from softbeam.objectives.base import (
    Log,
    MetricName,
    SearchObjective,
    check_beam,
    named_metric,
    size,
)
from softbeam.schedules import Moment

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.objectives.losses import hard_beam as losses
    from softbeam.types import Batch, Decoder
else:
    losses = lazy("softbeam.objectives.losses.hard_beam")


@dataclass(frozen=True, kw_only=True)
class HardBeamObjective(SearchObjective):
    """An objective on a hard beam.

    Args:
        k: beam size.
        normalize: locally normalized scores; those of the papers are raw.
    """

    k: int = 4
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("k", self.k, least=1, most=WIDEST_BEAM)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        super().check(vocab=vocab, time=time, ends=ends)
        check_beam("k", self.k, vocab=vocab, time=time)


@dataclass(frozen=True, kw_only=True)
class BeamSearchOptimization(HardBeamObjective):
    """Margins between gold and the k-th hypothesis, with restarts (Wiseman and Rush 2016).

    Args:
        k: beam size; one more than the beam that decodes.
        margin: by which gold must win.
        delta: cost of the rival that weighs a violation: hamming, edit or bleu; 1 if not given.
    """

    margin: float = 1.0
    delta: MetricName | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("k", self.k, least=2, most=WIDEST_BEAM)
        check_range("margin", self.margin, least=0)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        longer = self.searched(batch)
        delta = None if self.delta is None else named_metric(self.delta)
        margins = losses.bso_loss(
            decoder, longer.target, k=self.k, ends=longer.ends, margin=self.margin, delta=delta
        )
        steps = max(size(longer), 1)
        rates = {"violated": margins.violated, "fell": margins.fell}
        return margins.loss.sum(), {name: v.sum().item() / steps for name, v in rates.items()}


@dataclass(frozen=True, kw_only=True)
class BeamCrf(HardBeamObjective):
    """Likelihood normalized over the beam, with early update (Andor et al. 2016)."""

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        longer = self.searched(batch)
        update = losses.crf_loss(decoder, longer.target, k=self.k, ends=longer.ends)
        reached = update.steps.sum().item() / max(size(longer), 1)
        fell = update.fell.float().mean().item()
        return update.loss.sum(), {"reached": reached, "fell": fell}
