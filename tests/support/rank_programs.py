"""What several processes run together in tests, forked by a `Nursery`."""

import contextlib
from pathlib import Path

import torch

from softbeam.runtime import ranks
from softbeam.training.config import from_yaml
from softbeam.training.many import train
from support.descent import descended


def train_all(words: list[str]) -> int:
    """Train every configuration of a folder, all but `single` in double precision."""
    folder = Path(words[0])
    with (folder / f"said-{ranks.rank()}").open("w") as said, contextlib.redirect_stdout(said):
        descended(from_yaml(folder / "cross-entropy.yaml"), folder / "descended")
        for config in sorted(folder.glob("*.yaml")):
            torch.set_default_dtype(torch.float32 if config.stem == "single" else torch.float64)
            train(from_yaml(config), config.with_suffix(""))
    return 0
