"""Settings that depend on the data, chosen when training begins and written into the run.

Budgets and patience are counted in updates: an epoch of 300 sentences has 20 of them, an epoch of
100,000 has thousands. docs/design/0016-defaults.md has the trials behind the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from softbeam.data.batches import Encoded, in_budget, width
from softbeam.training.config import AUTO, RunConfig, Stage
from softbeam.training.kinds import kind_of


@dataclass(frozen=True, kw_only=True)
class Settled(Stage):
    """A stage whose settings are all numbers."""

    epochs: int
    lr: float
    tokens: int
    patience: int | None
    score_every: int
    warmup: int


class Usual(NamedTuple):
    """How much a stage trains if its settings do not say so.

    Args:
        updates: at most.
        passes: over the data, at least, also if they take more updates.
        patience: updates without a better dev score; `updates` if the time is limited.
        batches: that an epoch is to be cut into, as far as the sizes of batches allow.
        smallest: padded tokens of a batch, at least.
        largest: and at most.
    """

    updates: int
    passes: int
    patience: int
    batches: int
    smallest: int
    largest: int


TAGGING = Usual(updates=1500, passes=3, patience=500, batches=100, smallest=200, largest=1000)
TEXTS = Usual(updates=2400, passes=2, patience=800, batches=200, smallest=500, largest=1500)
SECOND = 3  # a second stage has this share of the updates, and of the learning rate
FEWEST_SCORES = 3  # of dev within the patience
DEV_SHARE = 2.0  # tokens to train on, at least, for each token of dev that is decoded
WARM_SHARE, LONGEST_WARMUP = 0.1, 100  # of the updates of a second stage, and at most as many
MOST_EPOCHS = 10_000  # if the time is limited: more than it allows


def with_chosen(config: RunConfig, train: Sequence[Encoded], dev: Sequence[Encoded]) -> RunConfig:
    """Replace what is auto in the stages by numbers that suit the data; the rest stays.

    Args:
        config: the run.
        train: its training examples.
        dev: its development examples.
    """
    widths = sorted(map(width, train))
    decoded = sum(map(width, dev))
    usual = TEXTS if kind_of(config.data).has_end else TAGGING
    stages: dict[str, Any] = {}
    for name, stage in config.stages:
        second = name == "finetune"
        mine = usual._replace(updates=usual.updates // SECOND) if second else usual
        lr = config.model.usual_lr / (SECOND if second else 1)
        timed = config.minutes is not None
        stages[name] = chosen(stage, mine, lr, widths, decoded, timed, second)
    return replace(config, **stages)


def chosen(
    stage: Stage,
    usual: Usual,
    lr: float,
    widths: Sequence[int],
    decoded: int,
    timed: bool,
    second: bool,
) -> Stage:
    """Choose what is auto in a stage.

    Args:
        stage: what was asked for.
        usual: how much such a stage trains.
        lr: the learning rate.
        widths: padded tokens of each training example, in rising order.
        decoded: tokens of dev.
        timed: the time is limited, and takes the place of the number of updates.
        second: the weights are trained already, so that an optimizer without moments would throw
            them off: its learning rate rises from 0.
    """
    total = sum(widths)
    tokens = min(max(total // usual.batches, usual.smallest), usual.largest)
    tokens = tokens if stage.tokens == AUTO else stage.tokens
    batches = len(in_budget(range(len(widths)), widths, tokens))
    updates = math.ceil(batches / stage.accumulation)  # in an epoch
    score_every = max(1, math.ceil(DEV_SHARE * decoded / total)) if stage.epochs == AUTO else 1
    if stage.score_every != AUTO:
        score_every = stage.score_every
    waited = usual.updates if timed else usual.patience
    patience = max(math.ceil(waited / updates), FEWEST_SCORES * score_every)
    epochs = MOST_EPOCHS if timed else max(math.ceil(usual.updates / updates), usual.passes)
    planned = (
        usual.updates if timed else updates * (epochs if stage.epochs == AUTO else stage.epochs)
    )
    values: dict[str, Any] = {
        "warmup": min(int(WARM_SHARE * planned), LONGEST_WARMUP) if second else 0,
        "epochs": epochs,
        "lr": lr,
        "tokens": tokens,
        "patience": patience if stage.epochs == AUTO else None,
        "score_every": score_every,
    }
    return replace(stage, **{k: v for k, v in values.items() if getattr(stage, k) == AUTO})


def settled(stage: Stage) -> Settled:
    """Return a stage without auto; raises ValueError if something has not been chosen."""
    values = {f.name: getattr(stage, f.name) for f in fields(Stage)}
    if left := [name for name, value in values.items() if value == AUTO]:
        raise ValueError(f"{left[0]}='auto': has not been chosen")
    return Settled(**values)


def with_recorded(config: RunConfig, before: RunConfig) -> RunConfig:
    """Replace what is auto by the values of the same run, recorded when it began."""

    def taken(mine: Stage, theirs: Stage) -> Stage:
        autos = [f.name for f in fields(mine) if getattr(mine, f.name) == AUTO]
        return replace(mine, **{name: getattr(theirs, name) for name in autos})

    return replace(
        config,
        pretrain=taken(config.pretrain, before.pretrain),
        finetune=taken(config.finetune, before.finetune),
        threads=before.threads if config.threads == AUTO else config.threads,
    )


def choices(asked: RunConfig, config: RunConfig) -> dict[str, Any]:
    """Return the settings that were chosen, by flag: those of a run that were auto when asked."""
    chosen: dict[str, Any] = {}
    for name, stage in config.stages:
        before = getattr(asked, name)
        values = {f.name: getattr(stage, f.name) for f in fields(stage)}
        if values["warmup"] == 0:  # nothing to tell
            del values["warmup"]
        chosen |= {f"{name}.{k}": v for k, v in values.items() if getattr(before, k) == AUTO}
    return chosen | ({"threads": config.threads} if asked.threads == AUTO else {})


def as_text(chosen: Mapping[str, Any], examples: int) -> str:
    """Say on one line what was chosen for a number of training examples."""
    values = ", ".join(f"{name} {value:.4g}" for name, value in chosen.items() if value is not None)
    return f"chosen for {examples:,} examples: {values}"
