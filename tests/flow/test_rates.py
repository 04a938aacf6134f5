"""The velocity of the flow and the jump rates behind it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import MOBILITIES
from thalweg.energy import Entropy, FreeEnergy, InternalEnergy, PowerEnergy
from thalweg.errors import InputError
from thalweg.flow import jump_rates, velocity
from thalweg.geometry.operators import transport_laplacian
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    LogMean,
    PorousMediumMean,
    PowerHeatMean,
)

EVERY = (*MOBILITIES, PorousMediumMean(1.7), PowerHeatMean(1.7))
INTERNALS = [Entropy(), PowerEnergy(1.7), PowerEnergy(2.5)]


def setting(seed: int, n: int = 7) -> tuple[MarkovKernel, np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n, k=1)
    return MarkovKernel.from_weights(weights + weights.T), rng, rng.dirichlet(np.ones(n))


@pytest.mark.parametrize("mobility", EVERY, ids=repr)
@pytest.mark.parametrize("internal", INTERNALS, ids=repr)
def test_velocity_is_minus_the_laplacian_of_the_first_variation(mobility, internal):
    kernel, rng, p = setting(3)
    w = rng.normal(size=(7, 7))
    energy = FreeEnergy(rng.normal(size=7), 0.4, interaction=w + w.T, internal=internal)
    expected = -transport_laplacian(kernel, p, mobility) @ energy.first_variation(kernel, p)
    np.testing.assert_allclose(velocity(kernel, energy, p, mobility), expected, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(EVERY), st.sampled_from([0.0, 0.01, 1.0]))
def test_jump_rates_carry_the_flow(seed, mobility, beta):
    kernel, rng, p = setting(seed)
    energy = FreeEnergy(rng.normal(size=7), beta)
    rates = jump_rates(kernel, energy, p, mobility=mobility).toarray()
    np.testing.assert_allclose(p @ rates, velocity(kernel, energy, p, mobility), atol=1e-13)
    np.testing.assert_allclose(rates.sum(axis=1), 0, atol=1e-12 * abs(rates).max())
    off = rates - np.diag(np.diag(rates))
    assert (off >= 0).all()
    f = energy.first_variation(kernel, p)
    assert (off[f[:, None] <= f[None, :]] == 0).all()
    rho = p / kernel.stationary
    mean = mobility(rho[:, None], rho[None, :])
    literal = kernel.matrix.toarray() * mean / rho[:, None]
    literal = literal * np.maximum(f[:, None] - f[None, :], 0)
    np.testing.assert_allclose(off, literal, rtol=1e-9, atol=1e-12)


def test_velocity_and_rates_at_a_delta_are_finite():
    kernel, rng, _ = setting(0)
    p = np.zeros(7)
    p[2] = 1.0
    energy = FreeEnergy(rng.normal(size=7), 0.3)
    heat = 0.3 * (p @ kernel.matrix.toarray() - p)
    np.testing.assert_allclose(velocity(kernel, energy, p), heat, atol=1e-15)
    np.testing.assert_allclose(p @ jump_rates(kernel, energy, p).toarray(), heat, atol=1e-15)


def test_the_quick_logarithmic_mean_agrees_with_the_careful_one():
    # On a single edge under V the velocity is the mean itself.
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    energy = FreeEnergy([1.0, 0.0], beta=0.0)
    for share in [1e-300, 1e-9, 0.3, 0.44, 0.47, 0.4999, 0.5, 0.53, 0.9]:
        p = np.array([share, 1 - share])
        expected = 0.5 * LogMean()(2 * p[0], 2 * p[1])
        np.testing.assert_allclose(velocity(kernel, energy, p)[1], expected, rtol=1e-14)


def test_an_unknown_internal_energy_is_refused():
    class Strange(Entropy):
        pass

    class Other(InternalEnergy):
        value = derivative = log_slope = inverse = None
        heat_mobility = LogMean()

    kernel, _, p = setting(1)
    velocity(kernel, FreeEnergy(np.zeros(7), 1.0, internal=Strange()), p)
    with pytest.raises(InputError, match="Entropy"):
        velocity(kernel, FreeEnergy(np.zeros(7), 1.0, internal=Other()), p)


def test_the_velocity_of_something_else_than_an_energy_is_rejected() -> None:
    kernel, _, p = setting(0)
    with pytest.raises(InputError, match="energy is 'x'; it must be a FreeEnergy"):
        velocity(kernel, "x", p)  # type: ignore[arg-type]
