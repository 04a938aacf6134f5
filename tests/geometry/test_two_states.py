"""Pairs of two states over many decades of weight, against mpmath: no wrong distance or bound."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.geometry import TransportGeometry
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PorousMediumMean,
    PowerHeatMean,
    PowerProduct,
)

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]
Number = mpmath.mpf
Formula = Callable[[Number, Number], Number]


def porous(q: float) -> Formula:
    def mean(s: Number, t: Number) -> Number:
        return s if s == t else (q - 1) / q * (s**q - t**q) / (s ** (q - 1) - t ** (q - 1))

    return mean


def heat(q: float) -> Formula:
    def mean(s: Number, t: Number) -> Number:
        if s == t:
            return s ** (2 - q) / q
        return (q - 1) / q * (s - t) / (s ** (q - 1) - t ** (q - 1))

    return mean


FORMULAS: list[tuple[Mobility, Formula]] = [
    (LogMean(), lambda s, t: s if s == t else (s - t) / mpmath.log(s / t)),
    (GeometricMean(), lambda s, t: mpmath.sqrt(s * t)),
    (ArithmeticMean(), lambda s, t: (s + t) / 2),
    (HarmonicMean(), lambda s, t: 2 * s * t / (s + t)),
    (PorousMediumMean(3.0), porous(mpmath.mpf(3))),
    (PorousMediumMean(1.5), porous(mpmath.mpf(1.5))),
    (PowerHeatMean(1.5), heat(mpmath.mpf(1.5))),
    (PowerProduct(0.3), lambda s, t: (s * t) ** mpmath.mpf(0.3)),
]
NAMES = [repr(mobility) for mobility, _ in FORMULAS]
SHARES = [
    (0.01, 0.99),
    (1e-9, 0.2),
    (0.0, 0.5),
    (0.2, 0.8),
    (0.0, 1.0),
    (0.3, 0.31),
    (1e-4, 0.999),
    (1e-14, 1e-6),
    (1e-3, 1 - 1e-9),
]


def quadrature(kernel: MarkovKernel, mean: Formula, p: Array, q: Array) -> float:
    """`int dx / sqrt(c m(x / pi_0, (1 - x) / pi_1))`, from either end to the middle."""
    pi = [mpmath.mpf(float(x)) for x in kernel.stationary]
    c = mpmath.mpf(float(kernel.edges.conductance[0]))
    p, q = (p, q) if p[0] <= q[0] else (q, p)

    def part(first: float, last: float, state: int) -> Number:
        low, high = (mpmath.mpf(min(float(x), 0.5)) for x in (first, last))
        if low >= high:
            return mpmath.mpf(0)
        decades = [mpmath.mpf(10) ** -j for j in range(20, 0, -2)]

        def slowness(x: Number) -> Number:
            return 1 / mpmath.sqrt(c * mean(x / pi[state], (1 - x) / pi[1 - state]))

        return mpmath.quad(slowness, [low, *[x for x in decades if low < x < high], high])

    with mpmath.workdps(20):
        return float(part(p[0], q[0], 0) + part(q[1], p[1], 1))


def check(kernel: MarkovKernel, number: int, p: Array, q: Array, tolerance: float) -> None:
    mobility, formula = FORMULAS[number]
    exact = quadrature(kernel, formula, p, q)
    found = TransportGeometry(kernel, mobility).geodesic(p, q, tolerance=tolerance, n_steps=1)
    where = f"{mobility} {kernel.stationary} {p} {q} {found.status}"
    assert found.status, where
    # Rounding enters the shares themselves: 1 - 1e-9 has seven digits of its distance to one.
    rounding = 1e-11 * exact
    assert abs(found.distance - exact) <= 3 * found.error_estimate + rounding, where
    assert abs(found.distance - exact) <= 3 * tolerance * exact, where
    assert found.upper_bound >= exact - 3 * found.error_estimate - rounding, where


def sweep(number: int, weights: list[float], shares: list[tuple[float, float]]) -> None:
    for weight, (a, b), flipped in product(weights, shares, (False, True)):
        kernel = MarkovKernel.from_weights([[0.0, 1.0], [1.0, weight]])
        p, q = np.array([a, 1 - a]), np.array([b, 1 - b])
        check(kernel, number, p[::-1] if flipped else p, q[::-1] if flipped else q, 1e-8)


@pytest.mark.parametrize("number", range(len(FORMULAS)), ids=NAMES)
def test_weights_over_many_decades(number: int) -> None:
    sweep(number, [1e3], [(1e-9, 0.2)])
    sweep(number, [1e10], [(1e-4, 0.999)])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMULAS)), ids=NAMES)
def test_weights_over_twelve_decades(number: int) -> None:
    sweep(number, [10.0**k for k in range(0, 13, 2)], SHARES)


def test_a_state_that_weighs_next_to_nothing() -> None:
    kernel = MarkovKernel.from_matrix([[0.3, 0.7], [7e-13, 1 - 7e-13]])
    check(
        kernel, NAMES.index("HarmonicMean()"), np.array([0.01, 0.99]), np.array([0.99, 0.01]), 1e-8
    )


def test_a_mean_that_is_not_concave() -> None:
    kernel = MarkovKernel.from_weights([[0, 1], [1, 1000]])
    p, q = np.array([1e-9, 1 - 1e-9]), np.array([0.2, 0.8])
    check(kernel, NAMES.index("PorousMediumMean(q=3.0)"), p, q, 1e-8)


@pytest.mark.parametrize("number", range(len(FORMULAS)), ids=NAMES)
def test_point_masses_to_ten_digits(number: int) -> None:
    kernel = MarkovKernel.from_matrix(np.full((2, 2), 0.5))
    check(kernel, number, np.array([1.0, 0.0]), np.array([0.0, 1.0]), 1e-10)
