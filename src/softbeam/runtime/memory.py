"""How much memory this process may use."""

import os
from pathlib import Path

# Limits of a container, as version 2 and version 1 of Linux control groups give them.
GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int | None:
    """Return the bytes of the machine's memory, or a lower limit that is set for this process.

    None where the system does not tell.
    """
    limits = [int(text) for text in map(content, GROUPS) if text.isdigit()]
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limits, default=None)


def content(path: str) -> str:
    """Return the text of a small file of the system; empty if there is none."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
