"""The optimizers of a stage and their learning rates."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbeam.errors import NotFinite, UserError
from softbeam.training.config import Stage
from softbeam.training.defaults import Settled


def make_optimizer(learner: nn.Module, stage: Stage) -> torch.optim.Optimizer:
    """Make the optimizer of the weights that are not frozen.

    A module with an `own_lr` gets that learning rate where the others get the stage's. Learning
    rates are set before each update.
    """
    own = [module for module in learner.modules() if hasattr(module, "own_lr")]
    inside = {id(weight) for module in own for weight in module.parameters()}
    groups = [(1.0, [p for p in learner.parameters() if id(p) not in inside])]
    groups += [(float(str(m.own_lr)) / float(stage.lr), list(m.parameters())) for m in own]
    trained = [
        {"params": [p for p in weights if p.requires_grad], SHARE: share}
        for share, weights in groups
    ]
    fused = all(p.device.type in FUSED for p in learner.parameters())  # one call for all weights
    if stage.optimizer == "adam":
        return torch.optim.Adam(trained, fused=fused)
    return torch.optim.AdamW(trained, weight_decay=stage.weight_decay, fused=fused)


FUSED = ("cpu", "cuda")
SHARE = "share"  # of a group's learning rate in the stage's


def set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(SHARE, 1.0)


def lr_shape(stage: Settled, update: int, updates: int, *, timed: float = 0.0) -> float:
    """Compute the learning rate at an update as a share of `stage.lr`.

    Args:
        stage: whose learning rate it is.
        update: from 0.
        updates: all of them.
        timed: share of the stage's time that has passed; the rate falls with the time if that ends
            before the updates do.
    """
    rise, fall = stage.warmup + 1, updates - stage.warmup
    passed = max(update, timed * updates)
    if stage.schedule == "linear":
        shape = ramp(update, updates=updates, rise=rise, fall=fall)
        return min(shape, (updates - passed) / max(fall, 1))
    if stage.schedule == "cosine" and update >= stage.warmup:
        through = (passed - stage.warmup) / max(fall, 1)
        return 0.5 * (1.0 + math.cos(math.pi * through))
    return min((update + 1) / rise, 1.0)


def ramp(update: int, *, updates: int, rise: int, fall: int, end: float = 0.0) -> float:
    """Rise linearly to 1, stay there, and fall linearly to `end`.

    Args:
        update: from 0.
        updates: all of them, after which the value is `end`.
        rise: updates until the value is 1.
        fall: updates from 1 to `end`.
        end: value after the last update.
    """
    share = min((update + 1) / rise, (updates - update) / max(fall, 1), 1.0)
    return end + (1.0 - end) * share


SHOWN, LONGEST = 3, 80  # sentences, and characters of each


def check_step(loss: float, norm: float | Tensor) -> None:
    """Raise if an optimizer step would take an infinity, or what is not a number, to the weights.

    Args:
        loss: of the update.
        norm: of its gradient.
    """
    if not math.isfinite(loss):
        raise NotFinite(f"the loss became {loss}")
    if not math.isfinite(norm):
        raise NotFinite(f"the gradient's norm became {float(norm)} (the loss is {loss:.6g})")


def check_weights(model: nn.Module, when: str) -> None:
    """Raise a sentence if a weight is infinite or not a number."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"the weights became infinite or not a number ({name}) {when}; lower the learning "
                "rate (the last checkpoint is kept)"
            )


def quoted(sentences: Sequence[str]) -> str:
    """The first few of a batch's sentences."""
    cut = [s if len(s) <= LONGEST else s[:LONGEST] + "…" for s in sentences[:SHOWN]]
    more = len(sentences) - len(cut)
    return ", ".join(map(repr, cut)) + (f" and {more} more" if more else "")
