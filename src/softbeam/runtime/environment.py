"""Describe the program, its packages and the machine, so that a result can be traced."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("softbeam", "torch", "numpy", "transformers", "accelerate", "tokenizers", "sacrebleu")


def environment() -> dict[str, Any]:
    """Return the versions, machine, commit and command that produce a result."""
    return {
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "softbeam"), *sys.argv[1:]],
        "commit": commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: installed(name) for name in PACKAGES},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def working_folder() -> str:
    """Return the folder that relative paths of the command begin in; empty if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def installed(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the source tree, with `+changes` if the tree has any.

    None outside a checkout.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return (head + ("+changes" if git("status", "--porcelain", "-uno") else "")) or None
    except (OSError, subprocess.SubprocessError):
        return None
