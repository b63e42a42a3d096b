"""A device that is not the CPU, on any machine: errors of devices are found without an accelerator.

Tensors on the device "pretended" compute on the CPU underneath, but follow the rules of CUDA:

- an operation with tensors of two devices fails, except copies, index tensors on the CPU in
  advanced indexing, and single numbers on the CPU (tensors without dimensions) in arithmetic;
- a CPU generator cannot fill or draw from a tensor of the device;
- the numbers are not in the host's memory: `numpy()` fails.

It is PyTorch's own slot for foreign devices (PrivateUse1), so that `tensor.device`,
`device=x.device`, `module.to` and `torch.accelerator` know it. While `pretended_device()` is not
entered, nothing is available there and the rest of the process sees no accelerator.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
aten = torch.ops.aten


class DeviceMismatch(RuntimeError):
    """An operation that CUDA refuses, since its tensors or its generator are of other devices."""


class State:
    """What the current test has chosen."""

    available = False
    float64 = True
    faults: list[str] | None = None  # where to note them instead of raising


class Pretended(torch.Tensor):
    """A tensor that says it is on the device, around the CPU tensor that holds its numbers."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False):
        if inner.dtype == torch.float64 and not State.float64:
            raise TypeError("the device has no float64")
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )

    def __init__(self, inner: torch.Tensor, requires_grad: bool = False):
        assert not isinstance(inner, Pretended)
        self.inner = inner.detach()

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pretended(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Pretended({self.inner!r})"

    def new_tensor(self, data, *, dtype=None, device=None):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    def untyped_storage(self):  # which says what tensors share, as safetensors asks
        return self.inner.untyped_storage()

    def data_ptr(self):
        return self.inner.data_ptr()

    def tolist(self):
        return self.cpu().tolist()

    def __getitem__(self, index):
        return super().__getitem__(indices(index))

    def __setitem__(self, index, value):
        super().__setitem__(indices(index), value)

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.inner = other.inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def computed(func, args, kwargs):
    """Run an operation on the CPU; what it changes in place stays the same tensor."""
    if can_decompose(func):  # of inference mode; else autograd has done so
        return func.decompose(*args, **kwargs)
    with torch.inference_mode(False):  # views of other tensors must not be of inference alone
        if func in COPIES:
            return copied(func, args, kwargs)
        check_devices(func, args, kwargs)
        result = CELLS.get(func, func)(*unwrapped(args), **on_cpu(unwrapped(kwargs)))
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():  # the outer tensor, too, has its shape changed
                func(*args, **kwargs)
        if torch.device(kwargs.get("device") or NAME).type != NAME:
            return result  # as empty_like(x, device="cpu")
        given = {id(t.inner): t for t in leaves((args, kwargs)) if isinstance(t, Pretended)}
        return mapped(
            torch.Tensor, lambda t: given[id(t)] if id(t) in given else Pretended(t), result
        )


@cache
def can_decompose(func) -> bool:
    return func._can_decompose()


def leaves(tree) -> Iterator:
    """What is in nested tuples, lists and dictionaries; PyTorch's own function takes far longer."""
    if isinstance(tree, tuple | list | dict):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    else:
        yield tree


def mapped(kind: type, change: Callable, tree):
    """A tree of the same form, with the leaves of a kind changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(kind, change, part) for part in tree])
    if isinstance(tree, dict):
        return {name: mapped(kind, change, part) for name, part in tree.items()}
    return tree


COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXED |= {aten._index_put_impl_.default, aten._unsafe_index.Tensor}
TAKE_NUMBERS = {  # not pointwise, but CUDA takes single numbers of the CPU here, too
    aten.where.self,
    aten.masked_fill.Tensor,
    aten.masked_fill_.Tensor,
    aten.index_fill.int_Tensor,
    aten.fill.Tensor,
    aten.fill_.Tensor,
    *INDEXED,
}


def copied(func, args, kwargs):
    """Copy from or to the device; only the result of `_to_copy` can change its device."""
    if func is aten.copy_.default:
        target, source = unwrapped(args[:2])
        target.copy_(source)
        return args[0]
    device = torch.device(kwargs.get("device") or args[0].device)
    result = func(*unwrapped(args), **kwargs | {"device": "cpu"})
    return Pretended(result) if device.type == NAME else result


def check_devices(func, args, kwargs) -> None:
    """Raise DeviceMismatch if CUDA would refuse these arguments."""
    flat = leaves((args[:1], args[2:], kwargs) if func in INDEXED else (args, kwargs))
    numbers = torch.Tag.pointwise in func.tags or func in TAKE_NUMBERS
    for value in flat:
        if isinstance(value, torch.Generator) and value.device.type == "cpu":
            refuse(f"{func}: a generator of the CPU, but a tensor of {NAME}")
        if isinstance(value, torch.Tensor) and not isinstance(value, Pretended):
            if value.dim() > 0 or not numbers:
                shape = tuple(value.shape)
                refuse(f"{func}: a tensor of the CPU {shape} among those of {NAME}")


def refuse(why: str) -> None:
    """Raise DeviceMismatch, or note where in the package it happened and go on."""
    if State.faults is None:
        raise DeviceMismatch(why)
    frames = [f for f in traceback.extract_stack() if "/src/softbeam/" in f.filename]
    if frames:
        path = frames[-1].filename.split("/src/softbeam/")[-1]
        State.faults.append(f"{path}:{frames[-1].lineno} {why}")


def indices(index):
    """Replace lists of numbers by tensors; PyTorch would do so where no device is asked."""
    if isinstance(index, tuple):
        return tuple(map(indices, index))
    return torch.tensor(index) if isinstance(index, list) else index


def unwrapped(tree):
    return mapped(Pretended, lambda t: t.inner, tree)


def factory(op, *args, **kwargs):
    """Make a tensor on the device: operations without any tensor of it among their arguments."""
    return computed(op, args, kwargs)


def on_cpu(options):
    """The options of a factory, for the CPU."""
    changed = {"device": torch.device("cpu"), "layout": torch.strided}
    return options | {name: value for name, value in changed.items() if options.get(name)}


def arange(name):
    """Make `arange` on the device; PyTorch's own would resize an empty tensor."""
    operation = getattr(aten.arange, name)
    return lambda *args, **options: Pretended(operation(*args, **on_cpu(options)))


def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """An LSTM cell, which the CPU has no operation of its own for; keeps its gates."""
    biases = (bias for bias in (input_bias, hidden_bias) if bias is not None)
    gates = (input_gates + hidden_gates + sum(biases)).chunk(4, -1)
    i, f, o = (gates[n].sigmoid() for n in (0, 1, 3))
    g = gates[2].tanh()
    c = f * cx + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], -1)


