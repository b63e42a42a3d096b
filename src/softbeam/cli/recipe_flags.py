"""Flags that training accepts beside those of its parser, to correct typing errors."""

from dataclasses import fields
from typing import Any

from softbeam.objectives import OBJECTIVES
from softbeam.schedules import SCHEDULES
from softbeam.training.searches import SEARCHES

COMMAND_FLAGS = ("--out", "--try", "--over", "--seeds", "--split", "--jobs", "--cluster")


def nested_flags(recipe: Any) -> set[str]:
    """Return the flags of the fields of all classes that settings of a recipe can name."""
    fixed = {"--data": recipe.data, "--model": recipe.model}
    flags = {f"{prefix}.{f.name}" for prefix, value in fixed.items() for f in fields(value)}
    flags |= {f"--select.{f.name}" for kind in SEARCHES.values() for f in fields(kind)}
    for stage in ("pretrain", "finetune"):
        for f in (f for kind in OBJECTIVES for f in fields(kind)):
            flags.add(f"--{stage}.objective.{f.name}")
        for f in (f for kind in SCHEDULES for f in fields(kind)):
            flags |= {f"--{stage}.objective.{name}.{f.name}" for name in ("alpha", "alpha_final")}
    return flags
