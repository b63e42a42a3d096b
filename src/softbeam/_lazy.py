"""Import modules when they are first used, so that a command's help loads nothing heavy."""

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
