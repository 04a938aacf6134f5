"""The means, one edge at a time, compiled: every fused loop of the library calls these.

A mobility travels through compiled code as its `spec`, an array that holds `[code, C, k, a, b]`.
All means of the library belong to one family: with `d = (log s - log t) / 2` and
`sinhc(x) = sinh(x) / x`,

    m(s, t) = C (s t)^(k/2) sinhc(a d) / sinhc(b d).

The four classical ones have formulas of their own, because the family's exponentiates logarithms,
which costs a digit over some hundred decades. Numba drops branches on the number of dimensions, so
that number selects the formulas of a `spec`, and only these are compiled: one dimension for the
geometric, arithmetic and harmonic means, two for the family (the `family_*` functions), three for
the logarithmic mean (`thalweg.mobility.logarithmic`). The `*_log` functions take `u = log s`,
`v = log t`, and stay finite where `exp(u)` underflows, as it does when beta is small.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner
from thalweg.mobility import logarithmic
from thalweg.mobility.logarithmic import log_ratio, series

LOGARITHMIC, GEOMETRIC, ARITHMETIC, HARMONIC, FAMILY = 0, 1, 2, 3, 4
CODES = (LOGARITHMIC, GEOMETRIC, ARITHMETIC, HARMONIC, FAMILY)
"""Every code that the functions below know; `thalweg.mobility.Mobility` rejects others."""

Spec = NDArray[np.float64]


@inner(cache=True)
def degree(spec: Spec) -> float:
    """`k` of `m(l s, l t) = l^k m(s, t)`."""
    if spec.ndim == 3:
        return 1.0
    if spec.ndim == 2:
        return spec[0, 2]
    return spec[2]


@inner(cache=True)
def is_logarithmic(spec: Spec) -> bool:
    """Whether the mean is the logarithmic one."""
    return spec.ndim == 3


@inner(cache=True, error_model="numpy")
def mean(spec: Spec, s: float, t: float) -> float:
    """`m(s, t)`."""
    if spec.ndim == 3:
        return logarithmic.exact(s, t)
    if spec.ndim == 2:
        return family_mean(spec[0], s, t)
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.5 * s + 0.5 * t
    if s <= 0.0 or t <= 0.0:
        return 0.0
    if code == GEOMETRIC:
        return math.sqrt(s) * math.sqrt(t)
    if s < t:
        return 2.0 * s / (1.0 + s / t)
    return 2.0 * t / (1.0 + t / s)


@inner(cache=True, error_model="numpy")
def mean_partials(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """`m`, its derivative in `s`, its derivative in `t` (infinite at zero where it is)."""
    if spec.ndim == 3:
        return logarithmic.partials(s, t)
    if spec.ndim == 2:
        return family_mean_partials(spec[0], s, t)
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.5 * s + 0.5 * t, 0.5, 0.5
    if s <= 0.0 or t <= 0.0:
        if s <= 0.0 and t <= 0.0:
            # At the corner the limit depends on the direction; take that along the diagonal.
            return 0.0, 0.5, 0.5
        steep = 2.0 if code == HARMONIC else math.inf
        return (0.0, steep, 0.0) if s <= 0.0 else (0.0, 0.0, steep)
    if code == GEOMETRIC:
        a, b = math.sqrt(s), math.sqrt(t)
        return a * b, 0.5 * b / a, 0.5 * a / b
    if s < t:
        x = s / t
        return 2.0 * s / (1.0 + x), 2.0 / (1.0 + x) ** 2, 2.0 * (x / (1.0 + x)) ** 2
    x = t / s
    return 2.0 * t / (1.0 + x), 2.0 * (x / (1.0 + x)) ** 2, 2.0 / (1.0 + x) ** 2


@inner(cache=True, error_model="numpy")
def mean_seconds(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Second derivatives `m_ss`, `m_st`, `m_tt` for `s, t > 0`."""
    if spec.ndim == 3:
        return logarithmic.derivatives(s, t)[3:]
    if spec.ndim == 2:
        return family_mean_seconds(spec[0], s, t)
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.0, 0.0, 0.0
    if code == GEOMETRIC:
        a, b = math.sqrt(s), math.sqrt(t)
        cross = 0.25 / a / b
        return -cross * (t / s), cross, -cross * (s / t)
    if s < t:
        x = s / t
        cross = 4.0 * x / (1.0 + x) ** 3 / t
    else:
        x = t / s
        cross = 4.0 * x / (1.0 + x) ** 3 / s
    return -cross * (t / s), cross, -cross * (s / t)


