"""Import modules when they are first used, so that a command's help loads nothing heavy."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


class lazy:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


def door(package: str, names: Mapping[str, str]) -> tuple[Any, Any, list[str]]:
    """Make the `__getattr__`, `__dir__` and `__all__` of a package that imports names lazily.

    Args:
        package: the package's own `__name__`.
        names: public names by the module, below softbeam, that defines them.
    """
    homes = {name: module for module, text in names.items() for name in text.split()}

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"softbeam.{homes[name]}"), name)

    return getattribute, lambda: sorted(homes), sorted(homes)
