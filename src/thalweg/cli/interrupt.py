"""Ctrl-C: the work stops at once, or is stopped a second later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_GRACE = 1.0
"""CPU seconds that a fit has to hand over its best iterate; it usually needs a tenth."""
_WAIT = 5.0
"""Seconds after which a process that gets little CPU time is interrupted again as well."""
_AGAIN = 0.2
"""Seconds between two interruptions."""


@contextmanager
def stopping_soon() -> Iterator[None]:
    """After an interruption inside, interrupt again until the block is left.

    A fit answers `KeyboardInterrupt` with its best iterate, and would then assess it; a user who
    pressed Ctrl-C does not want to wait for that.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, _GRACE, _AGAIN)
        signal.setitimer(signal.ITIMER_REAL, _WAIT, _AGAIN)
        raise KeyboardInterrupt

    def again(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    handlers = {signal.SIGINT: interrupt, signal.SIGALRM: again, signal.SIGPROF: again}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
