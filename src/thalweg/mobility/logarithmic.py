"""The logarithmic mean `m = (s - t) / (log s - log t)` in every form that compiled loops take.

`mean`, `partials` and `derivatives` cost one logarithm or none, and a few units in the last place:
with densities that differ by more than a fifth, `z = log(high / low)` gives `m = (high - low) / z`,
`m_high = phi2(-z)`, `m_low = phi2(z)` and `m_st = phi2'(-z) / low` in closed form; nearer densities
take no logarithm, `m = (s + t) g(r) / 2` with `r = (s - t) / (s + t)` and the series of
`g(r) = r / atanh(r)`. The derivatives of densities below 1e-307 are those at 1e-307. The other
functions take the logarithms, for callers that have them or whose densities underflow.
"""

from __future__ import annotations

import math

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array

_TERMS = 9
"""Terms of the series near the diagonal."""
_NEAR = 0.8
"""Ratio of the densities above which the series is used; its ninth term is below rounding."""
_FLOOR = 1e-307
"""Least density in derivatives: its reciprocal is still a number."""


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
def series(coefficients: tuple[float, ...], x: float) -> float:
    """`sum_k coefficients[k] x^k`."""
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(cache=True, inline="always")
def log_ratio(s: float, t: float) -> float:
    """`log(s / t)`, exact to rounding also where `s` is close to `t`."""
    ratio = s / t
    if 0.5 < ratio < 2.0:
        return math.log1p((s - t) / t)
    if 1e-300 < ratio < 1e300:
        return math.log(ratio)
    return math.log(s) - math.log(t)


@inner(cache=True)
def phi1(z: float) -> float:
    """`(exp(z) - 1) / z`."""
    if abs(z) < 1e-8:
        return 1.0 + 0.5 * z
    return math.expm1(z) / z


@inner(cache=True)
def phi2(z: float) -> float:
    """`(exp(z) - 1 - z) / z^2`, by its series where the quotient would cancel."""
    if abs(z) < 1.0:
        total, term = 0.5, 0.5
        for k in range(3, 22):
            term *= z / k
            total += term
            if abs(term) < 1e-18:
                break
        return total
    return (math.expm1(z) - z) / (z * z)


@inner(cache=True, error_model="numpy")
def _far_log(high: float, low: float, ratio: float) -> float:
    """`log(high / low)`, given the quotient, which may overflow."""
    return math.log(ratio) if ratio < 1e300 else math.log(high) - math.log(low)


@inner(cache=True, error_model="numpy")
def mean(s: float, t: float) -> float:
    """`m(s, t)`; zero where either density is."""
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        r = (s - t) / total
        return 0.5 * total * series(_G, r * r)
    if low <= 0.0:
        return 0.0
    return (high - low) / _far_log(high, low, high / low)


@inner(cache=True, error_model="numpy")
def exact(s: float, t: float) -> float:
    """`m(s, t)` to the last digit; zero where either density is."""
    if s <= 0.0 or t <= 0.0:
        return 0.0
    z = log_ratio(s, t)
    # The smaller of the two, times phi1 of a positive number: no cancellation, no overflow.
    if z < 0.0:
        s, t, z = t, s, -z
    if z < 1.0:
        return t * phi1(z)
    return (s - t) / z


@inner(cache=True, error_model="numpy")
def partials(s: float, t: float) -> tuple[float, float, float]:
    """`m, m_s, m_t`; infinite along the side where a density is zero."""
    if s <= 0.0 or t <= 0.0:
        if s <= 0.0 and t <= 0.0:
            # At the corner the limit depends on the direction; take that along the diagonal.
            return 0.0, 0.5, 0.5
        return (0.0, math.inf, 0.0) if s <= 0.0 else (0.0, 0.0, math.inf)
    s, t = max(s, _FLOOR), max(t, _FLOOR)
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        inverse = 1.0 / total
        r = (s - t) * inverse
        g = 0.5 * series(_G, r * r)
        slope = r * series(_SLOPE, r * r) * inverse
        return total * g, g + slope * t, g - slope * s
    over_low = high / low
    z = _far_log(high, low, over_low)
    inverse = 1.0 / z
    square = inverse * inverse
    m_high = (z - 1.0 + 1.0 / over_low) * square
    m_low = (over_low - 1.0 - z) * square
    m = (high - low) * inverse
    if s < t:
        return m, m_low, m_high
    return m, m_high, m_low


