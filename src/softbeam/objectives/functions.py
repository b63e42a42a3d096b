"""Functions as settings: their names are written and compared, and the functions go with them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reward(Protocol):
    """A function that is called with lists of texts by name, and returns a number for each."""

    def __call__(self, *args: Any, **columns: Any) -> Sequence[float]: ...


class FunctionName(str):
    """The name of a function, as package.module:function, together with the function."""

    function: Reward

    @classmethod
    def of(cls, function: Reward) -> "FunctionName":
        """Name a function, or the class of an object that can be called."""
        named: Any = function if hasattr(function, "__qualname__") else type(function)
        name = cls(f"{named.__module__}:{named.__qualname__}")
        name.function = function
        return name
