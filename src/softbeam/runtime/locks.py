"""Locks of the operating system: one process writes an output, and its end in any way frees it."""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import portalocker
else:
    portalocker = lazy("portalocker")

NAME = ".softbeam-lock"
HELD: dict[str, int] = {}  # the thread that holds each output of this process


class Held(UserError):
    """Another process is writing the output."""


def lock_path(output: Path) -> Path:
    """Return the file that is locked: inside a folder, or beside a file."""
    return output / NAME if output.is_dir() else output.with_name(f".{output.name}.lock")


def is_held_here(output: Path) -> bool:
    """Tell whether this thread holds the output."""
    return HELD.get(os.path.realpath(output)) == threading.get_ident()


@contextmanager
def owned(output: Path) -> Iterator[None]:
    """Hold an output, whose folder exists, until the block ends.

    Raises Held, which names the holder, if another process has the output. The operating system
    frees the lock when the holder ends, so a lock file that was left behind blocks nobody.
    """
    name, path = os.path.realpath(output), lock_path(output)
    file = lock(path, output)
    HELD[name] = threading.get_ident()
    try:
        yield
    finally:
        del HELD[name]
        if is_same_file(file, path):  # the folder may have been renamed or replaced meanwhile
            path.unlink(missing_ok=True)
        file.close()


def lock(path: Path, output: Path) -> TextIO:
    """Open and lock a file, and write into it who holds it."""
    while True:
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{output} cannot be written: {path}: {reason}") from None
        try:
            flags = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
            portalocker.lock(file, flags)
        except portalocker.AlreadyLocked:
            file.close()
            raise Held(f"{output} is being written by {holder(path)}") from None
        except portalocker.LockException as error:  # a file system without locks
            print(f"note: {path} cannot be locked: {error.strerror}", file=sys.stderr)
        if is_same_file(file, path):
            write_holder(file)
            return file
        file.close()  # the holder before us removed the file after we had opened it


def is_same_file(file: TextIO, path: Path) -> bool:
    """Tell whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def write_holder(file: TextIO) -> None:
    """Write who holds the lock into its file."""
    name = Path(sys.argv[0]).name
    program = "softbeam" if name == "__main__.py" else name  # python -m softbeam
    facts = {
        "pid": os.getpid(),
        "host": platform.node(),
        "command": " ".join([program, *sys.argv[1:]])[:200],
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with suppress(OSError):  # on a full disk the lock holds all the same
        file.truncate(0)
        file.write(json.dumps(facts) + "\n")
        file.flush()


def holder(path: Path) -> str:
    """Say which process holds a lock, as far as its file tells."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        place = f"process {facts['pid']} on {facts['host']} since {facts['since']}"
        return f"{place} ({' '.join(facts['command'].split())})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "another process"
