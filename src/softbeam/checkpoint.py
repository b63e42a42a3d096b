"""Training's whole state in one file, written atomically, without pickle.

Tensors go into safetensors and everything else into its JSON header, so that weights, optimizer,
random states and the position in the data can never be of different moments.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Generator, Tensor, nn

from softbeam.errors import UserError
from softbeam.files import write_atomic

NAME = "checkpoint.safetensors"


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and facts (JSON) of one moment."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(ready, metadata={"facts": json.dumps(facts)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote, or a sentence."""
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a checkpoint that softbeam wrote: {error!r}") from None


def training_tensors(model: nn.Module, optimizer: Any, rng: Generator) -> dict[str, Tensor]:
    """Weights, optimizer state and random states by name."""
    found: dict[str, Tensor] = {f"model.{name}": p for name, p in model.named_parameters()}
    found |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    for number, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
    return found | {"random.torch": torch.get_rng_state(), "random.own": rng.get_state()}


@torch.no_grad()
def restore_training(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: Any, rng: Generator
) -> None:
    """The inverse: the model, the optimizer and the generators as they were."""
    for prefix, named in (
        ("model", dict(model.named_parameters())),
        ("buffer", dict(model.named_buffers())),
    ):
        for name, tensor in named.items():
            saved = tensors.get(f"{prefix}.{name}")
            if saved is None or saved.shape != tensor.shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise UserError(f"the checkpoint's {name} is {found}, not {tuple(tensor.shape)}")
            tensor.copy_(saved)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    torch.set_rng_state(tensors["random.torch"])
    rng.set_state(tensors["random.own"])
