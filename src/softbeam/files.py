"""Files written whole or not at all, and JSON that is what it should be or a sentence."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

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


def require_writable(folder: Path) -> None:
    """A UserError, before anything long begins, if nothing can be written to the folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder} cannot be written: {there} is no folder that can be written to")


def write_text(target: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    write_atomic(target, text.encode("utf-8"))


Types = Mapping[str, type | tuple[type, ...]]
ANY: Types = MappingProxyType({})


def read_object(path: Path, what: str, types: Types = ANY) -> dict[str, Any]:
    """The JSON object in a file, or a sentence that it is not `what`.

    Those of its fields that have a type here are of that type.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return json_object(content, f"{path} is not {what}", types)


def read_rows(path: Path, what: str, types: Types = ANY) -> Iterator[dict[str, Any]]:
    """The JSON objects in the lines of a file, or a sentence that one of them is not `what`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield json_object(line, f"{path}, line {number}, is not {what}", types)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def json_object(content: bytes, wrong: str, types: Types = ANY) -> dict[str, Any]:
    """The object that the bytes are; `wrong` begins the sentence if they are not."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{wrong}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{wrong}: expected a JSON object, found a {type(value).__name__}")
    for name, wanted in types.items():
        if name in value and not isinstance(value[name], wanted):
            raise UserError(f"{wrong}: its {name} is {str(value[name])[:60]!r}")
    return value
