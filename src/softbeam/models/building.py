"""Build the model that a specification describes, if the machine has memory for it."""

from dataclasses import fields

import torch
from torch import nn

from softbeam.data.encoding import Codecs
from softbeam.errors import UserError
from softbeam.models.specs import Model
from softbeam.runtime.memory import memory

TRAINED = 4  # copies of the weights in training: themselves, gradients, two averages of Adam


def build(spec: Model, codecs: Codecs, *, copies: int = 1) -> nn.Module:
    """Build a model.

    Raises UserError, before anything is allocated, if the memory does not hold its weights.

    Args:
        spec: the model.
        codecs: the vocabularies of both sides.
        copies: how often numbers as many as the weights will be in memory, such as `TRAINED`.
    """
    check_memory(spec, codecs, copies)
    return spec.build_for(codecs)


def check_memory(spec: Model, codecs: Codecs, copies: int) -> None:
    """Raises UserError if the memory does not hold a model's weights."""
    limit = memory()
    sizes = {f.name: getattr(spec, f.name) for f in fields(spec)}
    numbers = {name: n for name, n in sizes.items() if isinstance(n, int) and n > 1}
    if limit is None or not numbers or copies * roughly(numbers, codecs) < limit:
        return
    try:
        with torch.device("meta"):  # shapes without memory
            weights = list(spec.build_for(codecs).parameters())
    except (NotImplementedError, RuntimeError):  # a user's own model, which needs real numbers
        return
    needed = copies * sum(weight.numel() * weight.element_size() for weight in weights)
    if needed > limit:
        largest = max(numbers, key=numbers.__getitem__)
        count = sum(weight.numel() for weight in weights)
        raise UserError(
            f"--model.{largest} {numbers[largest]}: {count:,} parameters need {needed / 1e9:,.1f} "
            f"GB, but there are {limit / 1e9:,.1f} GB of memory"
        )


def roughly(numbers: dict[str, int], codecs: Codecs) -> int:
    """More bytes than any ordinary model of these sizes has: tables of words, and wide layers.

    To build a model without memory costs two seconds, for what torch imports then.
    """
    widest, vocab = max(numbers.values()), max(map(len, codecs))
    return 8 * (8 * vocab * widest + 128 * numbers.get("layers", 1) * widest**2)
