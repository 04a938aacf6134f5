"""Ctrl-C: the work winds up at once, or is stopped a second later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopping_soon"]

_GRACE = 1.0
"""Seconds that a fit has to hand over its best iterate; it usually needs a tenth."""
_AGAIN = 0.2


@contextmanager
def stopping_soon() -> Iterator[None]:
    """After an interruption inside, interrupt again until the block is left.

    A fit answers `KeyboardInterrupt` with its best iterate, and may go on to assess it; nobody who
    pressed Ctrl-C wants to wait for that.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, _GRACE, _AGAIN)
        raise KeyboardInterrupt

    def again(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt), signal.signal(signal.SIGALRM, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGALRM, before[1])
