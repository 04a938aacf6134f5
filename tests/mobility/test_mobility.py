"""The means against high-precision arithmetic, and their laws."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import MEANS, MOBILITIES, mobilities
from thalweg._compile import njit
from thalweg.errors import InputError
from thalweg.geometry import TransportGeometry
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    Form,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PorousMediumMean,
    PowerHeatMean,
    PowerProduct,
    formulas,
    logarithmic,
)


def _porous(q):
    return lambda s, t: (q - 1) / q * (s**q - t**q) / (s ** (q - 1) - t ** (q - 1))


EXACT = {
    LogMean(): lambda s, t: (s - t) / mp.log(s / t),
    GeometricMean(): lambda s, t: mp.sqrt(s * t),
    ArithmeticMean(): lambda s, t: (s + t) / 2,
    HarmonicMean(): lambda s, t: 2 * s * t / (s + t),
    PowerProduct(0.3): lambda s, t: (s * t) ** mp.mpf(0.3),
    PorousMediumMean(1.5): _porous(mp.mpf(1.5)),
    PowerHeatMean(1.25): lambda s, t: mp.mpf(1) / 5 * (s - t) / (s**0.25 - t**0.25),
}
# The family's formula exponentiates logarithms, which costs a digit or so over 600 decades.
TOLERANCE = dict.fromkeys(EXACT, 1e-14) | {PorousMediumMean(1.5): 3e-13, PowerHeatMean(1.25): 3e-13}

# `m(1, 0)` of the means that do not vanish with one density.
VALUE_AT_ZERO = {ArithmeticMean(): 0.5, PorousMediumMean(1.5): 1 / 3}

positive = st.floats(-345, 345).map(np.exp)
gaps = st.floats(-16, 1).map(lambda e: 10.0**e)


def _relative_error(value: float, exact: mp.mpf) -> float:
    return float(abs(mp.mpf(value) / exact - 1))


@pytest.mark.parametrize("mobility", EXACT, ids=repr)
@given(s=positive, t=positive, gap=gaps, near=st.booleans())
def test_values_and_derivatives_match_high_precision(mobility, s, t, gap, near):
    if near:
        s = float(np.clip(s, 1e-100, 1e100))
        t = s * (1 + gap)
    if s == t:
        return
    # Differences at ratios of 1e300 need that many digits in the reference.
    with mp.workdps(700):
        a, b, f = mp.mpf(s), mp.mpf(t), EXACT[mobility]
        tolerance = TOLERANCE[mobility]
        assert _relative_error(float(mobility(s, t)), f(a, b)) < tolerance
        h = mp.mpf(10) ** -80
        d_s = (f(a * (1 + h), b) - f(a * (1 - h), b)) / (2 * h * a)
        d_t = (f(a, b * (1 + h)) - f(a, b * (1 - h))) / (2 * h * b)
        for value, exact in zip(mobility.partials(s, t), (d_s, d_t), strict=True):
            if 1e-290 < abs(exact) < 1e290:
                assert _relative_error(float(value), exact) < 5 * tolerance


@pytest.mark.parametrize("mobility", EXACT, ids=repr)
@given(s=st.floats(-9, 9).map(np.exp), t=st.floats(-9, 9).map(np.exp))
def test_second_derivatives_match_high_precision(mobility, s, t):
    with mp.workdps(120):
        a, b, f = mp.mpf(s), mp.mpf(t) * (1 + mp.mpf(10) ** -30), EXACT[mobility]
        h = mp.mpf(10) ** -15
        up, down = 1 + h, 1 - h
        exact = (
            (f(a * up, b) - 2 * f(a, b) + f(a * down, b)) / (h * a) ** 2,
            (f(a * up, b * up) - f(a * up, b * down) - f(a * down, b * up) + f(a * down, b * down))
            / (4 * h * h * a * b),
            (f(a, b * up) - 2 * f(a, b) + f(a, b * down)) / (h * b) ** 2,
        )
        scales = (f(a, b) / a**2, f(a, b) / (a * b), f(a, b) / b**2)
    values = mobility.seconds(s, t)
    for value, derivative, scale in zip(values, exact, scales, strict=True):
        assert abs(float(value) - float(derivative)) < 1e-12 * float(scale)


@given(mobilities, st.floats(-700, 5), st.floats(-700, 5))
def test_the_logarithmic_form_agrees_with_the_plain_one(mobility, u, v):
    m, m_u, m_v = (float(x) for x in mobility.from_logs(u, v))
    s, t = float(np.exp(u)), float(np.exp(v))
    assert m == pytest.approx(float(mobility(s, t)), rel=2e-12, abs=1e-307)
    d_s, d_t = (float(x) for x in mobility.partials(s, t))
    if m > 1e-290:
        assert m_u == pytest.approx(s * d_s, rel=1e-11, abs=1e-300)
        assert m_v == pytest.approx(t * d_t, rel=1e-11, abs=1e-300)


def test_the_logarithmic_form_survives_underflow():
    m, m_u, m_v = (float(x) for x in LogMean().from_logs(0.0, -2000.0))
    assert m == pytest.approx(1 / 2000)
    assert m_u == pytest.approx((1 - 1 / 2000) / 2000)
    assert m_v == pytest.approx(1 / 2000**2)


@given(mobilities, positive, positive, st.floats(-5, 5).map(np.exp))
def test_symmetric_and_homogeneous(mobility, s, t, scale):
    s, t = np.clip([s, t], 1e-140, 1e140)
    assert float(mobility(s, t)) == pytest.approx(float(mobility(t, s)), rel=1e-13)
    expected = scale**mobility.degree * float(mobility(s, t))
    assert float(mobility(scale * s, scale * t)) == pytest.approx(expected, rel=1e-12)


@given(st.sampled_from(MEANS), positive, positive)
def test_means_lie_between_their_arguments(mobility, s, t):
    value = float(mobility(s, t))
    assert min(s, t) * (1 - 1e-12) <= value <= max(s, t) * (1 + 1e-12)


@given(positive, positive)
def test_the_classical_order_of_the_means(s, t):
    ordered = [HarmonicMean(), GeometricMean(), LogMean(), ArithmeticMean()]
    values = [float(m(s, t)) for m in ordered]
    assert all(a <= b * (1 + 1e-13) for a, b in zip(values, values[1:], strict=False))


@pytest.mark.parametrize(
    ("q", "mean"),
    [(-1, HarmonicMean()), (0.5, GeometricMean()), (1, LogMean()), (2, ArithmeticMean())],
)
def test_the_porous_medium_family_contains_the_classical_means(q, mean):
    s, t = np.exp(np.random.default_rng(0).uniform(-20, 20, (2, 100)))
    np.testing.assert_allclose(PorousMediumMean(q)(s, t), mean(s, t), rtol=1e-13)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
def test_values_at_zero(mobility: Mobility):
    value = float(mobility(1.0, 0.0))
    limit = float(mobility(1.0, 1e-300))
    assert value == VALUE_AT_ZERO.get(mobility, 0.0)
    assert value <= limit
    assert float(mobility(0.0, 0.0)) == 0.0


@pytest.mark.parametrize(
    ("mobility", "along_full", "along_empty"),
    [
        (LogMean(), 0.0, np.inf),
        (GeometricMean(), 0.0, np.inf),
        (ArithmeticMean(), 0.5, 0.5),
        (HarmonicMean(), 0.0, 2.0),
        (PorousMediumMean(-1.0), 0.0, 2.0),
        (PorousMediumMean(1.2), 1 / 6, np.inf),
        (PorousMediumMean(2.0), 0.5, 0.5),
        (PorousMediumMean(3.0), 2 / 3, 0.0),
        (PowerHeatMean(1.5), 1 / 6, np.inf),
        (PowerHeatMean(2.0), 0.0, 0.0),
    ],
    ids=repr,
)
def test_derivatives_at_zero(mobility, along_full, along_empty):
    full, empty = mobility.partials(1.0, 0.0)
    assert float(empty) == pytest.approx(along_empty)
    assert float(full) == pytest.approx(along_full)
    if along_full > 0:  # the mean does not vanish there, and is continuous
        near = mobility.partials(1.0, 1e-200)[0]
        assert float(mobility(1.0, 0.0)) == pytest.approx(float(mobility(1.0, 1e-200)), rel=1e-12)
        assert float(full) == pytest.approx(float(near), rel=1e-12)


def test_concavity_is_known():
    assert all(m.is_concave for m in MEANS)
    assert PowerProduct(0.4).is_concave
    assert not PowerProduct(0.6).is_concave
    assert not PorousMediumMean(3.0).is_concave


@pytest.mark.parametrize(
    "make", [lambda: PowerProduct(0), lambda: PorousMediumMean(0), lambda: PowerHeatMean(3)]
)
def test_impossible_orders_are_refused(make):
    with pytest.raises(InputError, match="must"):
        make()


SPEC = LogMean().spec


@njit()
def fast(spec, s, t):
    """Functions that only compiled ones can call."""
    mean, first = formulas.fast_mean(spec, s, t), formulas.mean_partials(spec, s, t)
    return mean, first, formulas.mean_derivatives(spec, s, t)


@njit()
def from_difference(z, s, t):
    return logarithmic.from_difference(z, s, t), logarithmic.mean_from_difference(z, s, t)


@njit()
def log_mean_partials(spec, u, v):
    return formulas.log_mean_partials(spec, u, v)


def test_logarithms_of_a_mean_do_not_underflow():
    assert log_mean_partials(HarmonicMean().spec, -3000.0, -3000.0) == (-3000.0, 0.5, 0.5)


def test_the_logarithmic_mean_from_densities_against_fifty_digits() -> None:
    rng = np.random.default_rng(0)
    with mp.workdps(50):
        for _ in range(300):
            s = 10 ** (rng.uniform(-6, 3) if rng.random() < 0.7 else rng.uniform(-290, -6))
            t = s * np.exp(rng.normal() * 10 ** rng.uniform(-6, 1))
            big, small = mp.mpf(s), mp.mpf(t)
            z = mp.log(big / small)
            m = (big - small) / z
            first = 1 / z - m / (z * big)
            second = -1 / z + m / (z * small)
            cross = 1 / (z**2 * small) - (second * z * big + m * big / small) / (z * big) ** 2
            exact = (m, first, second, -cross * small / big, cross, -cross * big / small)
            value_of_m, first_order, found = fast(SPEC, s, t)
            limits = (3e-15, 3e-14, 3e-14, 1e-11, 1e-11, 1e-11)
            for value, truth, limit in zip(found, exact, limits, strict=True):
                assert abs(value / truth - 1) < limit
            assert first_order == pytest.approx(found[:3], rel=1e-13, abs=0)
            assert value_of_m == pytest.approx(found[0], rel=1e-14, abs=0)
    for s, t in [(1e-250, 1.0), (1e-295, 1e20), (1e20, 1e-300)]:
        m = (s - t) / (math.log(s) - math.log(t))
        value, first_order, found = fast(SPEC, s, t)
        assert (value, first_order[0], found[0]) == pytest.approx((m, m, m), rel=1e-14)
    assert fast(SPEC, 0.0, 1.0)[0] == fast(SPEC, 0.0, 0.0)[0] == 0.0


@given(u=st.floats(-60, 60), z=st.one_of(st.floats(-40, 40), st.floats(-0.6, 0.6)))
def test_the_logarithmic_mean_from_logarithms_against_fifty_digits(u, z):
    with mp.workdps(50):
        s, t = float(mp.exp(u)), float(mp.exp(u - z))
        difference = mp.log(s) - mp.log(t)
        if difference == 0:
            return
        m = (mp.mpf(s) - mp.mpf(t)) / difference
        exact = (mp.mpf(s) - m) / difference, (m - mp.mpf(t)) / difference
        found, value = from_difference(float(difference), s, t)
        for partial, truth in zip(found, exact, strict=True):
            assert _relative_error(partial, truth) < 2e-14
        assert _relative_error(value, m) < 2e-14


class Halved(Mobility):
    """A mean that a user might add: one class, no compiled code."""

    @property
    def form(self):
        return Form(scale=0.5, a=1.0)


def test_a_new_mobility_is_one_class():
    np.testing.assert_allclose(Halved()(2.0, [3.0, 0.0]), 0.5 * LogMean()(2.0, [3.0, 0.0]))
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    p, q = [0.2, 0.8], [0.6, 0.4]
    # Half the mobility, twice the action.
    doubled = TransportGeometry(kernel, Halved()).distance(p, q) ** 2
    assert doubled == pytest.approx(2 * TransportGeometry(kernel).distance(p, q) ** 2, rel=1e-6)


@pytest.mark.parametrize("form", [Form(code=99), Form(code=-1), Form(k=np.nan), Form(b=np.inf)])
def test_an_unknown_form_is_refused(form):
    class Strange(Mobility):
        @property
        def form(self):
            return form

    with pytest.raises(InputError, match="Strange has the form"):
        Strange()(1.0, 2.0)
