"""The pretended device itself: it refuses what CUDA refuses, and computes what the CPU does."""

import pytest
import torch
from torch import nn

from support.pretended_device import NAME, DeviceMismatch, pretended_device

REFUSED = {
    "a sum": lambda x, y: x + y,
    "a product": lambda x, y: x[None] @ y,
    "a concatenation": lambda x, y: torch.cat([x, y]),
    "a choice": lambda x, y: torch.where(x > 0, x, y),
    "a gather": lambda x, y: x.gather(0, y.long()),
    "a selection": lambda x, y: x.index_select(0, y.long()),
    "an embedding": lambda x, y: nn.functional.embedding(y.long(), x[:, None]),
    "a mask": lambda x, y: x.masked_fill(y > 0, 0.0),
    "a number in a product": lambda x, y: torch.cat([x, y[:1].sum().view(())[None]]),
    "values put at an index": lambda x, y: x.index_put((torch.tensor([0, 1, 2]),), y),
    "a device tensor as an index": lambda x, y: y[x.long()],
}
ALLOWED = {
    "a single number": lambda x, y: x + y.sum(),
    "an index of the CPU": lambda x, y: x[y.long()],
    "a list": lambda x, y: x[[0, 2]],
    "an assignment": lambda x, y: x.clone().copy_(y) + x,
    "after a move": lambda x, y: x + y.to(x.device),
    "a number where": lambda x, y: torch.where(x > 0, x, y.sum()),
}


@pytest.mark.parametrize("run", REFUSED.values(), ids=REFUSED)
def test_mixed_operations_are_refused(run):
    with pretended_device() as device, pytest.raises(DeviceMismatch):
        run(torch.arange(3.0).to(device), torch.arange(3.0))


@pytest.mark.parametrize("run", ALLOWED.values(), ids=ALLOWED)
def test_what_cuda_allows_gives_the_same_numbers(run):
    x, y = torch.arange(3.0), torch.tensor([2.0, 0.0, 1.0])
    with pretended_device() as device:
        actual = run(x.to(device), y)
        assert actual.device == device
        torch.testing.assert_close(actual.cpu(), run(x, y))


def test_generators_of_the_cpu_are_refused():
    rng = torch.Generator()
    with pretended_device() as device:
        x = torch.ones(3, device=device)
        with pytest.raises(DeviceMismatch, match="generator"):
            torch.rand(3, generator=rng, device=device)
        with pytest.raises(DeviceMismatch, match="generator"):
            torch.multinomial(x, 1, generator=rng)
        assert torch.rand(3, device=device).device == torch.rand_like(x).device == device
        assert torch.rand(3, generator=rng).to(device).device == device


def test_made_tensors_are_there_and_stay_there():
    with pretended_device() as device:
        x = torch.arange(3, device=device)
        for y in (x + 1, x.new_zeros(2), torch.full((2,), 1, device=x.device), x[x > 0], x[:2]):
            assert y.device == x.device == torch.tensor([1], device=device).device
        assert x.cpu().device.type == "cpu" and x.tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError):
            x.numpy()
        with pytest.raises(TypeError, match="float64"), pretended_device(float64=False):
            x.double()


def test_modules_and_gradients():
    torch.manual_seed(0)
    model, x = nn.LSTM(3, 4, bidirectional=True), torch.randn(5, 2, 3)

    def gradients(device):
        model.zero_grad(set_to_none=True)
        model.to(device)(x.to(device))[0].square().sum().backward()
        assert all(p.grad.device.type == device.type for p in model.parameters())
        return [p.grad.cpu() for p in model.parameters()]

    expected = gradients(torch.device("cpu"))
    with pretended_device() as device:
        torch.testing.assert_close(gradients(device), expected)


def test_other_code_sees_no_accelerator():
    with pretended_device():
        assert torch.accelerator.current_accelerator(check_available=True).type == NAME
    assert not torch.accelerator.is_available()


def test_faults_can_be_listed_instead():
    faults = []
    with pretended_device(faults=faults) as device:
        from softbeam.tensors import length_mask

        mask = length_mask(torch.tensor([1, 2], device=device), 3) & torch.ones(2, 3).bool()
    assert mask.device == device and faults == []  # noted only inside of the package
