"""Commands in several processes: under torchrun, or forked, which takes less time."""

import subprocess
import sys
from pathlib import Path

import psutil


def torchrun(*words: str, processes: int = 2) -> list[str]:
    """The words of a command that starts so many processes of a module or script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), *words]


def forked(*words: str, processes: int = 2) -> list[str]:
    """The words that start a softbeam command in so many processes with one import for all."""
    return [
        sys.executable,
        str(Path(__file__).with_name("forked_ranks.py")),
        str(processes),
        *words,
    ]


def run_together(command: list[str], timeout: float = 240) -> str:
    """Run it to its end; returns what it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as launcher:
        try:
            out, err = launcher.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            end(launcher)
            raise
    assert launcher.returncode == 0, err
    return out


def end(launcher: subprocess.Popen) -> None:
    """Kill it and all that it has started."""
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        process.kill()


def workers(launcher: subprocess.Popen) -> dict[int, psutil.Process]:
    """The processes that a launcher has started, by rank."""
    children = psutil.Process(launcher.pid).children(recursive=True)
    named = {int(c.environ()["RANK"]): c for c in children if "RANK" in c.environ()}
    return named or dict(enumerate(sorted(children, key=lambda child: child.pid)))  # forked


def module(folder: Path, name: str, code: str) -> str:
    """A script of its own."""
    path = folder / f"{name}.py"
    path.write_text(code)
    return str(path)
