"""A bound on the work of a fit, which each of its loops can check, and reports of its progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO

from thalweg._types import Progress
from thalweg.status import Status

_USUAL = 20
"""Iterations of a likelihood fit expected at first; ordinary fits take 5 to 80."""
_SILENT = 2.0
"""Seconds before the first line; shorter computations print none."""
_OFTEN = 0.5
"""Seconds between lines."""


@dataclass
class _Budget:
    deadline: float = math.inf
    iterations: float = math.inf


@dataclass
class _Report:
    progress: Progress
    what: str
    done: int = 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)
_report: ContextVar[_Report | None] = ContextVar("report", default=None)


@contextmanager
def work_limit(seconds: float | None = None, iterations: int | None = None) -> Iterator[None]:
    """Limit the work in this block: `exhausted` is true once a bound is reached.

    Parameters
    ----------
    seconds : float, optional
        Bound on the elapsed time; by default none.
    iterations : int, optional
        Bound on the iterations of all optimisers together; by default none.

    >>> with work_limit(iterations=2):
    ...     spend()
    ...     exhausted(), spend(), exhausted()
    (False, None, True)
    >>> exhausted()
    False
    """
    own = _Budget(
        math.inf if seconds is None else time.monotonic() + seconds,
        math.inf if iterations is None else iterations,
    )
    token = _budget.set(own)
    try:
        yield
    finally:
        _budget.reset(token)


@contextmanager
def reporting(progress: Progress | None, what: str) -> Iterator[None]:
    """Report to `progress` every iteration that `spend` counts in this block.

    Their number is not known in advance; the total grows with them.

    >>> with reporting(lambda *call: print(call), "climbing"):
    ...     spend()
    ('climbing', 0, 20)
    ('climbing', 1, 20)
    ('climbing', 1, 1)
    """
    if progress is None:
        yield
        return
    progress(what, 0, _USUAL)
    own = _Report(progress, what)
    token = _report.set(own)
    try:
        yield
    finally:
        _report.reset(token)
        progress(what, max(own.done, 1), max(own.done, 1))


def spend(iterations: int = 1) -> None:
    """Count iterations of an optimiser against the limit around the caller, and report them."""
    budget, report = _budget.get(), _report.get()
    if budget is not None:
        budget.iterations -= iterations
    if report is not None:
        report.done += iterations
        report.progress(report.what, report.done, steps_left(report.done, _USUAL))


def exhausted() -> bool:
    """Whether the limit around the caller has been reached."""
    budget = _budget.get()
    return budget is not None and (budget.iterations <= 0 or time.monotonic() >= budget.deadline)


def limit_status() -> Status:
    """The limit that was reached: of time, or of iterations (also an optimiser's own)."""
    budget = _budget.get()
    if budget is not None and time.monotonic() >= budget.deadline:
        return Status.TIME_LIMIT
    return Status.MAX_ITERATIONS


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
