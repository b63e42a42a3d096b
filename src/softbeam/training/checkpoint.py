"""Save and restore the whole state of a training in one file, written atomically, without pickle.

Tensors go into safetensors and everything else into its JSON header, so that weights, optimizer,
random states and the position in the data can never be of different moments.
"""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from softbeam.errors import UserError
from softbeam.runtime import ranks

NAME = "checkpoint.safetensors"


def training_tensors(model: nn.Module, optimizer: Any, rng: Generator) -> dict[str, Tensor]:
    """Name a training's tensors: weights, optimizer state, a row of random states per process."""
    tensors: dict[str, Tensor] = {f"model.{name}": p for name, p in model.named_parameters()}
    tensors |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
    states = {"random.torch": torch.get_rng_state(), "random.own": rng.get_state()}
    return tensors | {name: ranks.stacked(state) for name, state in states.items()}


@torch.no_grad()
def restore_training(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: Any, rng: Generator
) -> None:
    """Put the model, the optimizer and the generators back as `training_tensors` saved them.

    Generators of processes that the saved training did not have stay as they are.
    """
    own: dict[str, Tensor] = {f"model.{name}": p for name, p in model.named_parameters()}
    own |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    for name in tensors:
        if name.startswith(("model.", "buffer.")) and name not in own:
            raise UserError(f"the checkpoint has {name}, which is no part of the model")
    for name, tensor in own.items():
        tensor.copy_(fitting(tensors, name, tensor.shape))
    state = optimizer_state(tensors, optimizer)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for name, restore in (("random.torch", torch.set_rng_state), ("random.own", rng.set_state)):
        set_random(tensors, name, restore)
    begun, now = len(tensors["random.torch"]), ranks.world()
    if begun != now and ranks.first():
        counts = f"the run was begun by {begun} processes and goes on with {now}"
        print(f"note: {counts}; random numbers, and so weights, will differ", file=sys.stderr)


def optimizer_state(tensors: Mapping[str, Tensor], optimizer: Any) -> dict[int, dict[str, Tensor]]:
    """Check and return what Adam or AdamW keeps of each parameter that has had a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = {name.split(".")[1] for name in tensors if name.startswith("optimizer.")}
    known = {str(number): parameter for number, parameter in enumerate(parameters)}
    if foreign := sorted(kept - set(known)):
        limit = f"there are {len(parameters)} parameters"
        raise UserError(f"the checkpoint has optimizer.{foreign[0]}, but {limit}")
    return {
        int(number): {
            key: fitting(tensors, f"optimizer.{number}.{key}", shape)
            for key, shape in (
                ("step", torch.Size()),
                ("exp_avg", known[number].shape),
                ("exp_avg_sq", known[number].shape),
            )
        }
        for number in sorted(kept, key=int)
    }


def fitting(tensors: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    """Return a checkpoint's tensor; raises UserError if shape or numbers are not as expected."""
    saved = tensors.get(name)
    if saved is None:
        raise UserError(f"the checkpoint has no {name}, of shape {tuple(shape)}")
    if saved.shape != shape:
        raise UserError(
            f"the checkpoint's {name} is of shape {tuple(saved.shape)}, not {tuple(shape)}"
        )
    if not bool(saved.isfinite().all()):
        raise UserError(f"the checkpoint's {name} holds numbers that are not finite")
    return saved


def set_random(
    tensors: Mapping[str, Tensor], name: str, restore: Callable[[Tensor], object]
) -> None:
    """Put this process's random state back; raises UserError if the tensor is not one."""
    if name not in tensors:
        raise UserError(f"the checkpoint has no {name}, a random state")
    if ranks.rank() >= len(tensors[name]):
        return
    try:
        restore(tensors[name][ranks.rank()].clone())  # generators read from offset 0
    except (RuntimeError, TypeError) as error:
        raise UserError(f"the checkpoint's {name} is no random state: {error}") from None


class Best(NamedTuple):
    """A result on dev: the score that selects, the moment it was reached, and all figures."""

    score: float = -math.inf  # signed so that more is better
    epoch: int = -1
    metric: str = ""
    metrics: dict[str, Any] = {}

    def text(self, loss: float) -> str:
        value = self.metrics[self.metric]
        return f"epoch {self.epoch + 1}: loss {loss:.4f}  dev {self.metric} {value:.2f}"


class Point(NamedTuple):
    """The progress of a run: everything but tensors that the rest of the run depends on."""

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
    began: float = 0.0  # seconds of the run when the stage began
    ends: dict[str, Any] = {}  # of the stages before: updates, dev score and why they ended
    run: str = ""  # identity of the run, of which inputs.json has a copy
    weights: str = ""  # digest of the best weights


def facts_of(point: Point) -> dict[str, Any]:
    """Return a point as JSON can hold it, for `point_of` to read."""
    return point._asdict() | {"best": point.best._asdict()}


def point_of(facts: dict[str, Any], path: Path, *, stages: int) -> Point:
    """Read the point of training from a checkpoint's facts; raises UserError if damaged."""
    try:
        point = Point(**facts | {"best": Best(**facts["best"]), "loss": tuple(facts["loss"])})
        counts = (point.stage, point.epoch, point.groups, point.update, point.logged, point.skipped)
        right = all(isinstance(count, int) and count >= 0 for count in counts)
        numbers = [point.slower, point.seconds, point.began, point.best.score, *point.loss]
        right = right and isinstance(point.log, dict) and isinstance(point.ends, dict)
        right = right and isinstance(point.run, str) and isinstance(point.weights, str)
        if not right or not all(isinstance(x, int | float) for x in numbers):
            raise ValueError(f"counts {counts}, numbers {numbers}")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no moment of a training: {error!r}") from None
    if point.stage >= stages:
        raise UserError(f"{path} is of stage {point.stage + 1}, but there are {stages}")
    return point
