"""A bound on the work of a fit, which each of its loops can check."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from thalweg._types import Progress
from thalweg.learn.progress import steps_left
from thalweg.status import Status

_USUAL = 20
"""Iterations of a likelihood fit expected at first; ordinary fits take 5 to 80."""


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
