"""Functions as settings: their names are written and compared, and the functions go with them."""

from collections.abc import Callable
from typing import Any


class FunctionName(str):
    """The name of a function, as package.module:function, together with the function."""

    function: Callable[..., Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionName":
        """Name a function, or the class of an object that can be called."""
        named = function if hasattr(function, "__qualname__") else type(function)
        name = cls(f"{named.__module__}:{named.__qualname__}")
        name.function = function
        return name
