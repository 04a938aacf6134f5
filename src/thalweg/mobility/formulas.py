"""The means, one edge at a time, compiled: every fused loop of the library calls these.

A mobility travels through compiled code as its `spec`, the array `[code, C, k, a, b]`. All means of
the library belong to one family: with `d = (log s - log t) / 2` and `sinhc(x) = sinh(x) / x`,

    m(s, t) = C (s t)^(k/2) sinhc(a d) / sinhc(b d).

The four classical ones have formulas of their own here, because the family's exponentiates
logarithms, which costs a digit over some hundred decades. The `*_log` functions take `u = log s`,
`v = log t`, and stay finite where `exp(u)` underflows, as it does when beta is small.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

LOGARITHMIC, GEOMETRIC, ARITHMETIC, HARMONIC, FAMILY = 0, 1, 2, 3, 4

Spec = NDArray[np.float64]


@njit(cache=True, inline="always")
def log_ratio(s: float, t: float) -> float:
    """`log(s / t)`, exact to rounding also where `s` is close to `t`."""
    ratio = s / t
    if 0.5 < ratio < 2.0:
        return math.log1p((s - t) / t)
    if 1e-300 < ratio < 1e300:
        return math.log(ratio)
    return math.log(s) - math.log(t)


@njit(cache=True)
def phi1(z: float) -> float:
    """`(exp(z) - 1) / z`."""
    if abs(z) < 1e-8:
        return 1.0 + 0.5 * z
    return math.expm1(z) / z


@njit(cache=True)
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


@njit(cache=True)
def phi2_prime(z: float) -> float:
    """Derivative of `phi2`: `(exp(z) (z - 2) + z + 2) / z^3`."""
    if abs(z) < 3.0:
        total, power = 0.0, 1.0 / 6.0
        for k in range(1, 40):
            total += k * power
            power *= z / (k + 3)
            if abs(power) * k < 1e-19:
                break
        return total
    return (math.exp(z) * (z - 2.0) + z + 2.0) / (z * z * z)


@njit(cache=True)
def langevin(x: float) -> float:
    """`coth(x) - 1 / x`, the logarithmic derivative of `sinhc`."""
    if abs(x) < 0.5:
        y = x * x
        return x * (
            1.0 / 3.0
            - y
            * (
                1.0 / 45.0
                - y
                * (
                    2.0 / 945.0
                    - y
                    * (
                        1.0 / 4725.0
                        - y
                        * (
                            2.0 / 93555.0
                            - y
                            * (
                                1382.0 / 638512875.0
                                - y * (4.0 / 18243225.0 - y * 3617.0 / 162820783125.0)
                            )
                        )
                    )
                )
            )
        )
    return 1.0 / math.tanh(x) - 1.0 / x


@njit(cache=True)
def langevin_prime(x: float) -> float:
    """Derivative of `langevin`: `1 / x^2 - 1 / sinh(x)^2`."""
    if abs(x) < 0.5:
        y = x * x
        return 1.0 / 3.0 - y * (
            3.0 / 45.0
            - y
            * (
                10.0 / 945.0
                - y
                * (
                    7.0 / 4725.0
                    - y
                    * (
                        18.0 / 93555.0
                        - y
                        * (
                            11.0 * 1382.0 / 638512875.0
                            - y * (52.0 / 18243225.0 - y * 15.0 * 3617.0 / 162820783125.0)
                        )
                    )
                )
            )
        )
    if abs(x) > 350.0:
        return 1.0 / (x * x)
    sh = math.sinh(x)
    return 1.0 / (x * x) - 1.0 / (sh * sh)


@njit(cache=True)
def log_sinhc(x: float) -> float:
    """`log(sinh(x) / x)` without overflow."""
    x = abs(x)
    if x < 0.5:
        y = x * x
        total = y / 6.0
        return math.log1p(
            total
            * (
                1.0
                + y
                / 20.0
                * (1.0 + y / 42.0 * (1.0 + y / 72.0 * (1.0 + y / 110.0 * (1.0 + y / 156.0))))
            )
        )
    return x + math.log1p(-math.exp(-2.0 * x)) - math.log(2.0 * x)


@njit(cache=True)
def _excess(a: float, d: float) -> float:
    """`2 a / (exp(2 a d) - 1)` for `a >= 0`, `d > 0`: `1 / d` in the limit `a = 0`."""
    x = 2.0 * a * d
    if x < 1e-12:
        return 1.0 / d
    return 2.0 * a / math.expm1(x)


@njit(cache=True)
def log_slopes(spec: Spec, d: float) -> tuple[float, float]:
    """`2 d log m / d log s` and `2 d log m / d log t` of the family, for `d = (log s - log t) / 2`.

    They are `k + g`, `k - g` with `g = a L(a d) - b L(b d)`, `L` the Langevin function. Far from
    the diagonal the smaller one cancels; there it is summed from what `L` lacks to one.
    """
    a, b, k = abs(spec[3]), abs(spec[4]), spec[2]
    far = abs(d)
    if far * max(a, b) < 0.5:
        g = a * langevin(a * d) - b * langevin(b * d)
        return k + g, k - g
    small = (k - a + b) + _excess(b, far) - _excess(a, far)
    large = 2.0 * k - small
    return (large, small) if d > 0 else (small, large)


@njit(cache=True)
def mean(spec: Spec, s: float, t: float) -> float:
    """`m(s, t)`."""
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.5 * s + 0.5 * t
    if s <= 0.0 or t <= 0.0:
        return 0.0
    if code == LOGARITHMIC:
        z = log_ratio(s, t)
        # The smaller of the two, times phi1 of a positive number: no cancellation, no overflow.
        if z < 0.0:
            s, t, z = t, s, -z
        if z < 1.0:
            return t * phi1(z)
        return (s - t) / z
    if code == GEOMETRIC:
        return math.sqrt(s) * math.sqrt(t)
    if code == HARMONIC:
        if s < t:
            return 2.0 * s / (1.0 + s / t)
        return 2.0 * t / (1.0 + t / s)
    u, v = math.log(s), math.log(t)
    d = 0.5 * log_ratio(s, t)
    shape = log_sinhc(spec[3] * d) - log_sinhc(spec[4] * d)
    if spec[3] == spec[4] or spec[3] == -spec[4]:
        return spec[1] * s ** (0.5 * spec[2]) * t ** (0.5 * spec[2])
    return spec[1] * math.exp(0.5 * spec[2] * (u + v) + shape)


@njit(cache=True)
def mean_partials(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """`m`, its derivative in `s`, its derivative in `t` (infinite at zero where it is)."""
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.5 * s + 0.5 * t, 0.5, 0.5
    if s <= 0.0 or t <= 0.0:
        return _partials_at_zero(spec, s, t)
    if code == LOGARITHMIC:
        z = log_ratio(s, t)
        # phi2(z) overflows before s / t does not: use the quotient that is at hand.
        if z > 1.0:
            return (s - t) / z, phi2(-z), (s / t - 1.0 - z) / (z * z)
        if z < -1.0:
            return (s - t) / z, (t / s - 1.0 + z) / (z * z), phi2(z)
        return t * phi1(z), phi2(-z), phi2(z)
    if code == GEOMETRIC:
        a, b = math.sqrt(s), math.sqrt(t)
        return a * b, 0.5 * b / a, 0.5 * a / b
    if code == HARMONIC:
        if s < t:
            x = s / t
            return 2.0 * s / (1.0 + x), 2.0 / (1.0 + x) ** 2, 2.0 * (x / (1.0 + x)) ** 2
        x = t / s
        return 2.0 * t / (1.0 + x), 2.0 * (x / (1.0 + x)) ** 2, 2.0 / (1.0 + x) ** 2
    m = mean(spec, s, t)
    d = 0.5 * log_ratio(s, t)
    slope_s, slope_t = log_slopes(spec, d)
    return m, 0.5 * m * slope_s / s, 0.5 * m * slope_t / t


@njit(cache=True)
def _partials_at_zero(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Limits on the boundary: the derivative along the empty side may be infinite."""
    code = int(spec[0])
    if s <= 0.0 and t <= 0.0:
        # The direction decides at the corner; the diagonal's value is the useful one.
        return 0.0, 0.5, 0.5
    if code == HARMONIC:
        return (0.0, 2.0, 0.0) if s <= 0.0 else (0.0, 0.0, 2.0)
    if code == FAMILY:
        # Towards t = 0, m behaves like t^(k/2 - (|a| - |b|)/2).
        exponent = 0.5 * (spec[2] - abs(spec[3]) + abs(spec[4]))
        side = math.inf if exponent < 1.0 else 0.0
        if exponent == 1.0:
            rest = spec[1] * (s + t) ** (spec[2] - 1.0)
            if spec[3] != 0.0 and spec[4] != 0.0:
                rest *= abs(spec[4] / spec[3])
            side = rest
        return (0.0, side, 0.0) if s <= 0.0 else (0.0, 0.0, side)
    return (0.0, math.inf, 0.0) if s <= 0.0 else (0.0, 0.0, math.inf)


