"""Record the figures of a training: metrics.jsonl, TensorBoard events, Weights & Biases."""

import json
import os
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, WandBTracker

from softbeam.errors import UserError, need, reason
from softbeam.runtime import ranks
from softbeam.runtime.devices import device_of
from softbeam.runtime.files import Growing
from softbeam.training.config import RunConfig, settings_of


class Recorder:
    """A writer of metrics.jsonl, and of what else the run is tracked by.

    Only the first process writes the file. Trackers count the updates of all stages together.
    """

    def __init__(self, path: Path, size: int, accelerator: Accelerator):
        self.file = Growing(path, size) if ranks.first() else None
        self.accelerator = accelerator
        self.updates: dict[str, int] = {}  # the last update of each stage
        for line in self.content().splitlines():  # of a resumed run
            self.step(json.loads(line))

    def log(self, kind: str, **row: Any) -> None:
        """Append a row."""
        if self.file is not None:
            self.file.append((json.dumps({"kind": kind} | row) + "\n").encode())
        numbers = {f"{kind}/{k}": v for k, v in row.items() if isinstance(v, float)}
        self.accelerator.log(numbers, step=self.step(row))

    def step(self, row: dict[str, Any]) -> int:
        """Note the update of a row; returns it with those of earlier stages."""
        self.updates[row["stage"]] = row["update"]
        return sum(self.updates.values())

    def content(self) -> bytes:
        """The rows so far, also if the file has been deleted or renamed."""
        return self.file.content() if self.file is not None else b""

    def synced(self) -> int:
        """Write everything to the disk; returns the size of the file."""
        return self.file.synced() if self.file is not None else 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        for tracker in self.accelerator.trackers:  # its end_training would part the processes
            tracker.finish()


def accelerator(config: RunConfig, out: Path) -> Accelerator:
    """Make the accelerator with the device, precision and trackers of the run."""
    device = device_of(config.device)
    on_cpu = device.type == "cpu"
    precisions = {"auto": "no" if on_cpu else "bf16"} | PRECISIONS
    if ranks.world() == 1 and PartialState._shared_state.get("device", device) != device:
        AcceleratorState._reset_state(reset_partial_state=True)  # of a training elsewhere before
    made = Accelerator(
        cpu=on_cpu,  # else it would take several processes on processors for one
        mixed_precision=precisions[config.precision],
        log_with=trackers(config, out) or None,
        project_dir=str(out),
    )
    if ranks.world() == 1:  # else each process has one of its own
        made.state.device = PartialState._shared_state["device"] = device
    if config.tensorboard or config.track:
        start(made)
    return made


def start(made: Accelerator) -> None:
    """Start the trackers of a run; raises UserError if Weights & Biases cannot be started."""
    try:
        made.init_trackers("")  # they have their names
    except Exception as error:  # wandb has errors of many kinds, such as of its service
        if type(error).__module__.split(".")[0] != "wandb":
            raise
        hint = "WANDB_MODE=offline keeps everything on this machine"
        raise UserError(f"--track wandb: {reason(error)}; {hint}") from None


PRECISIONS = {"float32": "no", "bfloat16": "bf16"}


def names_of(config: RunConfig) -> list[str]:
    """Name what the run is tracked by; raises MissingExtra if it is not installed."""
    names = ["tensorboard"] if config.tensorboard else []
    names += [config.track] if config.track else []
    for name in names:
        need(name, "track")
    return [*dict.fromkeys(names)]


def trackers(config: RunConfig, out: Path) -> list[GeneralTracker]:
    """Make the trackers of a run, which have not been started."""
    own = {"name": out.name.removeprefix(".").removesuffix(".new"), "dir": str(out)}
    make = {
        "tensorboard": lambda: TensorBoardTracker("tensorboard", str(out)),
        "wandb": lambda: WandBTracker(
            os.environ.get("WANDB_PROJECT", "softbeam"),
            config=settings_of(config),
            reinit="finish_previous",
            **own,
        ),
    }
    return [make[name]() for name in names_of(config)]
