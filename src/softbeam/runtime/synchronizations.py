"""Count how often the processor waits for a device: each costs an accelerator its lead.

A value that the program reads (`.item()`, `bool(x)`, `.tolist()`, `.cpu()`), an operation whose
result has a size that depends on values (`nonzero`, `unique`, a mask as an index), and a copy to
the device that is not asynchronous all wait until the device has done everything before.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "equal"}
SIZED = {"nonzero", "masked_select", "unique_consecutive", "unique_dim", "_unique2", "bincount"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


def count_synchronizations(run: Callable[[], object], *, device: str = "cpu") -> int:
    """Count how often `run` waits for the device, as if tensors on it were on an accelerator.

    On the CPU, work that would stay there beside an accelerator is counted too, so that the
    number is an upper limit. With the type of an accelerator as `device` it is exact.
    """
    return sum(synchronizations(run, device=device).values())


def synchronizations(run: Callable[[], object], *, device: str = "cpu") -> Counter[str]:
    """Count how often `run` waits for the device, by the name of the operation."""
    counts: Counter[str] = Counter()
    with _Functions(counts, device), _Operations(counts, device):
        run()
    return counts


class _Operations(TorchDispatchMode):
    """Counts operations that wait."""

    def __init__(self, counts: Counter[str], device: str):
        super().__init__()
        self.counts, self.device = counts, device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._can_decompose():  # of inference mode; else autograd has done so
            with self:
                return func.decompose(*args, **kwargs)
        if waits(func, args, kwargs, self.device):
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Counts reads of tensors of the CPU, which are no operations there."""

    READS = (Tensor.tolist, Tensor.numpy, Tensor.cpu)

    def __init__(self, counts: Counter[str], device: str):
        super().__init__()
        self.counts, self.device = counts, device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.device == "cpu" and func in self.READS:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> bool:
    """True if the processor must wait for this operation on a device."""
    name = func.overloadpacket.__name__
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if name in ("_to_copy", "copy_"):
        return across(name, args, kwargs, device)
    if not any(t.device.type == device for t in tensors):
        return False
    if name in INDEXED:
        indices = [index for index in args[1] if index is not None]
        return any(i.dtype == torch.bool or i.device.type != device for i in indices)
    repeats = name == "repeat_interleave" and kwargs.get("output_size") is None
    return name in READS or name in SIZED or (repeats and func._overloadname != "self_int")


def across(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> bool:
    """True if a copy leaves the device, or comes to it and is waited for."""
    if name == "copy_":
        target, source = args[0].device.type, args[1].device.type
        free = (args[2] if len(args) > 2 else kwargs.get("non_blocking")) or False
    else:
        target = torch.device(kwargs.get("device") or args[0].device).type
        source, free = args[0].device.type, kwargs.get("non_blocking") or False
    if device not in (target, source) or target == source:
        return False
    return source == device or not free
