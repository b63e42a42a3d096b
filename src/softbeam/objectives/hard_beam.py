"""Search-aware objectives to compare with the soft beam, under the same interface.

Frozen dataclasses of knobs like those of `objectives`, and as cheap to import; the algorithms are
in `beam_training`. Sentence-level costs are rates; a sentence counts as often as it has tokens, so
that total / size is a cost per sentence weighted by length, on the scale of cross-entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softbeam.errors import limited
from softbeam.objectives.base import check_beam, size
from softbeam.schedules import Moment

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from softbeam.types import Batch, Decoder
from softbeam.objectives.base import Log, MetricName, SearchObjective, named_metric, scored


@dataclass(frozen=True, kw_only=True)
class BeamSearchOptimization(SearchObjective):
    """Margins between gold and the k-th hypothesis, with restarts (Wiseman and Rush 2016).

    Args:
        k: beam size; one more than the beam that decodes.
        margin: by which gold must win.
        normalize: locally normalized scores; the paper's are raw.
        delta: cost of the rival that weighs a violation: hamming, edit, bleu, or your own
            function of predicted and gold tokens; 1 if not given.
    """

    k: int = 4
    margin: float = 1.0
    normalize: bool = False
    delta: MetricName | Callable[..., float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("k", self.k, least=2)
        limited("margin", self.margin, least=0)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        super().check(vocab=vocab, time=time, ends=ends)
        check_beam("k", self.k, vocab=vocab, time=time)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import bso_loss

        longer = self.searched(batch)
        found = bso_loss(
            scored(decoder, self.normalize),
            longer.target,
            k=self.k,
            lengths=longer.mask.sum(1),
            eos=self.eos(batch),
            margin=self.margin,
            delta=None if self.delta is None else named_metric(self.delta),
        )
        steps = max(size(longer), 1)
        rates = {"violated": found.violated, "fell": found.fell}
        return found.loss.sum(), {name: v.sum().item() / steps for name, v in rates.items()}


@dataclass(frozen=True, kw_only=True)
class BeamCrf(SearchObjective):
    """Likelihood normalized over the beam, with early update (Andor et al. 2016).

    Args:
        k: beam size.
        normalize: locally normalized scores; the paper's are raw.
    """

    k: int = 4
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limited("k", self.k, least=1)

    def check(self, *, vocab: int, time: int, ends: bool) -> None:
        super().check(vocab=vocab, time=time, ends=ends)
        check_beam("k", self.k, vocab=vocab, time=time)

    def loss(
        self, model: "nn.Module", decoder: "Decoder", batch: "Batch", now: Moment, rng: "Generator"
    ) -> "tuple[Tensor, Log]":
        from softbeam.objectives.losses.hard_beam import crf_loss

        longer = self.searched(batch)
        found = crf_loss(
            scored(decoder, self.normalize),
            longer.target,
            k=self.k,
            lengths=longer.mask.sum(1),
            eos=self.eos(batch),
        )
        reached = found.steps.sum().item() / max(size(longer), 1)
        return found.loss.sum(), {"reached": reached, "fell": found.fell.float().mean().item()}
