"""Modules of the user's own whose classes and functions a file may name.

Configurations and cells name softbeam's own classes and functions. Whatever else they name
would be imported and called, so that it needs the user's word: `--allow-module NAME` on the
command line, or `allow_modules` in Python. Nothing in a file can give that word.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from softbeam.errors import UserError

_modules: tuple[str, ...] = ()  # of this process


def allowed_modules() -> tuple[str, ...]:
    """Return the names of the modules that are allowed now."""
    return _modules


def allow(names: Iterable[str]) -> None:
    """Allow modules, and the modules inside them, to the end of the process.

    Raises UserError if a name cannot be that of a module of the user's own.
    """
    global _modules
    _modules = tuple(dict.fromkeys([*_modules, *map(checked, names)]))


@contextmanager
def allowing(names: Iterable[str]) -> Iterator[None]:
    """Allow modules in the block."""
    global _modules
    before = _modules
    allow(names)
    try:
        yield
    finally:
        _modules = before


def checked(name: str) -> str:
    root = name.split(".")[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"--allow-module {name}: must be the name of a module, as package.module")
    if root in ("softbeam", "jsonargparse"):
        raise UserError(f"--allow-module {name}: must be a module of your own, not of {root}")
    return name


def is_allowed(module: str) -> bool:
    """Tell whether a module, or one that it is inside of, is allowed."""
    return any(module == name or module.startswith(f"{name}.") for name in _modules)
