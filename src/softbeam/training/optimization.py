"""The optimizers of a stage and their learning rates."""

import math
from typing import Any

import torch
from torch import nn

from softbeam.training.config import Stage


def make_optimizer(learner: nn.Module, stage: Stage) -> torch.optim.Optimizer:
    if stage.optimizer == "adam":
        return torch.optim.Adam(learner.parameters(), lr=stage.lr)
    return torch.optim.AdamW(learner.parameters(), lr=stage.lr, weight_decay=stage.weight_decay)


def set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def lr_shape(stage: Stage, update: int, updates: int) -> float:
    """The learning rate at an update as a share of `stage.lr`."""
    if update < stage.warmup:
        return (update + 1) / (stage.warmup + 1)
    through = (update - stage.warmup) / max(updates - stage.warmup, 1)
    if stage.schedule == "linear":
        return 1.0 - through
    if stage.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * through))
    return 1.0
