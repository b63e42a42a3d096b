"""Files written whole or not at all, files that grow by whole lines, and JSON or a sentence."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from softbeam._lazy import lazy
from softbeam.errors import UserError

if TYPE_CHECKING:
    import safetensors.torch as tensor_files
    from torch import Tensor
else:
    tensor_files = lazy("safetensors.torch")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to whose file takes the target's place at the end, synced, or vanishes.

    Readers see the old file, or nothing, until the new one is whole. The temporary file lies in
    the same folder, so the replacement never crosses a file system.
    """
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
    """Write the file whole or not at all."""
    with replacing(target) as part:
        part.write_bytes(data)


def require_writable(folder: Path) -> None:
    """A UserError, before anything long begins, if nothing can be written to the folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder} cannot be written: {there} is no folder that can be written to")


def write_text(target: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    write_atomic(target, text.encode("utf-8"))


def remove(*paths: Path) -> None:
    """Remove files, if they are there."""
    for path in paths:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(f"{path} cannot be removed: {error.strerror or error}") from error


def remove_parts(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of a file, or of any, left; nobody may be writing it now."""
    remove(*folder.glob(f".{name}.????????.part"))


def cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {error.strerror or error}")


class Growing:
    """A file that grows by whole lines: one that does not fit on the disk is cut off again.

    A kill may still leave a part of a line at the end, for which there are two cures: who goes on
    writing gives the length that is known to be good, and who reads takes `whole_lines`.
    """

    def __init__(self, path: Path, length: int):
        """Open a file that exists, and cut it to a length."""
        self.path = path
        try:
            size = path.stat().st_size if path.is_file() else -1
            if size < length:
                found = f"it has {size}" if size >= 0 else "it is not there"
                raise UserError(f"{path}: the checkpoint says {length} bytes, but {found}")
            self.file = path.open("r+b", buffering=0)  # nothing is left over for a second try
            self.file.truncate(length)
            self.file.seek(length)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, lines: bytes) -> None:
        """All of the lines, or none and a sentence."""
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
        """The length of the file, all of it on the disk."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return self.file.tell()

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> "Growing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; one without an end, which is being written or was cut, is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


Types = Mapping[str, type | tuple[type, ...]]
ANY: Types = MappingProxyType({})


def read_object(
    path: Path, what: str, types: Types = ANY, *, needed: bool = False
) -> dict[str, Any]:
    """The JSON object in a file, or a sentence that it is not `what`.

    Those of its fields that have a type here are of that type; if `needed`, it has all of them.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return json_object(content, f"{path} is not {what}", types, needed=needed)


def read_rows(path: Path, what: str, types: Types = ANY) -> Iterator[dict[str, Any]]:
    """The JSON objects in a file's whole lines, or a sentence that one of them is not `what`."""
    try:
        for number, line in enumerate(whole_lines(path), 1):
            yield json_object(line, f"{path}, line {number}, is not {what}", types)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def json_object(
    content: bytes, wrong: str, types: Types = ANY, *, needed: bool = False
) -> dict[str, Any]:
    """The object that the bytes are; `wrong` begins the sentence if they are not."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{wrong}: {error}") from None
    return check_fields(value, wrong, types, needed=needed)


def check_fields(value: Any, wrong: str, types: Types, *, needed: bool = False) -> dict[str, Any]:
    """The value itself, an object whose fields have these types; or a sentence."""
    if not isinstance(value, dict):
        raise UserError(f"{wrong}: expected a JSON object, found a {type(value).__name__}")
    for name, wanted in types.items():
        if needed and name not in value:
            raise UserError(f"{wrong}: it has no {name}")
        if name in value and not isinstance(value[name], wanted):
            raise UserError(f"{wrong}: its {name} is {str(value[name])[:60]!r}")
    return value


def save_checkpoint(path: Path, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any]) -> None:
    """Tensors and facts (JSON) of one moment."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, tensor_files.save(ready, metadata={"facts": json.dumps(facts)}))


def load_checkpoint(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """What `save_checkpoint` wrote, or a sentence."""
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            if not isinstance(facts, dict):
                raise ValueError("its facts are no JSON object")
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a checkpoint that softbeam wrote: {error!r}") from None
