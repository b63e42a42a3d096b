"""Run-time checks of the shapes that signatures promise, for the first calls of each test."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from types import CodeType

import jaxtyping

CALLS_CHECKED = 10  # of each function in each test; a check costs more than most of the functions

calls: Counter[CodeType] = Counter()
_jaxtyped = jaxtyping.jaxtyped


def _first_calls(function: Callable | None = None, *, typechecker: Callable) -> Callable:
    """`jaxtyping.jaxtyped`, which leaves all but the first calls of a function unchecked."""
    if not isfunction(function):
        decorate = _jaxtyped(typechecker=typechecker)
        if function is not None:
            return decorate(function)
        return lambda target: (
            _first_calls(target, typechecker=typechecker)
            if isfunction(target)
            else decorate(target)
        )
    checked = None

    @wraps(function)
    def call(*args, **kwargs):
        nonlocal checked
        calls[function.__code__] += 1
        if calls[function.__code__] > CALLS_CHECKED:
            return function(*args, **kwargs)
        if checked is None:
            checked = _jaxtyped(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return call


def check_shapes(modules: list[str]) -> None:
    """Check the promised shapes in all functions of these modules; call it before their import."""
    jaxtyping.jaxtyped = _first_calls
    jaxtyping.install_import_hook(modules, "beartype.beartype")
