"""The logarithmic mean with its first and second derivatives at the price of one logarithm.

The passes over stages spend their time here. Other means go to `mobility.scalar`; for the
logarithmic one, with `z = log(s / t) > 0`, `m = (s - t) / z`, `m_s = phi2(-z)`, `m_t = phi2(z)` and
`m_st = phi2'(-z) / t`, by closed forms where they do not cancel and by fixed series where they do.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from thalweg.mobility import scalar

Array = NDArray[np.float64]

_PHI2 = np.array([1.0 / math.factorial(k + 2) for k in range(14)])
_SLOPE = np.array([(k + 1.0) / math.factorial(k + 3) for k in range(14)])


@njit(cache=True, inline="always")
def _series(coefficients: Array, x: float) -> float:
    total = coefficients[-1]
    for k in range(coefficients.size - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(cache=True)
def mean_derivatives(
    spec: Array, s: float, t: float
) -> tuple[float, float, float, float, float, float]:
    """`m, m_s, m_t, m_ss, m_st, m_tt` for positive densities."""
    if int(spec[0]) != scalar.LOGARITHMIC or not 1e-150 < s < 1e150 or not 1e-150 < t < 1e150:
        m, first, second = scalar.mean_partials(spec, s, t)
        ss, st, tt = scalar.mean_seconds(spec, s, t)
        return m, first, second, ss, st, tt
    if s < t:
        high, low = t, s
    else:
        high, low = s, t
    ratio = low / high
    if ratio > 0.5:
        z = math.log1p((high - low) / low)
    else:
        z = -math.log(ratio)
    if z < 0.7:
        m_high = _series(_PHI2, -z)
        m_low = _series(_PHI2, z)
        # m = s m_s + t m_t for a one-homogeneous mean.
        m = high * m_high + low * m_low
        cross = _series(_SLOPE, -z) / low
    else:
        m = (high - low) / z
        m_high = (ratio - 1.0 + z) / (z * z)
        m_low = (1.0 / ratio - 1.0 - z) / (z * z)
        cross = (ratio * (z + 2.0) + z - 2.0) / (z * z * z) / low
    if s < t:
        return m, m_low, m_high, -cross * (t / s), cross, -cross * (s / t)
    return m, m_high, m_low, -cross * (t / s), cross, -cross * (s / t)


@njit(cache=True)
def mean_first(spec: Array, s: float, t: float) -> tuple[float, float, float]:
    """`m, m_s, m_t`."""
    if int(spec[0]) != scalar.LOGARITHMIC or not 1e-150 < s < 1e150 or not 1e-150 < t < 1e150:
        return scalar.mean_partials(spec, s, t)
    m, first, second, _, _, _ = mean_derivatives(spec, s, t)
    return m, first, second
