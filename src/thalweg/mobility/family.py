"""The family `m(s, t) = C (s t)^(k/2) sinhc(a d) / sinhc(b d)`, compiled, one edge at a time.

`form` is `[code, C, k, a, b]`; `d = (log s - log t) / 2`. The functions are those of
`thalweg.mobility.formulas`, which calls these for the means without a formula of their own; the
special functions behind them are exact to rounding where the plain quotient cancels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner
from thalweg.mobility.logarithmic import log_ratio, series

Array = NDArray[np.float64]


_LANGEVIN = (
    1.0 / 3.0, -1.0 / 45.0, 2.0 / 945.0, -1.0 / 4725.0, 2.0 / 93555.0, -1382.0 / 638512875.0,
    4.0 / 18243225.0, -3617.0 / 162820783125.0,
)  # fmt: skip
_LANGEVIN_PRIME = (
    1.0 / 3.0, -3.0 / 45.0, 10.0 / 945.0, -7.0 / 4725.0, 18.0 / 93555.0,
    -11.0 * 1382.0 / 638512875.0, 52.0 / 18243225.0, -15.0 * 3617.0 / 162820783125.0,
)  # fmt: skip
"""Series of `langevin(x) / x` and of its derivative in `x^2`."""


@inner(cache=True)
def langevin(x: float) -> float:
    """`coth(x) - 1 / x`, the logarithmic derivative of `sinhc`."""
    if abs(x) < 0.5:
        return x * series(_LANGEVIN, x * x)
    return 1.0 / math.tanh(x) - 1.0 / x


@inner(cache=True)
def langevin_prime(x: float) -> float:
    """Derivative of `langevin`: `1 / x^2 - 1 / sinh(x)^2`."""
    if abs(x) < 0.5:
        return series(_LANGEVIN_PRIME, x * x)
    if abs(x) > 350.0:
        return 1.0 / (x * x)
    sh = math.sinh(x)
    return 1.0 / (x * x) - 1.0 / (sh * sh)


@inner(cache=True)
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


@inner(cache=True)
def excess(a: float, d: float) -> float:
    """`2 a / (exp(2 a d) - 1)` for `a >= 0`, `d > 0`: `1 / d` in the limit `a = 0`."""
    x = 2.0 * a * d
    if x < 1e-12:
        return 1.0 / d
    return 2.0 * a / math.expm1(x)


@inner(cache=True)
def log_slopes(form: Array, d: float) -> tuple[float, float]:
    """`2 d log m / d log s` and `2 d log m / d log t` of the family, for `d = (log s - log t) / 2`.

    They are `k + g`, `k - g` with `g = a L(a d) - b L(b d)`, `L` the Langevin function. Far from
    the diagonal the smaller one cancels; there it is summed from what `L` lacks to one.
    """
    a, b, k = abs(form[3]), abs(form[4]), form[2]
    far = abs(d)
    if far * max(a, b) < 0.5:
        g = a * langevin(a * d) - b * langevin(b * d)
        return k + g, k - g
    small = (k - a + b) + excess(b, far) - excess(a, far)
    large = 2.0 * k - small
    return (large, small) if d > 0 else (small, large)


@inner(cache=True)
def mean(form: Array, s: float, t: float) -> float:
    """`m(s, t)`."""
    if s <= 0.0 or t <= 0.0:
        return 0.0
    u, v = math.log(s), math.log(t)
    d = 0.5 * log_ratio(s, t)
    shape = log_sinhc(form[3] * d) - log_sinhc(form[4] * d)
    if form[3] == form[4] or form[3] == -form[4]:
        return form[1] * s ** (0.5 * form[2]) * t ** (0.5 * form[2])
    return form[1] * math.exp(0.5 * form[2] * (u + v) + shape)


@inner(cache=True)
def mean_partials(form: Array, s: float, t: float) -> tuple[float, float, float]:
    """`m`, its derivative in `s`, its derivative in `t` (infinite at zero where it is)."""
    if s <= 0.0 or t <= 0.0:
        return _partials_at_zero(form, s, t)
    m = mean(form, s, t)
    d = 0.5 * log_ratio(s, t)
    slope_s, slope_t = log_slopes(form, d)
    return m, 0.5 * m * slope_s / s, 0.5 * m * slope_t / t


@inner(cache=True)
def _partials_at_zero(form: Array, s: float, t: float) -> tuple[float, float, float]:
    """Limits on the boundary: the derivative along the empty side may be infinite."""
    if s <= 0.0 and t <= 0.0:
        # The direction decides at the corner; the diagonal's value is the useful one.
        return 0.0, 0.5, 0.5
    # Towards t = 0, m behaves like t^(k/2 - (|a| - |b|)/2).
    exponent = 0.5 * (form[2] - abs(form[3]) + abs(form[4]))
    side = math.inf if exponent < 1.0 else 0.0
    if exponent == 1.0:
        side = form[1] * (s + t) ** (form[2] - 1.0)
        if form[3] != 0.0 and form[4] != 0.0:
            side *= abs(form[4] / form[3])
    return (0.0, side, 0.0) if s <= 0.0 else (0.0, 0.0, side)


@inner(cache=True)
def mean_seconds(form: Array, s: float, t: float) -> tuple[float, float, float]:
    """Second derivatives `m_ss`, `m_st`, `m_tt` for `s, t > 0`."""
    m = mean(form, s, t)
    d = 0.5 * log_ratio(s, t)
    a, b, k = form[3], form[4], form[2]
    g = a * langevin(a * d) - b * langevin(b * d)
    slope = a * a * langevin_prime(a * d) - b * b * langevin_prime(b * d)
    cross = 0.25 * m * (k * k - g * g - slope) / s / t
    own_s = 0.25 * m * ((k + g) * (k + g - 2.0) + slope) / s / s
    own_t = 0.25 * m * ((k - g) * (k - g - 2.0) + slope) / t / t
    return own_s, cross, own_t


@inner(cache=True)
def mean_log_partials(form: Array, u: float, v: float) -> tuple[float, float, float]:
    """`m(exp(u), exp(v))` and its derivatives in `u` and in `v`."""
    d = 0.5 * (u - v)
    a, b, k = form[3], form[4], form[2]
    m = form[1] * math.exp(0.5 * k * (u + v) + log_sinhc(a * d) - log_sinhc(b * d))
    slope_u, slope_v = log_slopes(form, d)
    return m, 0.5 * m * slope_u, 0.5 * m * slope_v


@inner(cache=True)
def log_mean_partials(form: Array, u: float, v: float) -> tuple[float, float, float]:
    """`log m(e^u, e^v)` and its derivatives in `u` and `v`; never under- or overflows."""
    d = 0.5 * (u - v)
    a, b, k = form[3], form[4], form[2]
    log_m = math.log(form[1]) + 0.5 * k * (u + v) + log_sinhc(a * d) - log_sinhc(b * d)
    g = a * langevin(a * d) - b * langevin(b * d)
    return log_m, 0.5 * (k + g), 0.5 * (k - g)
