"""Counts of what waits for a device, on the CPU and on a pretended one."""

import pytest
import torch

from softbeam.runtime.synchronizations import count_synchronizations, synchronizations
from support.pretended_device import NAME, pretended_device

READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "a mask": lambda x: x[x > 0],
    "put at a mask": lambda x: x.clone().index_put_((x > 0,), x[:1].expand(3)),
    "equal": lambda x: torch.equal(x, x),
}
FREE = {
    "arithmetic": lambda x: (x + 1).sum().where(x > 0, x).masked_fill(x > 2, 0),
    "an index": lambda x: x[x.long() - 1],
    "a copy there": lambda x: torch.ones(3).to(x.device, non_blocking=True) + x,
    "the CPU's own": lambda x: torch.ones(3).nonzero() if x.device.type == NAME else None,
}


@pytest.mark.parametrize("run", READS.values(), ids=READS)
def test_a_read_waits(run):
    x = torch.tensor([1.0, 2.0, 3.0])
    assert count_synchronizations(lambda: run(x)) >= 1
    with pretended_device() as device:
        there = x.to(device)
        assert count_synchronizations(lambda: run(there), device=NAME) >= 1


@pytest.mark.parametrize("run", FREE.values(), ids=FREE)
def test_arithmetic_does_not_wait(run):
    x = torch.tensor([1.0, 2.0, 3.0])
    assert count_synchronizations(lambda: run(x)) == 0
    with pretended_device() as device:
        there = x.to(device)
        assert count_synchronizations(lambda: run(there), device=NAME) == 0


def test_copies_are_counted_unless_they_are_asynchronous():
    with pretended_device() as device:
        x = torch.ones(3)
        there = x.to(device)
        assert synchronizations(lambda: x.to(device), device=NAME) == {"_to_copy": 1}
        assert synchronizations(lambda: there.cpu(), device=NAME) == {"_to_copy": 1}
        assert synchronizations(lambda: there[torch.tensor([0])], device=NAME) == {"index": 1}
        assert count_synchronizations(lambda: there.to(device), device=NAME) == 0
