"""Disks that are full or cannot be written, for the tests: real ones, of memory."""

import subprocess
from pathlib import Path


class Disk:
    """A folder that is a disk of its own, of so many bytes; needs the right to mount."""

    def __init__(self, folder: Path, size: int):
        self.folder = folder
        folder.mkdir()
        mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))

    def become(self, options: str) -> None:
        """`size=1m`, `ro`, `rw`."""
        mount("-o", f"remount,{options}", str(self.folder))

    def remove(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


def mount(*words: str) -> None:
    """Mount, or an OSError that says why not."""
    try:
        subprocess.run(["mount", *words], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise OSError(error.stderr.strip()) from None
