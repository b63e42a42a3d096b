"""The datasets by name: where each file comes from, what it must be, and where it is now.

A file is looked for at the path given, then under $SOFTBEAM_DATA, then in the user's cache, and
then fetched from its origin at a pinned commit. What is fetched is brought into the form used
here by a small function, and refused unless its uncompressed content has the pinned SHA-256.
"""

import csv
import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from softbeam.data.corpora import ENTRIES, Entry, File, Hosted, Packaged
from softbeam.data.download import (
    UNREADABLE,
    Progress,
    check,
    content_of,
    sha256,
    stored,
    terminal_progress,
)
from softbeam.errors import UserError
from softbeam.runtime.files import write_atomic


def names() -> list[str]:
    """The names of the datasets, in the order of the documentation."""
    return [known.name for known in ENTRIES]


def entry(name: str) -> Entry:
    """The dataset of that name; a UserError lists the known names."""
    for known in ENTRIES:
        if known.name == name:
            return known
    raise UserError(f"there is no dataset {name!r}; there are {', '.join(names())}")


def cache_dir() -> Path:
    """$SOFTBEAM_CACHE, or softbeam under $XDG_CACHE_HOME, or ~/.cache/softbeam."""
    if own := os.environ.get("SOFTBEAM_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softbeam"


def roots() -> list[Path]:
    """The directories to look in, in order: $SOFTBEAM_DATA if it is set, then the cache."""
    given = os.environ.get("SOFTBEAM_DATA")
    if given and not Path(given).is_dir():
        raise UserError(f"SOFTBEAM_DATA is {given!r}, which is not a directory")
    return ([Path(given)] if given else []) + [cache_dir()]


def locate(name: str, file: str, *, path: Path | None = None, download: bool = True) -> Path:
    """An existing file: under `path` if given, else in $SOFTBEAM_DATA, else cached, else fetched.

    `path` is the file itself, or a directory that holds it with or without `.gz`; what lies
    there is the user's own and is not compared with a checksum.
    """
    chosen = entry(name)
    if path is not None:
        return _supplied(chosen, file, path)
    _refuse_supply(chosen)
    editions = chosen.editions(file)
    if found := _present(editions):
        return found
    if not download:
        places = ", ".join(str(root / editions[-1].place) for root in roots())
        raise UserError(f"{name} file {file!r} is not on this machine (looked for {places})")
    return fetch(name, files=[editions[-1].name])[0]


def _present(editions: Sequence[File]) -> Path | None:
    candidates = (root / edition.place for root in roots() for edition in editions)
    return next((path for path in candidates if path.is_file()), None)


def _supplied(chosen: Entry, file: str, path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"the path {str(path)!r} given for {chosen.name} does not exist")
    if chosen.supply and file not in chosen.supply:
        known = ", ".join(chosen.supply)
        raise UserError(f"{chosen.name} has no file {file!r}; it has {known}")
    wanted = [file] if chosen.supply else [known.name for known in chosen.editions(file)]
    spellings = [s for name in wanted for s in (name, f"{name}.gz", name.removesuffix(".gz"))]
    for spelling in spellings:
        if (path / spelling).is_file():
            return path / spelling
    raise UserError(f"{str(path)!r}, given for {chosen.name}, holds no file {wanted[0]!r}")


def _refuse_supply(chosen: Entry) -> None:
    if chosen.supply:
        raise UserError(
            f"{chosen.name} must be given by path, because of its licence ({chosen.licence}): "
            f"a directory with {', '.join(chosen.supply)}"
        )


def fetch(
    name: str, *, files: Sequence[str] | None = None, progress: Progress | None = None
) -> list[Path]:
    """The files in the cache, fetched unless they are there and right; all of them by default.

    Of files that are editions of one, the default is the last. `progress` is called with what
    is read, the bytes so far and the bytes in all; without it a terminal shows bars.
    """
    chosen = entry(name)
    _refuse_supply(chosen)
    by_default = [known.name for known in chosen.files if known.name not in chosen.same[:-1]]
    wanted = [chosen.editions(file)[-1] for file in (by_default if files is None else files)]
    held: dict[Hosted | Packaged, bytes] = {}  # one download, even if several files come from it
    with terminal_progress() if progress is None else nullcontext(progress) as report:
        return [_fetch_one(file, held, report) for file in wanted]


def _fetch_one(file: File, held: dict[Hosted | Packaged, bytes], progress: Progress) -> Path:
    target = cache_dir() / file.place
    if _is_right(target, file):
        return target
    if file.source not in held:
        held[file.source] = file.source.read(progress)
    content = _derived(file, held[file.source])
    check(content, file.sha256, what=f"{file.place} from {file.source.address()}")
    write_atomic(target, stored(content, target.name))
    return target


def _is_right(target: Path, file: File) -> bool:
    try:
        return sha256(content_of(target)) == file.sha256
    except (OSError, EOFError, zlib.error):  # absent, or no longer a gzip file
        return False


def _derived(file: File, upstream: bytes) -> bytes:
    try:
        return file.derive(upstream)
    except (UserError, zipfile.BadZipFile, tarfile.TarError, csv.Error, *UNREADABLE) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{file.source.address()} cannot be used: {said}") from error


def describe(name: str) -> dict[str, object]:
    """What `data show` prints: title, licence, origins, and each file's size, SHA-256 and place.

    `found` is where `locate` would find the file now without fetching it, or None.
    """
    chosen = entry(name)
    sources = [_origin_of(file.source) for file in chosen.files]
    return {
        "name": chosen.name,
        "title": chosen.title,
        "licence": chosen.licence,
        "note": chosen.note,
        "origin": [where for i, where in enumerate(sources) if where not in sources[:i]],
        "files": [_describe_file(file) for file in chosen.files],
        "supply": list(chosen.supply),
    }


def _origin_of(source: Hosted | Packaged) -> dict[str, str]:
    if isinstance(source, Hosted):
        return {"repository": source.repository, "commit": source.commit}
    package, version = source.requirement.split("==")
    return {"package": package, "version": version}


def _describe_file(file: File) -> dict[str, object]:
    found = _present([file])
    return {
        "name": file.name,
        "size": file.size,
        "sha256": file.sha256,
        "found": None if found is None else str(found),
    }
