"""Figures that the paper prints, to stand beside measured ones, never among them.

Mean and standard deviation of the time-averaged Hellinger distance. "Paper" is the paper's own
method, "OpenFIM" the foundation model it compares with, both as the paper reports them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COLLAPSED", "TABLE1", "TIME_GRID", "Published"]


class Published(NamedTuple):
    """A mean and its spread as printed."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:g}"
        return f"{self.mean:.3f} ± {self.deviation:.3f}"


TABLE1 = {
    0.01: {"paper": Published(0.066, 0.031), "openfim": Published(0.142, 0.048)},
    0.1: {"paper": Published(0.059, 0.029), "openfim": Published(0.150, 0.061)},
    0.2: {"paper": Published(0.069, 0.031), "openfim": Published(0.159, 0.097)},
}
"""Table 1, by beta: all graph classes, N at most 6, n = 10^4, five instances of each."""

TIME_GRID = {"paper": Published(0.11), "openfim": Published(0.18)}
"""Appendix, 'Ablating the Time Grid': the average over all grids, "approximately"."""

COLLAPSED = 0.015
"""Section 'Ablating on Graph Size': the share of learned distributions that collapsed."""
