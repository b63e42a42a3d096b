"""Ways to break a file, by the words that the data files have for them (see `cases/README.md`).

Texts have the escapes of Python's bytes (\\n, \\xff), and values are JSON. A place inside a JSON
object is written as claims/0/effect.
"""

import argparse
import codecs
import gzip
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

Edit = Callable[[str, bytes], bytes]  # from the words after the edit's name and the old content
PICKLE = b"\x80\x02cos\nmkdir\nX\x03\0\0\0slyq\0\x85R."  # makes the folder `sly` when it is loaded


def apply(change: str, path: Path) -> None:
    """Break a file as a change says: a name of `EDITS`, or what is put in the file's place."""
    name, _, rest = change.strip().partition(" ")
    content = path.read_bytes() if path.is_file() else b""
    path.unlink(missing_ok=True)
    if name == "folder":
        path.mkdir(parents=True)
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "link":
        path.symlink_to(rest)
    elif name != "remove":
        path.write_bytes(EDITS[name](rest, content))


def text(words: str, _: bytes = b"") -> bytes:
    """The text itself; 3*x is xxx, and `then` joins parts."""
    parts = [re.fullmatch(r"(?:(\d+)\*)?(.*)", part) for part in words.split(" then ")]
    return b"".join(int(part[1] or 1) * unescaped(part[2]) for part in parts if part)


def unescaped(words: str) -> bytes:
    return codecs.escape_decode(words.encode())[0]  # type: ignore[attr-defined, no-any-return]


def encoded(words: str, content: bytes) -> bytes:
    """The text after the encoding's name, or the file's own, in that encoding."""
    encoding, _, rest = words.partition(" ")
    return (text(rest) if rest else content).decode("utf-8").encode(encoding)


def replaced(words: str, content: bytes) -> bytes:
    """Other text in place of some; the old text must be there."""
    old, new = map(unescaped, words.split(" -> "))
    assert old in content, (old, content[:2000])
    return content.replace(old, new)


def line(words: str, content: bytes) -> bytes:
    """Edit one line, counted from 1."""
    number, name, rest = (*words.split(" ", 2), "")[:3]
    lines = content.splitlines()
    lines[int(number) - 1] = EDITS[name](rest, lines[int(number) - 1])
    return b"".join(each + b"\n" for each in lines)


# JSON


def json_edit(edit: Callable[[Any, str], None]) -> Edit:
    """Edit a file that is a JSON object."""

    def edited(words: str, content: bytes) -> bytes:
        value = json.loads(content)
        edit(value, words)
        return json.dumps(value).encode()

    return edited


def find(value: Any, place: str) -> tuple[Any, Any]:
    """What holds a place, and the key or number by which it does."""
    *outer, last = place.split("/")
    for key in outer:
        value = value[int(key) if isinstance(value, list) else key]
        value = vars(value) if isinstance(value, argparse.Namespace) else value
    return value, int(last) if isinstance(value, list) else last


def put(value: Any, words: str) -> None:
    place, new = words.split(" = ", 1)
    holder, key = find(value, place)
    holder[key] = json.loads(new)


def drop(value: Any, words: str) -> None:
    holder, key = find(value, words)
    del holder[key]


def append(value: Any, words: str) -> None:
    place, new = words.split(" = ", 1)
    holder, key = find(value, place)
    holder[key].append(json.loads(new))


def rename(value: Any, words: str) -> None:
    place, new = words.split(" = ", 1)
    holder, key = find(value, place)
    holder[new] = holder.pop(key)


# Tensors


def tensor(tensors: dict[str, Any], words: str) -> None:
    """Edit one tensor; `model.*` is the first, by name, that begins so and is not a number."""
    name, edit, *numbers = words.split()
    if name.endswith("*"):
        name = next(n for n in sorted(tensors) if n.startswith(name[:-1]) and tensors[n].dim())
    old = tensors.get(name, torch.zeros(0))
    edits: dict[str, Callable[[], torch.Tensor]] = {
        "ones": lambda: torch.ones([*map(int, numbers)]),
        "bytes": lambda: torch.ones([*map(int, numbers)]).byte(),
        "fill": lambda: old.fill_(float(numbers[0])),
        "short": lambda: old[:-1].clone(),
        "narrow": lambda: old[:, 1:].clone(),
        "flat": old.flatten,
        "mirrored": lambda: old.flip(1),
        "whole": old.long,
        "infinite": lambda: old / 0,
    }
    if edit == "drop":
        del tensors[name]
    else:
        tensors[name] = edits[edit]()


def tensor_edit(words: str, content: bytes) -> bytes:
    tensors = load(content)
    tensor(tensors, words)
    return save(tensors, metadata=metadata(content))


def facts(words: str, content: bytes) -> bytes:
    """Edit the facts in a checkpoint as a JSON object; `clear` leaves none."""
    value = json.loads(metadata(content)["facts"])
    name, _, rest = words.partition(" ")
    if name == "clear":
        value.clear()
    else:
        OBJECT_EDITS[name](value, rest)
    return save(load(content), metadata={"facts": json.dumps(value)})


def metadata(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    return found


def fairseq(words: str, content: bytes) -> bytes:
    """Edit a fairseq checkpoint: its model (`tensor`) or anything else in it."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        value = torch.load(io.BytesIO(content), weights_only=True)
    name, _, rest = words.partition(" ")
    if name == "tensor":
        tensor(value["model"], rest)
    else:
        OBJECT_EDITS[name](value, rest)
    torch.save(value, changed := io.BytesIO())
    return changed.getvalue()


OBJECT_EDITS = {"set": put, "drop": drop, "append": append, "rename": rename}
EDITS: dict[str, Edit] = {
    "empty": lambda words, content: b"",
    "bytes": text,
    "encoded": encoded,
    "packed": lambda words, content: gzip.compress(text(words)),
    "every-byte": lambda words, content: bytes(range(256)),
    "pickle": lambda words, content: PICKLE,
    "cut": lambda words, content: content[: int(len(content) * float(words or 0.5))],
    "add": lambda words, content: content + text(words),
    "replace": replaced,
    "line": line,
    "first-line": lambda words, content: content.splitlines()[0] + b"\n",
    **{name: json_edit(edit) for name, edit in OBJECT_EDITS.items()},
    "tensor": tensor_edit,
    "no-tensors": lambda words, content: save({}, metadata=metadata(content)),
    "no-facts": lambda words, content: save(load(content)),
    "facts": facts,
    "fairseq": fairseq,
}
