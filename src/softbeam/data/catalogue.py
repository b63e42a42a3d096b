"""Find the files of a dataset on this machine, or fetch them.

A file is looked for at the path given, then under $SOFTBEAM_DATA, then in the user's cache, and
is then downloaded from a pinned commit. The cache holds uncompressed files in the form that
softbeam reads, and each is refused unless it has the pinned SHA-256.
"""

import csv
import os
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from softbeam.data.corpora import ENTRIES, Entry, File, Hosted, Packaged
from softbeam.data.download import UNREADABLE, keep
from softbeam.errors import UserError


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


E = TypeVar("E", bound=Named)


class Catalogue(dict[str, E]):
    """Entries by name; an unknown name raises UserError, which lists the names."""

    def __init__(self, kind: str, entries: Iterable[E]):
        """Make a catalogue of `entries`, each of which error messages call a `kind`."""
        super().__init__({entry.name: entry for entry in entries})
        self.kind = kind

    def __missing__(self, name: str) -> E:
        raise UserError(f"there is no {self.kind} {name!r}; there are {', '.join(self)}")


CORPORA = Catalogue("dataset", ENTRIES)


def cache_dir() -> Path:
    """Return $SOFTBEAM_CACHE, or softbeam under $XDG_CACHE_HOME, or ~/.cache/softbeam."""
    if cache := os.environ.get("SOFTBEAM_CACHE"):
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softbeam"


def roots() -> list[Path]:
    """Return the directories to search, in order: $SOFTBEAM_DATA if it is set, then the cache.

    Raises UserError if $SOFTBEAM_DATA is not a directory.
    """
    given = os.environ.get("SOFTBEAM_DATA")
    if given and not Path(given).is_dir():
        raise UserError(f"SOFTBEAM_DATA is {given!r}, which is not a directory")
    return ([Path(given)] if given else []) + [cache_dir()]


def locate(name: str, file: str, *, path: Path | None = None, download: bool = True) -> Path:
    """Return the path of a dataset's file, and fetch the file if it is not on this machine.

    Args:
        name: the dataset.
        file: the name of one of its files.
        path: the user's own file, or a directory that holds it with or without `.gz`. It replaces
            the search, and its content is not compared with a checksum.
        download: fetch the file if need be.

    Raises UserError if there is no such dataset or file, or if it cannot be had.
    """
    dataset = CORPORA[name]
    if path is not None:
        return _supplied(dataset, file, path)
    _refuse_supply(dataset)
    editions = dataset.editions(file)
    if existing := _existing(editions):
        return existing
    if not download:
        places = ", ".join(str(root / editions[-1].place) for root in roots())
        raise UserError(f"{name} file {file!r} is not on this machine (looked for {places})")
    return fetch(name, files=[editions[-1].name])[0]


def _existing(editions: Sequence[File]) -> Path | None:
    candidates = (
        root / place
        for root in roots()
        for edition in editions
        for place in (edition.place, edition.place.removesuffix(".gz"))
    )
    return next((path for path in candidates if path.is_file()), None)


def _supplied(dataset: Entry, file: str, path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"the path {str(path)!r} given for {dataset.name} does not exist")
    if dataset.supply and file not in dataset.supply:
        files = ", ".join(dataset.supply)
        raise UserError(f"{dataset.name} has no file {file!r}; it has {files}")
    wanted = [file] if dataset.supply else [edition.name for edition in dataset.editions(file)]
    spellings = [s for name in wanted for s in (name, f"{name}.gz", name.removesuffix(".gz"))]
    for spelling in spellings:
        if (path / spelling).is_file():
            return path / spelling
    raise UserError(f"{str(path)!r}, given for {dataset.name}, holds no file {wanted[0]!r}")


def _refuse_supply(dataset: Entry) -> None:
    if dataset.supply:
        raise UserError(
            f"{dataset.name} must be given by path, because of its licence ({dataset.licence}): "
            f"a directory with {', '.join(dataset.supply)}"
        )


def fetch(name: str, *, files: Sequence[str] | None = None) -> list[Path]:
    """Return paths in the cache, where files that are absent or damaged are downloaded.

    By default all files of the dataset are fetched; if some are editions of one file, the last
    of them. Raises UserError if a file cannot be had, or differs from the pinned one.
    """
    dataset = CORPORA[name]
    _refuse_supply(dataset)
    by_default = [file.name for file in dataset.files if file.name not in dataset.same[:-1]]
    wanted = [dataset.editions(file)[-1] for file in (by_default if files is None else files)]
    originals: dict[Hosted | Packaged, bytes] = {}  # each is downloaded once for all its files
    return [_fetch_file(file, originals) for file in wanted]


def _fetch_file(file: File, originals: dict[Hosted | Packaged, bytes]) -> Path:
    def read() -> bytes:
        if file.source not in originals:
            originals[file.source] = file.source.read()
        return convert(file, originals[file.source])

    target = cache_dir() / file.place.removesuffix(".gz")
    keep(target, file.sha256, source=file.source.address(), read=read)
    return target


def convert(file: File, original: bytes) -> bytes:
    """Convert what the origin holds to the file's content.

    Raises UserError, which names the origin, if it cannot be converted.
    """
    try:
        return file.derive(original)
    except (UserError, zipfile.BadZipFile, tarfile.TarError, csv.Error, *UNREADABLE) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file.source.address()} cannot be used: {reason}") from error


def describe(name: str) -> dict[str, object]:
    """Describe a dataset: title, licence, origins, and the size, SHA-256 and place of each file.

    `found` is the path that `locate` would return now without a download, or None.
    """
    dataset = CORPORA[name]
    sources = [_origin_of(file.source) for file in dataset.files]
    return {
        "name": dataset.name,
        "title": dataset.title,
        "licence": dataset.licence,
        "note": dataset.note,
        "origin": [where for i, where in enumerate(sources) if where not in sources[:i]],
        "files": [_describe_file(file) for file in dataset.files],
        "supply": list(dataset.supply),
    }


def _origin_of(source: Hosted | Packaged) -> dict[str, str]:
    if isinstance(source, Hosted):
        return {"repository": source.repository, "commit": source.commit}
    package, version = source.requirement.split("==")
    return {"package": package, "version": version}


def _describe_file(file: File) -> dict[str, object]:
    path = _existing([file])
    return {
        "name": file.name,
        "size": file.size,
        "sha256": file.sha256,
        "found": None if path is None else str(path),
    }
