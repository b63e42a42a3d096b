"""Communicate between the processes of one command that `torchrun` started.

Without torchrun there is one process, of rank 0, and nothing is sent. The processes exchange only
numbers and JSON, nothing that could be executed. Torch is loaded only if there are several.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, distributed, nn
else:
    torch, distributed = lazy("torch"), lazy("torch.distributed")

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # for a slower process; one that stopped is noticed by `Watch`
START = timedelta(minutes=5)  # within which all processes must have started
BEAT, PATIENT_BEATS = 5.0, 24  # seconds between beats; missing beats of a process that has stopped
LEFT = 10**9  # added to the beats of a process that ends
AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # "True" if torchrun itself serves the store
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Timed out")


def rank() -> int:
    """Return the number of this process."""
    return _number("RANK", least=0, most=world() - 1) if world() > 1 else 0


def world() -> int:
    """Return the number of processes."""
    return _number("WORLD_SIZE", least=1, most=10**6) if "WORLD_SIZE" in os.environ else 1


def check() -> None:
    """Raises UserError if the variables that torchrun sets are not as it sets them."""
    if world() > 1:
        rank()
        for variable in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(variable):
                raise UserError(f"WORLD_SIZE is {world()}, but {variable} is not set; use torchrun")


def _number(variable: str, *, least: int, most: int) -> int:
    """Return a number that torchrun sets; raises UserError if the variable holds something else."""
    value = os.environ.get(variable)
    if value is None:
        raise UserError(f"WORLD_SIZE is {world()}, but {variable} is not set; torchrun sets both")
    if not value.isdecimal() or not least <= int(value) <= most:
        limits = f"a whole number from {least} to {most}"
        raise UserError(f"{variable} is {value!r}; it must be {limits}, as torchrun sets it")
    return int(value)


def first() -> bool:
    """Tell whether this is the process that writes files and prints."""
    return rank() == 0


def share(items: Sequence[T]) -> Sequence[T]:
    """Return every n-th item, for n processes: this process's part of the work."""
    return items[rank() :: world()]


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
    check()
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    store = _store(host=rank() == 0 and os.environ.get(AGENT) != "True")
    _assemble(store)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo",
        store=distributed.PrefixStore("group", store),
        rank=rank(),
        world_size=world(),
        timeout=PATIENCE,
    )
    atexit.register(distributed.destroy_process_group)
    watch()


@cache
def watch() -> None:
    """Watch the other processes, once; the process group must exist.

    If one of them stops, this process ends with a line that names it.
    """
    watcher = Watch(_store(host=False), rank=rank(), world=world())
    atexit.register(watcher.leave)  # before the group is destroyed
    threading.Thread(target=watcher.run, daemon=True).start()


def _store(*, host: bool) -> "distributed.Store":
    """Connect to the table of numbers that torchrun, or else the first process, serves to all."""
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    store = distributed.TCPStore(
        address, int(port), is_master=host, wait_for_workers=False, timeout=START
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"softbeam/{attempt}", store)


def _assemble(store: "distributed.Store") -> None:
    """Wait until all processes are here; raises UserError that names one that did not start."""
    store.set(f"here-{rank()}", "")
    for other in range(world()):
        try:
            store.wait([f"here-{other}"], START)
        except RuntimeError as error:
            limit = f"{START.total_seconds():.0f} s"
            raise UserError(f"rank {other} of {world()} did not start within {limit}") from error


class Watch:
    """Count the heartbeats of all processes, so that one that has stopped is named in minutes.

    A process that waits for another, however slow, still beats. One that ended is noticed by its
    closed connections at once.

    Args:
        store: where the beats of each process are counted.
        rank: number of this process.
        world: number of processes.
    """

    def __init__(self, store: "distributed.Store", *, rank: int, world: int):
        self.store, self.rank = store, rank
        self.beats = {other: 0 for other in range(world) if other != rank}
        self.silent = dict.fromkeys(self.beats, 0)

    def run(self) -> None:
        """Beat until this process ends, and end it if another has stopped."""
        with suppress(RuntimeError):  # the store is gone: the connections are, too
            while (stopped := self.beat()) is None:
                time.sleep(BEAT)
            seconds = f"{PATIENT_BEATS * BEAT:.0f} s"
            what = (
                f"rank {stopped} has not answered for {seconds} (stopped, or its machine is gone)"
            )
            print(f"softbeam: rank {self.rank} ends: {what}", file=sys.stderr, flush=True)
            os._exit(1)  # the main thread waits for the other process

    def beat(self) -> int | None:
        """Count a beat of this process; return the rank of a process that has stopped, or None.

        Silence is counted in own beats, so that a pause of this process is no silence of others.
        """
        self.store.add(f"beats-{self.rank}", 1)
        for other, before in self.beats.items():
            self.beats[other] = self.store.add(f"beats-{other}", 0)
            quiet = self.beats[other] == before and before < LEFT
            self.silent[other] = self.silent[other] + 1 if quiet else 0
            if self.silent[other] > PATIENT_BEATS:
                return other
        return None

    def leave(self) -> None:
        """Tell the others that this process ends and beats no more."""
        with suppress(RuntimeError):
            self.store.add(f"beats-{self.rank}", LEFT)


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