@njit(cache=True)
def mean_seconds(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Second derivatives `m_ss`, `m_st`, `m_tt` for `s, t > 0`."""
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.0, 0.0, 0.0
    if code == LOGARITHMIC:
        z = log_ratio(s, t)
        cross = phi2_prime(-z) / t if z > 0.0 else phi2_prime(z) / s
        return -cross * (t / s), cross, -cross * (s / t)
    if code == GEOMETRIC:
        a, b = math.sqrt(s), math.sqrt(t)
        cross = 0.25 / a / b
        return -cross * (t / s), cross, -cross * (s / t)
    if code == HARMONIC:
        if s < t:
            x = s / t
            cross = 4.0 * x / (1.0 + x) ** 3 / t
        else:
            x = t / s
            cross = 4.0 * x / (1.0 + x) ** 3 / s
        return -cross * (t / s), cross, -cross * (s / t)
    m = mean(spec, s, t)
    d = 0.5 * log_ratio(s, t)
    a, b, k = spec[3], spec[4], spec[2]
    g = a * langevin(a * d) - b * langevin(b * d)
    slope = a * a * langevin_prime(a * d) - b * b * langevin_prime(b * d)
    cross = 0.25 * m * (k * k - g * g - slope) / s / t
    own_s = 0.25 * m * ((k + g) * (k + g - 2.0) + slope) / s / s
    own_t = 0.25 * m * ((k - g) * (k - g - 2.0) + slope) / t / t
    return own_s, cross, own_t


@njit(cache=True)
def mean_log(spec: Spec, u: float, v: float) -> float:
    """`m(exp(u), exp(v))`, also where one of the exponentials underflows."""
    return mean_log_partials(spec, u, v)[0]


@njit(cache=True)
def mean_log_partials(spec: Spec, u: float, v: float) -> tuple[float, float, float]:
    """`m(exp(u), exp(v))` and its derivatives in `u` and in `v`."""
    code = int(spec[0])
    if code == ARITHMETIC:
        s, t = 0.5 * math.exp(u), 0.5 * math.exp(v)
        return s + t, s, t
    if code == LOGARITHMIC:
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
    if code == GEOMETRIC:
        m = math.exp(0.5 * (u + v))
        return m, 0.5 * m, 0.5 * m
    if code == HARMONIC:
        x = math.exp(-abs(u - v))
        m = 2.0 * math.exp(min(u, v)) / (1.0 + x)
        high, low = m * x / (1.0 + x), m / (1.0 + x)
        return (m, high, low) if u >= v else (m, low, high)
    d = 0.5 * (u - v)
    a, b, k = spec[3], spec[4], spec[2]
    m = spec[1] * math.exp(0.5 * k * (u + v) + log_sinhc(a * d) - log_sinhc(b * d))
    slope_u, slope_v = log_slopes(spec, d)
    return m, 0.5 * m * slope_u, 0.5 * m * slope_v
