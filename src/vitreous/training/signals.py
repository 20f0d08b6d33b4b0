"""Ctrl-C and SIGTERM as a flag, so that a training can save before it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Signals:
    received: int | None = None


@contextlib.contextmanager
def deferred_signals() -> Iterator[Signals]:
    """Turn the first Ctrl-C or SIGTERM into a flag that the loop checks between steps; a second one is immediate."""
    state = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def receive(number: int, _frame: object) -> None:
        state.received = number
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield state
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
