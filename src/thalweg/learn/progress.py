"""Progress of a fit: the callback, and a line with an estimate of the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from thalweg._types import Progress

_SILENT = 2.0
"""Seconds before the first line; shorter computations print none."""
_OFTEN = 0.5
"""Seconds between lines."""


def as_progress(given: Progress | bool | None) -> Progress | None:
    """The callback `progress(what, done, total)`; `True` stands for lines on stderr."""
    if isinstance(given, bool):
        return Printed() if given else None
    return given


def steps_left(done: int, usual: int) -> int:
    """The expected total of iterations: the usual number, and half as many more once near it.

    >>> steps_left(3, 20), steps_left(19, 20)
    (20, 30)
    """
    total = usual
    while done > 0.9 * total:
        total = total * 3 // 2
    return total


@dataclass
class Printed:
    """Prints how far a computation has got and roughly how long the rest will take.

    >>> import io
    >>> now = iter([0.0, 3.0, 6.0])
    >>> out = io.StringIO()
    >>> show = Printed(out, clock=lambda: next(now))
    >>> show("likelihood", 0, 20), show("likelihood", 5, 20), show("likelihood", 10, 10)
    (None, None, None)
    >>> print(out.getvalue().replace(chr(13), "|").rstrip())
    |likelihood: 5 of about 20, about 9 s left|likelihood: done in 6 s
    """

    out: TextIO | None = None
    clock: Callable[[], float] = time.monotonic
    _begun: dict[str, float] = field(default_factory=dict)
    _last: float = -1e300
    _shown: bool = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self.clock()
        begun = self._begun.setdefault(what, now)
        spent = now - begun
        if done >= total:
            if self._shown:
                self._write(f"{what}: done in {spent:.0f} s", end="\n")
            self._begun.pop(what)
            self._shown = False
        elif spent >= _SILENT and now - self._last >= _OFTEN:
            left = "" if done == 0 else f", about {spent * (total - done) / done:.0f} s left"
            self._write(f"{what}: {done} of about {total}{left}")
            self._last, self._shown = now, True

    def _write(self, line: str, end: str = "") -> None:
        out: Any = sys.stderr if self.out is None else self.out
        out.write(f"\r{line}".ljust(64) + end if self.out is None else f"\r{line}{end}")
        out.flush()
