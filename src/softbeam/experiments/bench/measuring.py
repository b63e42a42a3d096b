"""Time a call, and measure the memory of a call in a process of its own."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def timed(function: Callable[[], object]) -> float:
    """Seconds that a call takes, by the clock."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def count_operators(function: Callable[[], object]) -> int:
    """Count the operators of torch that a call runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        function()
    return counter.calls


def peak_kb() -> int:
    """This process's largest resident size; Linux's ru_maxrss would include its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
        return int(lines["VmHWM"].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_child(function: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
    """Call a function at the top of a module in a new process; returns what it returned.

    The peak of memory since the imports, in MB, is added to the result as "peak_mb". Arguments are
    passed as Python literals.
    """
    call = f"in_this_process({function.__name__}, *{args}, **{options})"
    imports = f"from {function.__module__} import {function.__name__}"
    here = f"from {__name__} import in_this_process"
    child = subprocess.run(
        [sys.executable, "-c", "; ".join([imports, here, call])],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def in_this_process(function: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> None:
    """Print what a function returns, with the peak of memory, as a line of JSON."""
    import torch

    torch.set_num_threads(1)
    before = peak_kb()
    result = function(*args, **options)
    print(json.dumps(result | {"peak_mb": (peak_kb() - before) / 1024}))