@inner(cache=True)
def mean_log_partials(spec: Spec, u: float, v: float) -> tuple[float, float, float]:
    """`m(exp(u), exp(v))` and its derivatives in `u` and in `v`."""
    if spec.ndim == 3:
        return logarithmic.log_partials(u, v)
    log_m, by_u, by_v = log_mean_partials(spec, u, v)
    m = math.exp(log_m)
    return m, m * by_u, m * by_v


@inner(cache=True)
def log_mean_partials(spec: Spec, u: float, v: float) -> tuple[float, float, float]:
    """`log m(e^u, e^v)` and its derivatives in `u` and `v`; never under- or overflows."""
    if spec.ndim == 3:
        return logarithmic.partials_of_log(u, v)
    if spec.ndim == 2:
        return family_log_mean_partials(spec[0], u, v)
    code = int(spec[0])
    z = abs(u - v)
    if code == GEOMETRIC:
        return 0.5 * (u + v), 0.5, 0.5
    if code == ARITHMETIC:
        x = math.exp(-z)
        log_m = max(u, v) + math.log1p(x) - math.log(2.0)
        high, low = 1.0 / (1.0 + x), x / (1.0 + x)
        return (log_m, high, low) if u >= v else (log_m, low, high)
    x = math.exp(-z)
    log_m = min(u, v) + math.log(2.0) - math.log1p(x)
    high, low = x / (1.0 + x), 1.0 / (1.0 + x)
    return (log_m, high, low) if u >= v else (log_m, low, high)


@inner(cache=True, error_model="numpy")
def mean_from_difference(spec: Spec, z: float, s: float, t: float) -> float:
    """`mean`, given `z = log s - log t`, which saves the logarithmic mean its logarithm."""
    if spec.ndim == 3:
        return float(logarithmic.mean_from_difference(z, s, t))
    return float(mean(spec, s, t))


@inner(cache=True, error_model="numpy")
def fast_mean(spec: Spec, s: float, t: float) -> float:
    """`mean` with a short cut for the logarithmic one, a unit in the last place less exact."""
    if spec.ndim == 3:
        return float(logarithmic.mean(s, t))
    return float(mean(spec, s, t))


@inner(cache=True, error_model="numpy")
def mean_derivatives(
    spec: Spec, s: float, t: float
) -> tuple[float, float, float, float, float, float]:
    """`m, m_s, m_t, m_ss, m_st, m_tt` for positive densities."""
    if spec.ndim == 3:
        return logarithmic.derivatives(s, t)
    m, by_s, by_t = mean_partials(spec, s, t)
    ss, st, tt = mean_seconds(spec, s, t)
    return m, by_s, by_t, ss, st, tt


# ---------------------------------------------------------------- the family, `form = spec[0]`
# Its special functions are exact to rounding where the plain quotient of sinhc cancels.

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
def log_slopes(form: Spec, d: float) -> tuple[float, float]:
    """`2 d log m / d log s` and `2 d log m / d log t` of the family, for `d = (log s - log t) / 2`.

    They are `k + g`, `k - g` with `g = a L(a d) - b L(b d)`, `L` the Langevin function. Far from
    the diagonal the smaller one cancels; there it is summed from `1 - L`.
    """
    a, b, k = abs(form[3]), abs(form[4]), form[2]
    far = abs(d)
    if far * max(a, b) < 0.5:
        g = a * langevin(a * d) - b * langevin(b * d)
        return k + g, k - g
    small = (k - a + b) + excess(b, far) - excess(a, far)
    large = 2.0 * k - small
    return (large, small) if d > 0 else (small, large)


_LEVEL = 1e-9
"""Exponents below this count as zero: `k`, `a` and `b` are rounded differences."""


