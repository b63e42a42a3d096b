"""Records of benchmarks: the figures, the command, the machine, and what else ran on it."""

import json
import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softbeam.runtime.environment import environment
from softbeam.runtime.files import write_text

QUIET = 0.1  # cores: with less other work than this, a machine counts as quiet


class Clocks(NamedTuple):
    """Seconds so far: by the clock, of all processors together, and of this process's share."""

    clock: float
    busy: float | None  # None where the system does not tell
    own: float

    @classmethod
    def now(cls) -> "Clocks":
        """Read them."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in used)
        return cls(time.perf_counter(), busy_seconds(), own)


def busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds that all processors together have worked, and waited for other machines (steal)."""
    if not stat.exists():
        return None
    user, nice, system, _idle, _waiting, irq, softirq, steal, *_ = (
        int(word) for word in stat.read_text(encoding="ascii").split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def other_work(before: Clocks, after: Clocks) -> float | None:
    """Cores that other work kept busy in between; None if it is not known."""
    if before.busy is None or after.busy is None:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / max(after.clock - before.clock, 1e-9))


def recorded(words: Sequence[str], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a benchmark; return its record. `words` are those after `softbeam bench`."""
    facts, load, before = environment(), os.getloadavg()[0], Clocks.now()
    figures = run()
    others = other_work(before, Clocks.now())
    facts.pop("command")
    return {
        "bench": words[0],
        "command": " ".join(["softbeam bench", *words]),
        "load": load,
        "other_work": others,
        "quiet": others is not None and others < QUIET,
        "environment": facts,
        "found": figures,
    }


def verdict(record: dict[str, Any]) -> str:
    """Say whether the machine was quiet."""
    others = record["other_work"]
    if others is None:
        return f"load average {record['load']:.1f}; whether the machine was quiet is not known"
    if record["quiet"]:
        return f"quiet: other work kept {others:.2f} cores busy"
    return f"NOT QUIET: other work kept {others:.2f} cores busy; times are too long, ratios rough"


def write_record(record: dict[str, Any], folder: Path) -> Path:
    """Write a record to a file that is named by its benchmark and its flags.

    Of a path among the flags, the name has the last part.
    """
    words = (Path(word).name for word in record["command"].split()[2:])
    path = folder / ("-".join(word.lstrip("-") for word in words) + ".json")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(record, indent=1) + "\n")
    return path
