"""One rule for everything that a command writes.

An output has one owner at a time, it is none of the inputs, and what exists is replaced only if the
user asks for it. What is replaced stays until the new output is complete.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from softbeam.errors import Interrupted, UserError
from softbeam.runtime import locks, ranks
from softbeam.runtime.files import cannot_write

Describe = Callable[[Path], str | None]  # what softbeam wrote to a folder; None if it did not


@contextmanager
def new_file(out: Path, *, overwrite: bool, inputs: Iterable[Path] = ()) -> Iterator[None]:
    """Own a file, which the block writes whole.

    Raises UserError if the file is an input, or if it exists and `overwrite` is not set.
    """
    with owned_files([out], overwrite=overwrite, inputs=inputs):
        yield


@contextmanager
def owned_files(
    paths: Sequence[Path],
    *,
    overwrite: bool,
    inputs: Iterable[Path] = (),
    hint: str = "--overwrite replaces it",
) -> Iterator[None]:
    """Own files that belong together; see `new_file`. The `hint` says what to do if one exists."""
    with ExitStack() as stack:
        for path in paths:
            if path.is_dir():
                raise UserError(f"{path} cannot be written: it is not the name of a file")
            stack.enter_context(existing_folder(path.parent, of=path))
            stack.enter_context(locks.owned(path))
        refuse_inputs(paths, inputs)
        for path in paths:
            if os.path.lexists(path) and not overwrite:
                raise UserError(f"{path} exists; {hint}, or give another name")
            if path.exists() and not path.is_file():
                raise UserError(f"{path} is not a regular file, and is not replaced")
        yield


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise UserError if an output is one of the inputs, also under another name."""
    existing = [path for path in outputs if path.exists()]
    for path in inputs if existing else ():
        for out in existing:
            if path.exists() and out.samefile(path):
                raise UserError(f"{out} is an input of this command; give another output")


@contextmanager
def folder(
    out: Path,
    *,
    describe: Describe,
    inputs: Iterable[Path] = (),
    resume: bool = False,
    overwrite: bool = False,
    hint: str = "--resume keeps it and goes on, --overwrite replaces it",
) -> Iterator[Path]:
    """Own a folder, and give the path that the block writes to, the same on all processes.

    If an existing folder is to be replaced, this path is a new folder beside it, which takes its
    place when the block has ended without an error. With `resume` as well, a replacement that was
    stopped goes on. A folder that the caller's caller owns already is given as it is.

    Args:
        out: the folder; an empty one counts as new.
        describe: says what softbeam wrote to a folder, and None if somebody else wrote it.
        inputs: files and folders that the command reads.
        resume: the block goes on with what is in the folder.
        overwrite: replace what softbeam wrote.
        hint: what to do if the folder is not empty.

    Raises UserError if the folder has another owner, is an input, or holds what may not be lost.
    """
    read = list(inputs)
    with ranks.joined(), ExitStack() as stack:
        place = ""
        if ranks.first():
            own = owned_folder(out, describe, read, hint, resume=resume, overwrite=overwrite)
            place = str(stack.enter_context(own))
        yield Path(ranks.from_first(place))


@contextmanager
def owned_folder(
    out: Path,
    describe: Describe,
    inputs: Sequence[Path],
    hint: str,
    *,
    resume: bool,
    overwrite: bool,
) -> Iterator[Path]:
    """Own a folder in the process that writes; see `folder`."""
    if locks.is_held_here(out):
        yield out
        return
    real = Path(os.path.realpath(out))
    new, old = (real.with_name(f".{real.name}.{end}") for end in ("new", "old"))
    if old.is_dir() and not real.exists():
        old.rename(real)  # a replacement was killed between its two renames
    refuse_inputs([out], inputs)
    with existing_folder(out), locks.owned(out):
        empty = is_empty(out)
        if not empty:
            check_content(out, describe(out), "" if resume or overwrite else hint)
        if empty or not overwrite:
            yield out
            return
        refuse_inside(real, inputs)
        if not resume:
            shutil.rmtree(new, ignore_errors=True)
        with replacement(out), existing_folder(new), locks.owned(new):
            yield new
        shutil.rmtree(old, ignore_errors=True)
        real.rename(old)
        new.rename(real)
        shutil.rmtree(old, ignore_errors=True)


def is_empty(path: Path) -> bool:
    """Tell whether a folder holds nothing but the lock."""
    return all(entry.name == locks.NAME for entry in path.iterdir())


def check_content(out: Path, content: str | None, hint: str) -> None:
    """Raise UserError if somebody else wrote what is in a folder, or if there is a hint."""
    if content is None:
        raise UserError(
            f"{out} is not empty, and softbeam did not write what is in it; give another folder"
        )
    if hint:
        raise UserError(f"{out} holds {content}: {hint}, or give another folder")


def refuse_inside(out: Path, inputs: Iterable[Path]) -> None:
    """Raise UserError if an input lies in the folder that is to be replaced."""
    for path in inputs:
        if out in Path(os.path.realpath(path)).parents:
            raise UserError(f"{out} holds {path}, an input of this command; give another folder")


@contextmanager
def replacement(out: Path) -> Iterator[None]:
    """Say how a stopped replacement goes on."""
    try:
        yield
    except Interrupted as stop:
        hint = f"stopped; --overwrite --resume goes on, and {out} is as it was"
        raise Interrupted(stop.signum, hint) from None


@contextmanager
def existing_folder(path: Path, *, of: Path | None = None) -> Iterator[None]:
    """Make a folder, of a file, if need be; if it is empty after the block, it goes again."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"{of or path} cannot be written: {path} is not a folder") from None
    except OSError as error:
        raise cannot_write(of or path, error) from error
    try:
        yield
    finally:
        for empty in missing:
            with suppress(OSError):  # not empty
                empty.rmdir()


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another that has taken its path; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def free_name(path: Path, end: str) -> Path:
    """Return a path beside another that nothing has yet: NAME.end, or NAME.end-2, ..."""
    names = (f"{path.name}.{end}{f'-{n}' if n > 1 else ''}" for n in range(1, 10_000))
    return next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))
