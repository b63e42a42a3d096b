"""Atomic writes, append-only logs, and checked reading of JSON and of checkpoints."""

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError, safe_open

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import safetensors.torch as tensor_files
    from torch import Tensor
else:
    tensor_files = lazy("safetensors.torch")


LARGEST = "SOFTBEAM_LARGEST_FILE"  # the variable that sets the limit of the size of input files
LARGEST_CONFIG, LARGEST_OBJECT = 1 << 20, 1 << 30  # bytes, if the variable is not set
LARGEST_TEXT, LARGEST_TENSORS = 8 << 30, 1 << 40
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def largest_file(default: int) -> int:
    """Return the bytes that an input file may have: $SOFTBEAM_LARGEST_FILE, as 20G, or `default`.

    Raises UserError if the variable is set to something else.
    """
    value = os.environ.get(LARGEST, "")
    size = re.fullmatch(r"(\d{1,15})([KMGT]?)", value)
    if value and not size:
        raise UserError(f"{LARGEST} is {value!r}; it must be a number of bytes, as 500M or 20G")
    return int(size[1]) * UNITS[size[2]] if size else default


def check_size(name: str, size: int, limit: int) -> None:
    """Raises UserError if an input is larger than its limit."""
    if size > limit:
        raise UserError(f"{name} has more than {limit:,} bytes; {LARGEST}=20G would set the limit")


def check_input(path: Path, limit: int = LARGEST_OBJECT, *, hint: str = "") -> None:
    """Raises UserError if a path is not a regular file, or the file is too large or missing.

    A device or a pipe might never end, and opening a pipe might wait for ever. The hint says what
    to do instead.
    """
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from None
    if stat.S_ISDIR(about.st_mode):
        raise UserError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path} cannot be read: it is not a regular file{hint}")
    check_size(str(path), about.st_size, largest_file(limit))


def open_input(path: Path, limit: int = LARGEST_TEXT, *, hint: str = "") -> BinaryIO:
    """Open a file to read bytes; raises UserError if `check_input` does or it cannot be opened."""
    check_input(path, limit, hint=hint)
    try:
        return path.open("rb")
    except OSError as error:
        raise cannot_read(path, error) from None


def read_input(path: Path, limit: int = LARGEST_OBJECT) -> bytes:
    """Read a whole file; raises UserError if `check_input` does or it cannot be read."""
    with open_input(path, limit) as file:
        try:
            return file.read()
        except OSError as error:
            raise cannot_read(path, error) from None


def cannot_read(path: Path, error: Exception) -> UserError:
    """Make the UserError that says why a path cannot be read."""
    return UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a temporary path to write to; its file replaces the target when the block ends.

    Readers see the old file, or none, until the new file is complete and synced. The temporary
    file lies in the target's folder, so that replacing it never crosses a file system, and is
    removed after an error. Raises UserError if the target cannot be written.
    """
    if not target.name:  # Path("") is the current folder
        raise UserError(f"{target} cannot be written: it is not the name of a file")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        with suppress(OSError):  # already replaced, or never made
            part.unlink()


def write_atomic(target: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(target) as part:
        part.write_bytes(data)


def require_writable(folder: Path) -> None:
    """Raise UserError if nothing can be written to the folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"{folder} cannot be written: {existing} is not a writable folder")


def write_text(target: Path, text: str) -> None:
    """Write a text file, in UTF-8, completely or not at all."""
    write_atomic(target, text.encode("utf-8"))


def remove(*paths: Path) -> None:
    """Remove the files that exist; raises UserError if one cannot be removed."""
    for path in paths:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(f"{path} cannot be removed: {error.strerror or error}") from error


def remove_parts(folder: Path, name: str = "*") -> None:
    """Remove temporary files that killed processes left of one file or of all files in a folder.

    No process may be writing these files now.
    """
    remove(*folder.glob(f".{name}.????????.part"))


