"""Signals that ask to stop: seen between two steps, or raised where there is nothing to finish."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list that holds the signal once SIGINT or SIGTERM has asked to stop.

    The same signal a second time does not wait for the step's end: it raises.
    """
    seen: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        if signum in seen:
            stop_now(signum, frame)
        seen.append(signum)

    with handled(note):
        yield seen


@contextmanager
def ending() -> Iterator[None]:
    """Inside, SIGTERM raises as Ctrl-C does, so that nothing half-made stays behind."""
    with handled(stop_now):
        yield


def stop_now(signum: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signum)


def signum_of(stop: KeyboardInterrupt) -> int:
    """The signal that it stands for."""
    return int(stop.args[0]) if stop.args else signal.SIGINT


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Inside, signals that ask to stop go to the handler; only the main thread can have that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
