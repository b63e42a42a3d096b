"""Stop on SIGINT and SIGTERM: after the current step, or at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Give a list that will hold the signal once SIGINT or SIGTERM arrives.

    A loop can thus finish its step before it stops. The same signal a second time raises
    KeyboardInterrupt at once.
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
    """Make SIGTERM raise KeyboardInterrupt inside the block, so that cleaning up takes place."""
    with handled(stop_now):
        yield


@contextmanager
def hurried(seconds: float, finish: Callable[[int], object]) -> Iterator[None]:
    """End the process if the block goes on for `seconds` after SIGINT or SIGTERM.

    Python runs handlers of signals between two of its own instructions, and a single operation on
    large tensors can take longer than a user waits. A thread therefore watches the signals, calls
    `finish` with the signal's number, and ends the process with the exit code of the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        signum = next((n for n in os.read(reader, 1) if n in STOP_SIGNALS), None)
        if signum is not None and not ended.wait(seconds):
            try:
                finish(signum)
            finally:
                os._exit(128 + signum)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(writer)
        thread.join()
        os.close(reader)


def stop_now(signum: int, _: FrameType | None) -> None:
    """Raise KeyboardInterrupt with the number of the signal."""
    raise KeyboardInterrupt(signum)


def signum_of(stop: KeyboardInterrupt) -> int:
    """Return the number of the signal that caused the interrupt."""
    return int(stop.args[0]) if stop.args else signal.SIGINT


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Send SIGINT and SIGTERM to the handler in the block; only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
