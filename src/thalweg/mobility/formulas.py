"""The means, one edge at a time, compiled: every fused loop of the library calls these.

A mobility travels through compiled code as its `spec`, an array that holds `[code, C, k, a, b]`.
All means of the library belong to one family: with `d = (log s - log t) / 2` and
`sinhc(x) = sinh(x) / x`,

    m(s, t) = C (s t)^(k/2) sinhc(a d) / sinhc(b d).

The four classical ones have formulas of their own, because the family's exponentiates logarithms,
which costs a digit over some hundred decades. Numba drops branches on the number of dimensions, so
that number says whose formulas a `spec` needs, and only these are compiled: one dimension for the
geometric, arithmetic and harmonic means (here), two for the family (`thalweg.mobility.family`),
three for the logarithmic mean (`thalweg.mobility.logarithmic`). The `*_log` functions take
`u = log s`, `v = log t`, and stay finite where `exp(u)` underflows, as it does when beta is small.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner
from thalweg.mobility import family, logarithmic

LOGARITHMIC, GEOMETRIC, ARITHMETIC, HARMONIC, FAMILY = 0, 1, 2, 3, 4
CODES = (LOGARITHMIC, GEOMETRIC, ARITHMETIC, HARMONIC, FAMILY)
"""Every code that the functions below know; `thalweg.mobility.Mobility` refuses others."""

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


@inner(cache=True)
def mean(spec: Spec, s: float, t: float) -> float:
    """`m(s, t)`."""
    if spec.ndim == 3:
        return logarithmic.exact(s, t)
    if spec.ndim == 2:
        return family.mean(spec[0], s, t)
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


@inner(cache=True)
def mean_partials(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """`m`, its derivative in `s`, its derivative in `t` (infinite at zero where it is)."""
    if spec.ndim == 3:
        return logarithmic.exact_partials(s, t)
    if spec.ndim == 2:
        return family.mean_partials(spec[0], s, t)
    code = int(spec[0])
    if code == ARITHMETIC:
        return 0.5 * s + 0.5 * t, 0.5, 0.5
    if s <= 0.0 or t <= 0.0:
        if s <= 0.0 and t <= 0.0:
            # The direction decides at the corner; the diagonal's value is the useful one.
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


@inner(cache=True)
def mean_seconds(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """Second derivatives `m_ss`, `m_st`, `m_tt` for `s, t > 0`."""
    if spec.ndim == 3:
        return logarithmic.exact_seconds(s, t)
    if spec.ndim == 2:
        return family.mean_seconds(spec[0], s, t)
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
    if spec.ndim == 2:
        return family.mean_log_partials(spec[0], u, v)
    code = int(spec[0])
    if code == ARITHMETIC:
        s, t = 0.5 * math.exp(u), 0.5 * math.exp(v)
        return s + t, s, t
    if code == GEOMETRIC:
        m = math.exp(0.5 * (u + v))
        return m, 0.5 * m, 0.5 * m
    x = math.exp(-abs(u - v))
    m = 2.0 * math.exp(min(u, v)) / (1.0 + x)
    high, low = m * x / (1.0 + x), m / (1.0 + x)
    return (m, high, low) if u >= v else (m, low, high)


@inner(cache=True)
def log_mean_partials(spec: Spec, u: float, v: float) -> tuple[float, float, float]:
    """`log m(e^u, e^v)` and its derivatives in `u` and `v`; never under- or overflows."""
    if spec.ndim == 3:
        return logarithmic.partials_of_log(u, v)
    if spec.ndim == 2:
        return family.log_mean_partials(spec[0], u, v)
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
    """`mean`, given `z = log s - log t`, which spares the logarithmic one its logarithm."""
    if spec.ndim == 3:
        return float(logarithmic.mean_from_difference(z, s, t))
    return float(mean(spec, s, t))


@inner(cache=True, error_model="numpy")
def fast_mean(spec: Spec, s: float, t: float) -> float:
    """`mean` with a short cut for the logarithmic one, a few units in the last place less exact."""
    if spec.ndim == 3:
        return float(logarithmic.mean(s, t))
    return float(mean(spec, s, t))


@inner(cache=True, error_model="numpy")
def fast_first(spec: Spec, s: float, t: float) -> tuple[float, float, float]:
    """`m, m_s, m_t` for positive densities, with the same short cut."""
    if spec.ndim == 3:
        return logarithmic.first(s, t)
    return mean_partials(spec, s, t)


@inner(cache=True, error_model="numpy")
def fast_derivatives(
    spec: Spec, s: float, t: float
) -> tuple[float, float, float, float, float, float]:
    """`m, m_s, m_t, m_ss, m_st, m_tt` for positive densities, with the same short cut."""
    if spec.ndim == 3:
        return logarithmic.derivatives(s, t)
    m, by_s, by_t = mean_partials(spec, s, t)
    ss, st, tt = mean_seconds(spec, s, t)
    return m, by_s, by_t, ss, st, tt
