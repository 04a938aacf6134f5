"""Snapshots smoothed in time, state by state, for the weak form on sparse counts."""

from __future__ import annotations

import numpy as np

from thalweg._types import Array
from thalweg.snapshots.density import smoothed

_MOST_DEGREE = 8
_LEAST_SHARE = 0.02
"""Least probability of a state, relative to the uniform one."""


def smoothed_in_time(times: Array, counts: Array) -> tuple[Array, Array]:
    """Positive probabilities from polynomials in the root of time, and their effective sizes.

    Relaxation is fast at first and slow later: in the root of time it is nearly even. The degree is
    the one of least AIC over all states together. Each smoothed snapshot is worth `n / leverage`
    samples.

    It is meant for few counts per state, where noise no longer swamps the potential. A polynomial
    is only an approximation, which shows if counts are many, and makes beta too high.

    >>> p, sizes = smoothed_in_time(np.array([0.0, 1.0, 4.0]), np.array([[9.0, 1], [8, 2], [6, 4]]))
    >>> p.shape, bool(sizes[1] > 10)
    ((3, 2), True)
    """
    sizes = counts.sum(axis=1)
    raw = smoothed(counts)
    along = 2.0 * np.sqrt((times - times[0]) / (times[-1] - times[0])) - 1.0
    variance = np.maximum(raw.mean(axis=0), 1e-300) / sizes[:, None]
    best, p, leverage = np.inf, raw, np.ones(times.size)
    for degree in range(1, min(_MOST_DEGREE, times.size - 1) + 1):
        basis = np.polynomial.legendre.legvander(along, degree)
        hat = basis @ np.linalg.pinv(basis)
        fitted = hat @ raw
        score = float(np.sum((raw - fitted) ** 2 / variance)) + 2.0 * counts.shape[1] * (degree + 1)
        if score < best:
            best, p, leverage = score, fitted, np.diag(hat)
    p = np.maximum(p, _LEAST_SHARE / counts.shape[1])
    return p / p.sum(axis=1, keepdims=True), sizes / leverage
