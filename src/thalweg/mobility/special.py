"""Special functions behind the means, each exact to rounding where the plain quotient cancels."""

from __future__ import annotations

import math

from thalweg._compile import inner, njit

__all__ = [
    "excess",
    "langevin",
    "langevin_prime",
    "log_ratio",
    "log_sinhc",
    "phi1",
    "phi2",
    "phi2_prime",
]


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


@inner(cache=True)
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


@inner(cache=True)
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


@inner(cache=True)
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
