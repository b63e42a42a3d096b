"""One update of a model's weights: the objective's gradient, and a step of the optimizer."""

import math
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import nn

from softbeam.errors import NotFinite
from softbeam.objectives.base import Objective
from softbeam.runtime import ranks
from softbeam.schedules import Moment
from softbeam.training.optimization import check_step
from softbeam.types import Batch, Loss


class Learner(nn.Module):
    """A model and its objective as one module."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, now: Moment, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, now=now, rng=rng)


class Step(NamedTuple):
    """What the updates of a stage share."""

    accelerator: Accelerator
    learner: nn.Module
    optimizer: Any
    rng: torch.Generator


def run_update(
    step: Step, group: list[Batch], now: Moment, *, clip: float
) -> tuple[float, int, dict[str, float]]:
    """Take an optimizer step on a group of batches; returns total loss, size and a log.

    Gradients of the totals add up over batches and processes and are divided once by the
    global size, so that both give the gradient of one large batch. The log is of the last
    batch, of the first process's share. Raises NotFinite after all processes have had their
    share, since they wait for each other.
    """
    accelerator, learner, optimizer, rng = step
    learner.train()
    total, size, error = 0.0, 0.0, None
    log: dict[str, float] = {}
    for batch in group:
        batch = batch.to(accelerator.device)
        try:
            with accelerator.autocast():
                loss = learner(batch, now, rng)
        except NotFinite as refusal:
            total, error = math.nan, refusal
            continue
        accelerator.backward(loss.total)
        total, size = total + loss.total.item(), size + loss.size
        log = dict(loss.log) or log
    total, size = ranks.summed([total, size])
    ranks.sum_gradients(learner.parameters())
    gradients = [p.grad for p in learner.parameters() if p.grad is not None]
    if gradients:  # none if no target token is known
        torch._foreach_mul_(gradients, 1.0 / max(size, 1))
    norm = accelerator.clip_grad_norm_(learner.parameters(), clip)
    try:
        if error is not None:
            raise error
        check_step(total, norm)
        optimizer.step()
    finally:
        optimizer.zero_grad()
    return total, int(size), log


def try_update(
    accelerator: Accelerator, learner: nn.Module, batch: Batch, rng: torch.Generator
) -> None:
    """Compute a gradient and drop it: the work of an update, without a change of any state."""
    learner.train()
    with torch.random.fork_rng(), suppress(NotFinite):  # training says what is not finite
        with accelerator.autocast():
            loss = learner(batch, Moment(), rng)
        accelerator.backward(loss.total)
    learner.zero_grad()
