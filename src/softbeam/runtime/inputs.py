"""Digests of the files that a result depends on; a result does not go on with changed ones."""

import gzip
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from softbeam.errors import UserError
from softbeam.runtime.files import Types, check_fields, read_object, write_text

NAME = "inputs.json"
RECORD: Types = {"identity": str, "inputs": dict, "accepted": list}
Files = Mapping[str, Path]  # by what they are for
Digests = dict[str, dict[str, str]]  # path and SHA-256, by what they are for


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content; that of a .gz file is of what is packed in it."""
    facts = os.stat(path)
    return _digest(str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@lru_cache(maxsize=1000)
def _digest(path: str, *_: int) -> str:
    """Compute a digest, once for each version of a file."""
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(files: Files, folder: Path | None = None) -> Digests:
    """Return path, relative for files in the folder, and digest of the files that exist."""

    def shown(path: Path) -> Path:
        inside = folder is not None and path.is_relative_to(folder)
        return path.relative_to(folder) if inside and folder else path

    return {
        name: {"path": str(shown(path)), "sha256": digest(path)}
        for name, path in files.items()
        if path.is_file()
    }


def record(folder: Path, files: Files) -> None:
    """Write the digests of files to the folder's record, which has an identity of its own."""
    before = read(folder) or {"identity": secrets.token_hex(16), "inputs": {}, "accepted": []}
    write(folder, before | {"inputs": before["inputs"] | digests(files, folder)})


def read(folder: Path) -> dict[str, Any] | None:
    """Read a folder's record; None for a folder of an older version, which has none.

    Raises UserError if the record is not complete.
    """
    path = folder / NAME
    if not path.exists():
        return None
    content = read_object(path, what := "a record of inputs", RECORD, needed=True)
    for name, facts in content["inputs"].items():
        wrong = f"{path} is not {what}: {name[:60]!r}"
        check_fields(facts, wrong, {"path": str, "sha256": str}, needed=True)
    return content


def write(folder: Path, content: Mapping[str, Any]) -> None:
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")


def check(folder: Path, files: Files, *, accept: bool) -> None:
    """Compare files with the folder's record.

    Raises UserError, which names the files, if some have changed. With `accept`, the record is
    brought up to date instead, and says what was accepted.
    """
    before = read(folder)
    if before is None:
        return
    now = digests(files, folder)
    changed = changes(before["inputs"], now)
    if changed and not accept:
        raise refusal(folder, changed)
    if changed:
        accepted = [*before["accepted"], acceptance(changed)]
        write(folder, before | {"inputs": before["inputs"] | now, "accepted": accepted})


def remember(folder: Path, files: Files, *, accept: bool) -> None:
    """Compare files with a folder's record, and add those that it does not have yet."""
    check(folder, files, accept=accept)
    record(folder, files)


def changes(before: Mapping[str, Any], now: Digests) -> Digests:
    """Return path, old and new digest of what is in both and differs."""
    return {
        name: {"path": facts["path"], "from": before[name]["sha256"], "to": facts["sha256"]}
        for name, facts in now.items()
        if name in before and before[name]["sha256"] != facts["sha256"]
    }


def refusal(what: Path, changed: Digests) -> UserError:
    """Make the UserError that names what has changed."""
    names = ", ".join(
        name if facts["path"] == name else f"{name} ({facts['path']})"
        for name, facts in changed.items()
    )
    return UserError(
        f"{what} was begun with other content of {names}; restore it, "
        "or --accept-changed-inputs goes on with it as it is now"
    )


def acceptance(changed: Digests) -> dict[str, Any]:
    """Make the record of changes that the user accepts now."""
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "changed": changed}
