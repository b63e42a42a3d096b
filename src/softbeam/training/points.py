"""Where a training stands, as its checkpoint holds it beside the tensors."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.errors import UserError


class Best(NamedTuple):
    """A result on dev: the score that selects, when it was reached, and all figures."""

    score: float = -math.inf  # signed so that more is better
    epoch: int = -1
    metric: str = ""
    metrics: dict[str, Any] = {}

    def text(self, loss: float) -> str:
        value = self.metrics[self.metric]
        return f"epoch {self.epoch + 1}: loss {loss:.4f}  dev {self.metric} {value:.2f}"


class Point(NamedTuple):
    """Where a run stands: everything but tensors that the rest of it depends on."""

    stage: int = 0
    epoch: int = 0
    groups: int = 0  # updates of this epoch that are done
    update: int = 0
    slower: float = 1.0
    best: Best = Best()
    loss: tuple[float, int] = (0.0, 0)  # of this epoch: total and size
    log: dict[str, float] = {}  # of the objective, the latest of this epoch
    skipped: int = 0  # updates of all stages that were not finite
    logged: int = 0  # bytes of metrics.jsonl
    seconds: float = 0.0


def point_of(facts: dict[str, Any], path: Path, *, stages: int) -> Point:
    """The point that a checkpoint's facts are, or a sentence."""
    try:
        point = Point(**facts | {"best": Best(**facts["best"]), "loss": tuple(facts["loss"])})
        counts = (point.stage, point.epoch, point.groups, point.update, point.logged, point.skipped)
        right = all(isinstance(count, int) and count >= 0 for count in counts)
        numbers = [point.slower, point.seconds, point.best.score, *point.loss]
        right = right and isinstance(point.log, dict)
        if not right or not all(isinstance(x, int | float) for x in numbers):
            raise ValueError(f"counts {counts}, numbers {numbers}")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no moment of a training: {error!r}") from None
    if point.stage >= stages:
        raise UserError(f"{path} is of stage {point.stage + 1}, but there are {stages}")
    return point
