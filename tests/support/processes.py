"""Commands in several processes: under torchrun, or forked by a nursery, which takes less time."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from support.forked_commands import Nursery


def torchrun(*words: str, processes: int = 2) -> list[str]:
    """The words of a command that starts so many processes of a module or script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), *words]


def ranks_of(nursery: Nursery) -> list[psutil.Process]:
    """The processes of the command that a nursery runs in several, by rank."""
    (launcher,) = psutil.Process(nursery.process.pid).children()
    return sorted(launcher.children(), key=lambda child: child.pid)


def wait_for(*paths: Path, seconds: float = 120) -> None:
    """Wait until all of these files exist."""
    last = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < last, f"not all of {paths} were written"
        time.sleep(0.005)


def end(launcher: subprocess.Popen) -> None:
    """Kill it and all that it has started."""
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        process.kill()


def module(folder: Path, name: str, code: str) -> str:
    """A script of its own."""
    path = folder / f"{name}.py"
    path.write_text(code)
    return str(path)