def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """The gradient of `lstm_cell`."""
    i, f, g, o = workspace.chunk(4, -1)
    grad_hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    grad_cy = torch.zeros_like(cx) if grad_cy is None else grad_cy
    tanh = cy.tanh()
    grad_c = grad_cy + grad_hy * o * (1 - tanh**2)
    parts = (grad_c * g * i * (1 - i), grad_c * cx * f * (1 - f), grad_c * i * (1 - g**2))
    grad_gates = torch.cat([*parts, grad_hy * tanh * o * (1 - o)], -1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


CELLS = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
}


class Functions(TorchFunctionMode):
    """Make tensors of numbers on the CPU and copy them, as PyTorch does out of a mode's sight."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and torch.device(device or "cpu").type == NAME:
            return func(*args, **kwargs | {"device": "cpu"}).to(device)
        return func(*args, **kwargs)


class Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return State.available

    def has_primary_context(self, dev_id) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class Module:
    """What `torch.pretended` is."""

    def is_available(self) -> bool:
        return State.available

    def is_initialized(self) -> bool:
        return True

    def _lazy_init(self) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return int(State.available)

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        pass  # what is drawn without a generator comes from the CPU's

    def get_rng_state(self, device=0) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device=0) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_registered: list[object] = []


def register() -> None:
    """Take PyTorch's slot for a foreign device, once in a process."""
    if _registered:
        return
    torch.ones((), requires_grad=True).backward()  # autograd would start a thread for the device
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=Module(), hook=Hook())
    library = torch.library.Library("_", "IMPL")
    library.fallback(factory, "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    ours = torch.library.Library("aten", "IMPL")
    for name in ("default", "start", "start_step"):
        full = "arange" if name == "default" else f"arange.{name}"
        ours.impl(full, arange(name), "PrivateUse1")
    _registered.extend([library, ours])


@contextmanager
def pretended_device(
    *, float64: bool = True, faults: list[str] | None = None
) -> Iterator[torch.device]:
    """Make the device available inside of a block; without `float64` as Apple's devices are.

    With a list `faults`, what the device refuses is noted there, and the work goes on.
    """
    register()
    State.available, State.float64, State.faults = True, float64, faults
    try:
        with Functions(), torch.autograd.set_multithreading_enabled(False):
            yield torch.device(NAME, 0)
    finally:
        State.available, State.float64, State.faults = False, True, None
