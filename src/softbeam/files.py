"""Files written whole or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from softbeam.errors import UserError


def write_atomic(target: Path, data: bytes) -> None:
    """Write the file whole or not at all: readers see the old one, or nothing, until it is whole.

    The temporary file lies in the same folder, so the replacement never crosses a file system.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # already replaced, or never made
            part.unlink()


def write_text(target: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    write_atomic(target, text.encode("utf-8"))
