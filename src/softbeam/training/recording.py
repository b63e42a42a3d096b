"""Record the figures of a training: metrics.jsonl, and TensorBoard events."""

import json
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

from softbeam.errors import need
from softbeam.runtime import ranks
from softbeam.runtime.devices import device_of
from softbeam.runtime.files import Growing
from softbeam.training.config import RunConfig


class Recorder:
    """A writer of metrics.jsonl, and of TensorBoard events if the run asks for them.

    Only the first process writes the file.
    """

    def __init__(self, path: Path, size: int, accelerator: Accelerator):
        self.file = Growing(path, size) if ranks.first() else None
        self.accelerator = accelerator

    def log(self, kind: str, **row: Any) -> None:
        """Append a row."""
        if self.file is not None:
            self.file.append((json.dumps({"kind": kind} | row) + "\n").encode())
        numbers = {f"{kind}/{k}": v for k, v in row.items() if isinstance(v, float)}
        self.accelerator.log(numbers, step=row["update"])

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
        log_with=tracker(config),
        project_dir=str(out),
    )
    if ranks.world() == 1:  # else each process has one of its own
        made.state.device = PartialState._shared_state["device"] = device
    if config.tensorboard:
        made.init_trackers("tensorboard")
    return made


PRECISIONS = {"float32": "no", "bfloat16": "bf16"}


def tracker(config: RunConfig) -> str | None:
    if not config.tensorboard:
        return None
    need("tensorboard", "track")
    return "tensorboard"
