"""The processes of one command under `torchrun`: who each is, and what they tell one another.

Without torchrun there is one process, whose rank is 0, and nothing is sent. Numbers and JSON alone
are exchanged, nothing that could be executed. Torch is loaded only where there are several.
"""

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from softbeam.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
V = TypeVar("V")
PATIENCE = timedelta(days=7)  # with one that has more to do; one that has ended is noticed at once
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Timed out")


def rank() -> int:
    return int(os.environ.get("RANK", 0)) if world() > 1 else 0


def world() -> int:
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def first() -> bool:
    """True for the one process that writes, prints and decides."""
    return rank() == 0


def share(items: Sequence[T]) -> Sequence[T]:
    """This process's part of what all of them work on; the first one's is the largest."""
    return items[rank() :: world()]


def block(n: int) -> range:
    """This process's part of n things if each takes things that follow one another."""
    start, end = (-(-n * r // world()) for r in (rank(), rank() + 1))
    return range(start, end)


def in_turn(items: Sequence[T], work: Callable[[T], V]) -> Iterator[V]:
    """What comes of each item, in their order and on all processes; JSON can hold it.

    The processes work on as many items at a time as there are processes.
    """
    for start in range(0, len(items), world()):
        mine = share(items[start : start + world()])
        for found in gathered([work(item) for item in mine]):
            yield from found


def own_seed(seed: int) -> int:
    """A seed for each process; the first one's is the seed itself."""
    return seed if first() else (seed * 1_000_003 + rank()) % 2**63


@contextmanager
def joined() -> Iterator[None]:
    """Inside, the processes can talk to one another; if one of them is lost, a sentence."""
    if world() > 1:
        _join()
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not any(words in str(error) for words in LOST):
            raise
        raise UserError(f"rank {rank()} lost the others: one has ended, and says why") from error


def _join() -> None:
    """Gloo on processors, NCCL between GPUs; once, and until the process ends."""
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
    atexit.register(distributed.destroy_process_group)


def wait() -> None:
    """Until all processes are here."""
    summed([0.0])


def summed(numbers: Sequence[float]) -> list[float]:
    """The sum of each number over the processes."""
    if world() == 1:
        return list(numbers)
    import torch

    found: list[float] = _sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
    return found


def largest(number: int) -> int:
    """The largest over the processes."""
    if world() == 1:
        return number
    import torch

    return int(stacked(torch.tensor(number)).max())


def stacked(tensor: "Tensor") -> "Tensor":
    """The tensors of all processes, which have one shape, by rank along a new first axis."""
    if world() == 1:
        return tensor[None]
    import torch
    from torch import distributed

    rows = [torch.empty_like(tensor) for _ in range(world())]
    distributed.all_gather(rows, tensor)
    return torch.stack(rows)


def from_first(value: T) -> T:
    """The first process's value, on all of them; JSON can hold it."""
    return gathered(value, of=[0])[0]


def gathered(value: T, *, of: Iterable[int] | None = None) -> list[T]:
    """The values of all processes, or of some, by rank."""
    if world() == 1:
        return [value]
    return [_told(value, speaker) for speaker in (range(world()) if of is None else of)]


def _told(value: T, speaker: int) -> T:
    """What one process says, on all of them."""
    import torch
    from torch import distributed

    text = json.dumps(value).encode() if rank() == speaker else b""
    length = torch.tensor([len(text)])
    distributed.broadcast(length, speaker)
    cells = torch.zeros(int(length), dtype=torch.uint8)
    if text:
        cells.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    distributed.broadcast(cells, speaker)
    told: T = json.loads(cells.numpy().tobytes())
    return told


def sum_gradients(parameters: Iterable["nn.Parameter"]) -> None:
    """Each gradient becomes the sum over the processes, and the same on all, bit for bit.

    A parameter without a gradient everywhere stays without; one process without sentences, or
    whose sentences did not need the parameter, has added nothing.
    """
    if world() == 1:
        return
    import torch

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
    """The tensor, which becomes the sum over the processes."""
    from torch import distributed

    distributed.all_reduce(tensor)
    return tensor
