"""Run-time checks of the shapes that signatures promise, for the first calls of each test."""

from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import isclass, isfunction
from threading import local
from typing import Any, get_type_hints

import jaxtyping

CALLS_CHECKED = 10  # of each function in each test; a check costs more than most of the functions

calls: Counter[int] = Counter()  # by the code's number: its hash is computed anew each time
_jaxtyped = jaxtyping.jaxtyped
_sizes = _jaxtyped("context")  # of the axes, which every call binds anew
_checks: dict[tuple, Callable] = {}


class _Running(local):
    """The functions whose calls are being checked in this thread, the innermost last."""

    def __init__(self) -> None:
        self.functions: list[Callable] = []


_running = _Running()


def _first_calls(function: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped`, which leaves all but the first calls of a function unchecked."""
    if function is None:
        return lambda target: _first_calls(target, typechecker=typechecker)
    if isclass(function) and is_dataclass(function):
        function.__init__ = _first_calls(function.__init__, typechecker=typechecker)
    if not isfunction(function):
        return function if isclass(function) else _jaxtyped(function, typechecker=typechecker)
    checked, number = None, id(function.__code__)

    @wraps(function)
    def call(*args, **kwargs):
        nonlocal checked
        if calls[number] >= CALLS_CHECKED:
            return function(*args, **kwargs)
        calls[number] += 1
        if checked is None:
            checked = _check(function, typechecker)
        return checked(*args, **kwargs)

    return call


def _check(function: Callable, typechecker: Callable) -> Callable:
    """A function with its arguments and its result checked.

    `jaxtyped` checks the arguments a second time with the result, and inner functions are made
    anew with every call of the outer one: here, one check is made of each text of the program.
    """
    annotations = function.__annotations__.values()
    if any("{" in str(annotation) for annotation in annotations):  # sizes by name of an argument
        return _jaxtyped(function, typechecker=typechecker)
    key = (function.__code__, *annotations)
    if key not in _checks:

        @wraps(function)
        def innermost(*args, **kwargs):
            return _running.functions[-1](*args, **kwargs)

        innermost.__annotations__ = {
            name: _meaning(annotation, function)
            for name, annotation in function.__annotations__.items()
        }
        _checks[key] = typechecker(innermost)
    check = _checks[key]

    def checked(*args, **kwargs):
        functions = _running.functions
        functions.append(function)
        try:
            with _sizes:
                return check(*args, **kwargs)
        finally:
            functions.pop()

    return checked


def _meaning(annotation: Any, function: Callable) -> Any:
    """An annotation without the names that only a type checker imports; those may be anything."""

    def annotated(value: annotation): ...  # type: ignore[valid-type]

    try:
        return get_type_hints(annotated, function.__globals__, include_extras=True)["value"]
    except NameError:
        return Any


def check_shapes(modules: list[str]) -> None:
    """Check the promised shapes in all functions of these modules; call it before their import."""
    jaxtyping.jaxtyped = _first_calls
    checker = "beartype.beartype(conf=beartype.BeartypeConf(violation_type=TypeError))"
    jaxtyping.install_import_hook(modules, checker)
