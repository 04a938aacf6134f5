"""The logarithmic mean with its first and second derivatives at the price of one logarithm.

The passes over stages spend their time here. Other means go to `mobility.scalar`. For the
logarithmic one with densities that differ by more than a fifth, `z = log(high / low)` gives
`m = (high - low) / z`, `m_high = phi2(-z)`, `m_low = phi2(z)` and `m_st = phi2'(-z) / low` in
closed form; nearer densities take no logarithm: `m = (s + t) g(r) / 2` with
`r = (s - t) / (s + t)` and the series of `g(r) = r / atanh(r)`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from thalweg.mobility import formulas

Array = NDArray[np.float64]

_TERMS = 9
_NEAR = 0.8
"""Above this ratio of the densities the series is used; its ninth term is below a rounding."""


def _reciprocal_series(count: int) -> Array:
    """Coefficients of `r / atanh(r)` in `r^2`: one over `1 + r^2/3 + r^4/5 + ...`."""
    down = 1.0 / (2 * np.arange(count) + 1)
    out = np.zeros(count)
    out[0] = 1.0
    for k in range(1, count):
        out[k] = -down[1 : k + 1] @ out[k - 1 :: -1][:k]
    return out


_POWER = np.arange(_TERMS)
_G = tuple(_reciprocal_series(_TERMS))
_SLOPE = tuple((2 * _POWER * _reciprocal_series(_TERMS))[1:])
"""`g'(r) / r`."""
_BEND = tuple((2 * _POWER * (2 * _POWER - 1) * _reciprocal_series(_TERMS))[1:])
"""`g''(r)`."""


@njit(cache=True, error_model="numpy", inline="always")
def _series(coefficients: tuple[float, ...], x: float) -> float:
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(cache=True, error_model="numpy", inline="always")
def _is_plain(spec: Array, s: float, t: float) -> bool:
    return int(spec[0]) == formulas.LOGARITHMIC and 1e-150 < s < 1e150 and 1e-150 < t < 1e150


@njit(cache=True, error_model="numpy")
def mean(spec: Array, s: float, t: float) -> float:
    """`m(s, t)`; zero where either density is."""
    if not _is_plain(spec, s, t):
        return float(formulas.mean(spec, s, t))
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        r = (s - t) / total
        return 0.5 * total * _series(_G, r * r)
    return (high - low) / math.log(high / low)


@njit(cache=True, error_model="numpy")
def mean_first(spec: Array, s: float, t: float) -> tuple[float, float, float]:
    """`m, m_s, m_t` for positive densities."""
    if not _is_plain(spec, s, t):
        m, first, second = formulas.mean_partials(spec, s, t)
        return m, first, second
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        inverse = 1.0 / total
        r = (s - t) * inverse
        g = 0.5 * _series(_G, r * r)
        slope = r * _series(_SLOPE, r * r) * inverse
        return total * g, g + slope * t, g - slope * s
    over_low = high / low
    z = math.log(over_low)
    inverse = 1.0 / z
    square = inverse * inverse
    m_high = (z - 1.0 + 1.0 / over_low) * square
    m_low = (over_low - 1.0 - z) * square
    m = (high - low) * inverse
    if s < t:
        return m, m_low, m_high
    return m, m_high, m_low


@njit(cache=True, error_model="numpy")
def mean_derivatives(
    spec: Array, s: float, t: float
) -> tuple[float, float, float, float, float, float]:
    """`m, m_s, m_t, m_ss, m_st, m_tt` for positive densities."""
    if not _is_plain(spec, s, t):
        m, first, second = formulas.mean_partials(spec, s, t)
        ss, st, tt = formulas.mean_seconds(spec, s, t)
        return m, first, second, ss, st, tt
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        inverse = 1.0 / total
        r = (s - t) * inverse
        g = 0.5 * _series(_G, r * r)
        slope = r * _series(_SLOPE, r * r) * inverse
        bend = 2.0 * _series(_BEND, r * r) * inverse * inverse * inverse
        return (
            total * g,
            g + slope * t,
            g - slope * s,
            bend * t * t,
            -bend * s * t,
            bend * s * s,
        )
    one_low = 1.0 / low
    over_low = high * one_low
    ratio = 1.0 / over_low
    z = math.log(over_low)
    inverse = 1.0 / z
    square = inverse * inverse
    m = (high - low) * inverse
    m_high = (z - 1.0 + ratio) * square
    m_low = (over_low - 1.0 - z) * square
    cross = (ratio * (z + 2.0) + z - 2.0) * square * inverse * one_low
    if s < t:
        return m, m_low, m_high, -cross * over_low, cross, -cross * ratio
    return m, m_high, m_low, -cross * ratio, cross, -cross * over_low