@inner(cache=True, error_model="numpy")
def derivatives(s: float, t: float) -> tuple[float, float, float, float, float, float]:
    """`m, m_s, m_t, m_ss, m_st, m_tt` for positive densities."""
    s, t = max(s, _FLOOR), max(t, _FLOOR)
    high, low = max(s, t), min(s, t)
    if low > _NEAR * high:
        total = s + t
        inverse = 1.0 / total
        r = (s - t) * inverse
        g = 0.5 * series(_G, r * r)
        slope = r * series(_SLOPE, r * r) * inverse
        bend = 2.0 * series(_BEND, r * r) * inverse
        a, b = s * inverse, t * inverse
        return total * g, g + slope * t, g - slope * s, bend * b * b, -bend * a * b, bend * a * a
    one_low = 1.0 / low
    over_low = high * one_low
    ratio = 1.0 / over_low
    z = _far_log(high, low, over_low)
    inverse = 1.0 / z
    square = inverse * inverse
    m = (high - low) * inverse
    m_high = (z - 1.0 + ratio) * square
    m_low = (over_low - 1.0 - z) * square
    cross = (ratio * (z + 2.0) + z - 2.0) * square * inverse * one_low
    if s < t:
        return m, m_low, m_high, -cross * over_low, cross, -cross * ratio
    return m, m_high, m_low, -cross * ratio, cross, -cross * over_low


@inner(cache=True, error_model="numpy")
def log_partials(u: float, v: float) -> tuple[float, float, float]:
    """`m(exp u, exp v)` and its derivatives in `u` and `v`, also where they underflow."""
    z = abs(u - v)
    top = math.exp(max(u, v))
    down = math.exp(-z)
    if z < 1.0:
        m = top * phi1(-z)
        high, low = top * phi2(-z), top * down * phi2(z)
    else:
        m = top * (1.0 - down) / z
        high = (top - m) / z
        low = top * (1.0 - down * (1.0 + z)) / (z * z)
    return (m, high, low) if u >= v else (m, low, high)


@inner(cache=True, error_model="numpy")
def partials_of_log(u: float, v: float) -> tuple[float, float, float]:
    """`log m(exp u, exp v)` and its derivatives in `u` and `v`."""
    z = abs(u - v)
    if z < 1.0:
        m = phi1(-z)
        high = phi2(-z) / m
    else:
        m = -math.expm1(-z) / z
        high = (1.0 - m) / (z * m)
    low = 1.0 - high
    if z > 1.0:
        low = 1.0 / z - 1.0 / math.expm1(min(z, 700.0))
    log_m = max(u, v) + math.log(m)
    return (log_m, high, low) if u >= v else (log_m, low, high)


_EVEN = tuple(1.0 / math.factorial(k) for k in range(2, 15, 2))
_ODD = tuple(1.0 / math.factorial(k) for k in range(3, 15, 2))
"""Coefficients of the even and the odd part of `phi2(z) = (exp(z) - 1 - z) / z^2`, in `z^2`."""


@inner(cache=True, error_model="numpy")
def from_difference(z: float, s: float, t: float) -> tuple[float, float]:
    """`dm/dlog s = s phi2(-z)` and `dm/dlog t = t phi2(z)`, given `z = log s - log t`.

    Their sum is `m` itself, which is homogeneous of degree one.
    """
    if abs(z) < 0.5:
        y = z * z
        even, odd = series(_EVEN, y), z * series(_ODD, y)
        return s * (even - odd), t * (even + odd)
    inverse = 1.0 / z
    m = (s - t) * inverse
    return (s - m) * inverse, (m - t) * inverse


@inner(cache=True)
def mean_from_difference(z: float, s: float, t: float) -> float:
    """`m(s, t)` for densities that may vanish, given `z = log s - log t`."""
    if s <= 0.0 or t <= 0.0:
        return 0.0
    if abs(z) > 0.1:
        return (s - t) / z
    # tanh(z / 2) / (z / 2) by its series.
    y = z * z
    series = 1.0 - 17.0 * y / 168.0 * (1.0 - y / 9.87)
    return 0.5 * (s + t) * (1.0 - y / 12.0 * (1.0 - y / 10.0 * series))