@inner(cache=True)
def _family_at_zero(form: Spec, total: float) -> float:
    """Limit of `m(s, t)` where one density is `total` and the other zero.

    The mean goes like `C |b / a| s^k (t / s)^e`, `e = (k - |a| + |b|) / 2`, and over `log(s / t)`
    where `b = 0 < a`.
    """
    a, b, k = abs(form[3]), abs(form[4]), form[2]
    if k - a + b > _LEVEL or (b == 0.0 and a > 0.0):
        return 0.0
    return form[1] * total**k * (1.0 if a == b else b / a)


@inner(cache=True)
def family_mean(form: Spec, s: float, t: float) -> float:
    """`m(s, t)`."""
    if s <= 0.0 or t <= 0.0:
        return _family_at_zero(form, max(s, t, 0.0))
    if abs(form[3]) == abs(form[4]):
        return form[1] * s ** (0.5 * form[2]) * t ** (0.5 * form[2])
    d = 0.5 * log_ratio(s, t)
    shape = log_sinhc(form[3] * d) - log_sinhc(form[4] * d)
    return form[1] * math.exp(0.5 * form[2] * (math.log(s) + math.log(t)) + shape)


@inner(cache=True)
def family_mean_partials(form: Spec, s: float, t: float) -> tuple[float, float, float]:
    """`m`, its derivative in `s`, its derivative in `t` (infinite at zero where it is)."""
    if s <= 0.0 or t <= 0.0:
        return _family_partials_at_zero(form, s, t)
    m = family_mean(form, s, t)
    d = 0.5 * log_ratio(s, t)
    slope_s, slope_t = log_slopes(form, d)
    return m, 0.5 * m * slope_s / s, 0.5 * m * slope_t / t


@inner(cache=True)
def _family_partials_at_zero(form: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Limits on the boundary: the derivative along the empty side may be infinite."""
    total = max(s, t, 0.0)
    m, along = _family_at_zero(form, total), 0.0
    if total == 0.0:
        # At the corner the limit depends on the direction; take that along the diagonal.
        return m, 0.5, 0.5
    # Towards t = 0, m behaves like t^(k/2 - (|a| - |b|)/2).
    exponent = 0.5 * (form[2] - abs(form[3]) + abs(form[4]))
    side = math.inf if exponent < 1.0 else 0.0
    if exponent == 1.0:
        side = form[1] * total ** (form[2] - 1.0)
        if form[3] != 0.0 and form[4] != 0.0:
            side *= abs(form[4] / form[3])
    if m > 0.0:
        # Here m = C |b / a| s^k (1 - (t / s)^|a|) / (1 - (t / s)^|b|), with |a| - |b| = k.
        along = form[2] * m / total
        if form[2] < _LEVEL or abs(form[4]) > 1.0:
            side = 0.0
        elif abs(form[4]) == 1.0:
            side = m / total
    return (m, side, along) if s <= 0.0 else (m, along, side)


@inner(cache=True)
def family_mean_seconds(form: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Second derivatives `m_ss`, `m_st`, `m_tt` for `s, t > 0`."""
    m = family_mean(form, s, t)
    d = 0.5 * log_ratio(s, t)
    a, b, k = form[3], form[4], form[2]
    g = a * langevin(a * d) - b * langevin(b * d)
    slope = a * a * langevin_prime(a * d) - b * b * langevin_prime(b * d)
    cross = 0.25 * m * (k * k - g * g - slope) / s / t
    own_s = 0.25 * m * ((k + g) * (k + g - 2.0) + slope) / s / s
    own_t = 0.25 * m * ((k - g) * (k - g - 2.0) + slope) / t / t
    return own_s, cross, own_t


@inner(cache=True)
def family_log_mean_partials(form: Spec, u: float, v: float) -> tuple[float, float, float]:
    """`log m(e^u, e^v)` and its derivatives in `u` and `v`; never under- or overflows."""
    d = 0.5 * (u - v)
    a, b, k = form[3], form[4], form[2]
    log_m = math.log(form[1]) + 0.5 * k * (u + v) + log_sinhc(a * d) - log_sinhc(b * d)
    slope_u, slope_v = log_slopes(form, d)
    return log_m, 0.5 * slope_u, 0.5 * slope_v
