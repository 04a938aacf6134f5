"""The interval of beta from a lattice: what neither the evidence nor the fit excludes.

The evidence alone would let the prior close an interval: a prior of rough potentials prefers a
`beta` that smooths them, also where every `beta` fits the counts equally well. The deviance of the
best fits alone ignores how much freedom they took. A value of `beta` is therefore excluded only
where both have fallen, beyond what Laplace's method may have missed (`Lattice.fall`), and an end is
closed only by a converged column beyond it.
"""

from __future__ import annotations

import numpy as np

from thalweg._types import Array
from thalweg.learn.few.columns import Lattice
from thalweg.learn.profile import hull
from thalweg.status import Status

__all__ = ["DROP", "beta_hull"]

DROP = 3.32
"""Fall of the log evidence, and of the log likelihood, that excludes a beta.

On 34 averaged fits to 30 states 1.92 missed one beta, 2.5 and 3.32 none; the evidence alone, at
2.5, missed 7. On fresh data of 100 states 2.5 held beta in 14 of 16 fits, 3.32 in 21 of 22 others.
"""


def beta_hull(lattice: Lattice, *, drop: float = DROP) -> tuple[float, float, float]:
    """The most likely beta, and the ends of its interval: 0 and infinity where not closed.

    Where columns lie further apart than beta is uncertain, the interval is extended to hold it.
    """
    x, value = lattice.log_betas, lattice.values
    sure = np.array([column.best.status is Status.CONVERGED for column in lattice.columns])
    ends = np.exp(hull(x, lattice.fall, sure, drop))
    best = float(np.exp(_vertex(x, value)))
    return best, min(best, float(ends[0])), max(best, float(ends[1]))


def _vertex(x: Array, value: Array) -> float:
    """The top of the parabola through the best column and its neighbours."""
    i = int(np.argmax(value))
    if not 0 < i < x.size - 1:
        return float(x[i])
    a, b, _ = np.polyfit(x[i - 1 : i + 2] - x[i], value[i - 1 : i + 2], 2)
    if a >= 0:
        return float(x[i])
    return float(x[i] + np.clip(-0.5 * b / a, x[i - 1] - x[i], x[i + 1] - x[i]))
