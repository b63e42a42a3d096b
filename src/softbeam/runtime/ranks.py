"""Communicate between the processes of one command that `torchrun` started.

Without torchrun there is one process, of rank 0, and nothing is sent. The processes exchange only
numbers and JSON, nothing that could be executed. Torch is loaded only if there are several.
"""

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, distributed, nn
else:
    torch, distributed = lazy("torch"), lazy("torch.distributed")

T = TypeVar("T")
V = TypeVar("V")
PATIENCE = timedelta(days=7)  # for a slower process; one that has ended is noticed at once
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Timed out")


def rank() -> int:
    """Return the number of this process."""
    return int(os.environ.get("RANK", 0)) if world() > 1 else 0


def world() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def first() -> bool:
    """Tell whether this is the process that writes files and prints."""
    return rank() == 0


def share(items: Sequence[T]) -> Sequence[T]:
    """Return every n-th item, for n processes: this process's part of the work."""
    return items[rank() :: world()]


def block(n: int) -> range:
    """Return this process's part of n items if each process takes consecutive ones."""
    start, end = (-(-n * r // world()) for r in (rank(), rank() + 1))
    return range(start, end)


def in_turn(items: Sequence[T], work: Callable[[T], V]) -> Iterator[V]:
    """Yield the result of each item, in order and on all processes; JSON must hold the results.

    Each process works on one item at a time.
    """
    for start in range(0, len(items), world()):
        mine = share(items[start : start + world()])
        for results in gathered([work(item) for item in mine]):
            yield from results


def own_seed(seed: int) -> int:
    """Return another seed for each process; the first process keeps the given seed."""
    return seed if first() else (seed * 1_000_003 + rank()) % 2**63


@contextmanager
def joined() -> Iterator[None]:
    """Connect the processes inside the block; raises UserError if another process has ended."""
    if world() > 1:
        _join()
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not any(words in str(error) for words in LOST):
            raise
        raise UserError(f"rank {rank()}: another process has ended; see its message") from error


def _join() -> None:
    """Join the process group once, with Gloo for processors and NCCL for GPUs."""
    if distributed.is_initialized():
        return
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
    atexit.register(distributed.destroy_process_group)


def wait() -> None:
    """Wait until all processes have called this function."""
    summed([0.0])


def summed(numbers: Sequence[float]) -> list[float]:
    """Return the sum of each number over the processes."""
    if world() == 1:
        return list(numbers)
    sums: list[float] = _sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
    return sums


def largest(number: int) -> int:
    """Return the largest number of all processes."""
    if world() == 1:
        return number
    return int(stacked(torch.tensor(number)).max())


def stacked(tensor: "Tensor") -> "Tensor":
    """Stack the tensors of all processes, which have one shape, by rank on a new first axis."""
    if world() == 1:
        return tensor[None]
    rows = [torch.empty_like(tensor) for _ in range(world())]
    distributed.all_gather(rows, tensor)
    return torch.stack(rows)


def from_first(value: T) -> T:
    """Return the first process's value, which JSON must hold, on all processes."""
    return gathered(value, of=[0])[0]


def gathered(value: T, *, of: Iterable[int] | None = None) -> list[T]:
    """Return the values of all processes, or of the given ranks, on all processes."""
    if world() == 1:
        return [value]
    return [_broadcast(value, sender) for sender in (range(world()) if of is None else of)]


def _broadcast(value: T, sender: int) -> T:
    """Return the sender's value on all processes."""
    text = json.dumps(value).encode() if rank() == sender else b""
    length = torch.tensor([len(text)])
    distributed.broadcast(length, sender)
    cells = torch.zeros(int(length), dtype=torch.uint8)
    if text:
        cells.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    distributed.broadcast(cells, sender)
    received: T = json.loads(cells.numpy().tobytes())
    return received


def sum_gradients(parameters: Iterable["nn.Parameter"]) -> None:
    """Replace each gradient by its sum over the processes, the same on all, bit for bit.

    A process without a gradient of a parameter adds zero. A parameter that has no gradient on any
    process keeps none.
    """
    if world() == 1:
        return
    every = list(parameters)
    needed = summed([float(p.grad is not None) for p in every])
    used = [p for p, n in zip(every, needed, strict=True) if n]
    if not used:
        return
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
    whole = _sum(torch.cat([grad.flatten() for grad in grads]))
    for p, part in zip(used, whole.split([p.numel() for p in used]), strict=True):
        p.grad = part.view_as(p).to(p.dtype)


def _sum(tensor: "Tensor") -> "Tensor":
    """Replace the tensor by its sum over the processes, and return it."""
    distributed.all_reduce(tensor)
    return tensor