def cannot_write(path: Path, error: OSError) -> UserError:
    """Make the UserError that says why a path cannot be written."""
    return UserError(f"{path} cannot be written: {error.strerror or error}")


class Growing:
    """A file to which complete lines are appended; a line that does not fit on the disk is undone.

    A process that is killed may still leave an incomplete last line. A writer that resumes gives
    the length that its checkpoint recorded, and a reader uses `whole_lines`.
    """

    def __init__(self, path: Path, length: int):
        """Open an existing file and cut it to `length` bytes.

        Raises UserError if the file is shorter or cannot be written.
        """
        self.path = path
        try:
            size = path.stat().st_size if path.is_file() else -1
            if size < length:
                actual = f"it has {size}" if size >= 0 else "it does not exist"
                raise UserError(f"{path}: the checkpoint says {length} bytes, but {actual}")
            self.file = path.open("r+b", buffering=0)  # no buffer that is written after an error
            self.file.truncate(length)
            self.file.seek(length)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, lines: bytes) -> None:
        """Append all of the lines, or append none and raise UserError."""
        before, left = self.file.tell(), memoryview(lines)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(before)
                self.file.seek(before)
            raise cannot_write(self.path, error) from error

    def synced(self) -> int:
        """Sync the file to the disk and return its length."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return self.file.tell()

    def content(self) -> bytes:
        """Return what has been written, also if the file has been deleted or renamed since."""
        end = self.file.tell()
        self.file.seek(0)
        content = self.file.read(end)
        self.file.seek(end)
        return content

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> "Growing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, without a last line that has no line end."""
    with open_input(path) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


Types = Mapping[str, type | tuple[type, ...]]
ANY: Types = MappingProxyType({})


def read_object(
    path: Path, what: str, types: Types = ANY, *, needed: bool = False
) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises UserError, which says that the file is not `what`, if a field that is named in `types`
    has another type, or is missing and `needed`.
    """
    return json_object(read_input(path), f"{path} is not {what}", types, needed=needed)


def read_rows(path: Path, what: str, types: Types = ANY) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file's complete lines.

    Raises UserError, which says that a line is not `what`, if it has no such object.
    """
    try:
        for number, line in enumerate(whole_lines(path), 1):
            yield json_object(line, f"{path}, line {number}, is not {what}", types)
    except OSError as error:
        raise cannot_read(path, error) from None


def json_object(
    content: bytes, wrong: str, types: Types = ANY, *, needed: bool = False
) -> dict[str, Any]:
    """Parse a JSON object; raises UserError, whose message begins with `wrong`, if it is none."""
    try:
        value = json.loads(content.decode("utf-8"))
        if b"\\u" in content:  # half of a character can be written so, and no text can hold it
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{wrong}: {error}") from None
    return check_fields(value, wrong, types, needed=needed)


def check_fields(value: Any, wrong: str, types: Types, *, needed: bool = False) -> dict[str, Any]:
    """Return the value if it is an object whose fields have these types.

    Raises UserError, whose message begins with `wrong`, if it is not.
    """
    if not isinstance(value, dict):
        raise UserError(f"{wrong}: expected a JSON object, found a {type(value).__name__}")
    for name, wanted in types.items():
        if needed and name not in value:
            raise UserError(f"{wrong}: it has no {name}")
        if name in value and not isinstance(value[name], wanted):
            raise UserError(f"{wrong}: its {name} is {str(value[name])[:60]!r}")
    return value


def save_checkpoint(path: Path, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any]) -> None:
    """Write tensors, and facts that JSON can hold, to one file."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, tensor_files.save(ready, metadata={"facts": json.dumps(facts)}))


def load_checkpoint(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read the tensors and facts that `save_checkpoint` wrote; raises UserError if they are bad."""
    check_input(path, LARGEST_TENSORS)
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            if not isinstance(facts, dict):
                raise ValueError("its facts are not a JSON object")
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a checkpoint that softbeam wrote: {error!r}") from None
