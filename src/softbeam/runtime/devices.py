"""Choose the device that a model runs on by its name: auto, cpu, cuda, cuda:1 or mps."""

import re
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

AUTO = "auto"
HELP = "auto (an accelerator if there is one), cpu, cuda, cuda:1 or mps"


def check_name(name: str) -> None:
    """Raise UserError if this is no name of a device; whether there is one is not asked."""
    if re.fullmatch(r"[a-z]+(:\d{1,3})?", name) is None:
        raise UserError(f"--device {name[:60]!r}: must be {HELP}")


def device_of(name: str) -> "torch.device":
    """Find the device of this name; auto is the accelerator, or the CPU if there is none.

    Raises UserError that lists the devices of this machine if the device is not among them.
    """
    check_name(name)
    here = devices_here()
    if name == AUTO:
        return torch.device(here[-1].partition(":")[0])
    if name not in here and f"{name}:0" not in here:
        raise UserError(f"--device {name}: is not on this machine; there is {', '.join(here)}")
    return torch.device(name)


def devices_here() -> list[str]:
    """Name the devices of this machine: the CPU, and then those of the accelerator."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{n}" for n in range(torch.accelerator.device_count()))]


def check_dtype(dtype: str, device: "torch.device") -> None:
    """Raise UserError if a device has no numbers of this format."""
    if dtype == "float64" and device.type == "mps":
        raise UserError("--dtype float64: mps has none; use float32, or --device cpu")
