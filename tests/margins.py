"""Comparisons that use more than a tenth of their tolerance, listed after a run of the tests.

    PYTHONPATH=tests python -m pytest -p margins

A comparison of rounding or of a solver's error that is listed may fail on another processor: give
it more room, or ask more of the solver. A comparison of random
draws, or of a method's own error, may stay.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest
from _pytest.config import Config
from _pytest.terminal import TerminalReporter

SHARE = 0.1
_close = np.testing.assert_allclose
_used: dict[tuple[str, int], float] = {}


def _note(share: float) -> None:
    """Keep the largest share of a tolerance used at the line that compares."""
    frame = sys._getframe(2)
    place = frame.f_code.co_filename, frame.f_lineno
    if share > max(SHARE, _used.get(place, 0.0)):
        _used[place] = share


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **more: Any):
    with contextlib.suppress(TypeError, ValueError):
        gap = np.abs(np.asarray(actual, float) - np.asarray(desired, float))
        allowed = atol + rtol * np.abs(np.asarray(desired, float))
        with np.errstate(all="ignore"):
            shares = np.where(gap > 0, gap / allowed, 0.0)
        _note(float(np.max(shares[np.isfinite(shares)], initial=0.0)))
    _close(actual, desired, rtol=rtol, atol=atol, **more)


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    scalar = type(pytest.approx(1.0))
    equal = scalar.__eq__

    def noted(self: Any, actual: Any) -> bool:
        with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
            _note(float(abs(actual - self.expected) / self.tolerance))
        return bool(equal(self, actual))

    monkeypatch.setattr(np.testing, "assert_allclose", assert_allclose)
    monkeypatch.setattr(scalar, "__eq__", noted)


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: Config) -> None:
    terminalreporter.section("comparisons that use more than a tenth of their tolerance")
    for (file, line), share in sorted(_used.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{share:6.3f}  {file}:{line}")
