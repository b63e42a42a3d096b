"""Objectives that maximize the likelihood of the target."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import TEMPERATURES, check_range
from softbeam.objectives.base import Objective, gold_loss, size
from softbeam.schedules import Moment

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn
    from torch.nn import functional

    from softbeam import types
    from softbeam.objectives.losses import likelihood as losses
    from softbeam.search import decoders
    from softbeam.types import Batch, Loss
else:
    torch, types = lazy("torch"), lazy("softbeam.types")
    functional = lazy("torch.nn.functional")
    losses = lazy("softbeam.objectives.losses.likelihood")
    decoders = lazy("softbeam.search.decoders")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Objective):
    """Negative log-likelihood of the gold tokens given the gold prefix (2017, Sec. 2).

    Args:
        smoothing: share of the target distribution spread evenly over the vocabulary.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_range("smoothing", self.smoothing, least=0, below=1)

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        scores = decoders.forced_scores(model(batch.source), batch.target)
        return types.Loss(gold_loss(scores, batch, self.smoothing), size(batch), {})


@dataclass(frozen=True, kw_only=True)
class SelfNormalized(Objective):
    """Cross-entropy + penalty * (log Z)^2 over the real tokens (2019; thesis 5.3.1).

    Pulls every step's normalizer to 1, so that raw scores are nearly log-probabilities: a start
    for globally normalized training.

    Args:
        penalty: lambda; the papers give no value.
        smoothing: as in CrossEntropy.
    """

    penalty: float = 0.1
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_range("penalty", self.penalty, least=0)
        check_range("smoothing", self.smoothing, least=0, below=1)

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        scores = decoders.forced_scores(model(batch.source), batch.target)
        log_z = scores.logsumexp(-1)[batch.mask]
        total = gold_loss(scores, batch, self.smoothing) + self.penalty * log_z.square().sum()
        log = {"log_z_mean": log_z.mean().item(), "log_z_variance": log_z.var(correction=0).item()}
        return types.Loss(total, size(batch), log)


@dataclass(frozen=True, kw_only=True)
class TokenContrast(Objective):
    """Tell each gold token from noise by its raw score (Mnih and Teh 2012; thesis 5.3, footnote).

    The best raw scores are log-probabilities without any normalizer: another start for globally
    normalized training.

    Args:
        noise: noise tokens for each gold token.
        uniform: share of the noise that is even over the vocabulary; the rest is as frequent as
            the tokens of the batch.
    """

    noise: int = 20
    uniform: float = 0.5

    def __post_init__(self) -> None:
        check_range("noise", self.noise, least=1)
        check_range("uniform", self.uniform, above=0, most=1)

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        scores = decoders.forced_scores(model(batch.source), batch.target)[batch.mask]
        gold, vocab = batch.target[batch.mask], scores.shape[1]
        counts = torch.bincount(gold, minlength=vocab).to(scores.dtype)
        q = self.uniform / vocab + (1 - self.uniform) * counts / counts.sum()
        count = len(gold) * self.noise
        drawn = torch.multinomial(q.cpu(), count, replacement=True, generator=rng)
        tokens = torch.cat([gold[:, None], drawn.to(gold.device).unflatten(0, (len(gold), -1))], 1)
        margin = scores.gather(1, tokens) - (self.noise * q[tokens]).log()
        total = functional.softplus(-margin[:, 0]).sum() + functional.softplus(margin[:, 1:]).sum()
        return types.Loss(total, size(batch), {"log_z_mean": scores.logsumexp(-1).mean().item()})


@dataclass(frozen=True, kw_only=True)
class Distillation(Objective):
    """Warm start from a teacher's step distributions (Hinton et al. 2015; thesis 5.3.1).

    KL divergence from the teacher, given the gold prefix, to softmax of the student's raw scores.
    Training reads the teacher; elsewhere, call `loaded` first.

    Args:
        teacher: folder of the teacher's run, with the student's vocabularies.
        temperature: of both distributions.
        cross_entropy: weight of cross-entropy added to the loss.
    """

    teacher: Path
    temperature: float = 1.0
    cross_entropy: float = 0.0
    model = None  # the teacher, after `loaded`; not a setting

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, **TEMPERATURES)
        check_range("cross_entropy", self.cross_entropy, least=0)

    @property
    def run_folders(self) -> "tuple[Path, ...]":
        return (self.teacher,)

    def loaded(self, load: "Callable[[Path], nn.Module]") -> "Distillation":
        """Return the objective with its teacher, without dropout or gradient."""
        ready = replace(self)
        object.__setattr__(ready, "model", load(self.teacher).eval().requires_grad_(False))
        return ready

    @property
    def frozen(self) -> "nn.Module":
        """The teacher; raises ValueError if it has not been loaded."""
        if self.model is None:
            raise ValueError(f"teacher={self.teacher} has not been loaded: call loaded first")
        return self.model

    def compute(
        self, model: "nn.Module", batch: "Batch", *, now: Moment, rng: "Generator"
    ) -> "Loss":
        scores = decoders.forced_scores(model(batch.source), batch.target)
        wanted = self.wanted(batch, scores)
        rows = losses.distillation_loss(scores, wanted, batch.mask, temperature=self.temperature)
        divergence, gold = rows.sum(), gold_loss(scores, batch)
        parts = {"divergence": divergence, "cross_entropy": gold}
        log = {name: part.item() / max(size(batch), 1) for name, part in parts.items()}
        return types.Loss(divergence + self.cross_entropy * gold, size(batch), log)

    def wanted(self, batch: "Batch", like: "Tensor") -> "Tensor":
        """The teacher's scores, without gradient."""
        with torch.no_grad():
            teacher = self.frozen.to(like.device)
            scores = decoders.forced_scores(teacher(batch.source), batch.target)
        if scores.shape != like.shape:
            raise ValueError(
                f"teacher={self.teacher} has {scores.shape[-1]} outputs, not {like.shape[-1]}"
            )
        return scores
