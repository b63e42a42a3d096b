"""Signals that ask to stop, seen between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list that holds the signal once SIGINT or SIGTERM has asked to stop."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {s: signal.signal(s, lambda s, _: seen.append(s)) for s in STOP_SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
