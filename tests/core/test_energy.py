"""Energies: first variations by differences, equilibria by stationarity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import reference
from strategies import generators, kernels_with_probability, random_kernel
from thalweg.energy import Entropy, FreeEnergy, PowerEnergy, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

internals = st.sampled_from([Entropy(), PowerEnergy(2.0), PowerEnergy(0.5), PowerEnergy(1.3)])


def _energy(kernel, rng, internal, *, interaction):
    n = kernel.n_states
    w = rng.normal(size=(n, n)) if interaction else None
    return FreeEnergy(
        rng.normal(size=n), rng.uniform(0.05, 2), None if w is None else w + w.T, internal
    )


@given(kernels_with_probability(), internals, st.booleans())
def test_the_first_variation_is_the_derivative(given_, internal, interaction):
    kernel, p, rng = given_
    energy = _energy(kernel, rng, internal, interaction=interaction)
    direction = rng.normal(size=kernel.n_states) * p
    direction -= p * direction.sum()
    h = 1e-5 * min(1.0, 0.5 / abs(direction / p).max())
    slope = (energy(kernel, p + h * direction) - energy(kernel, p - h * direction)) / (2 * h)
    expected = energy.first_variation(kernel, p) @ direction
    scale = abs(energy.first_variation(kernel, p)) @ abs(direction)
    assert slope == pytest.approx(expected, abs=1e-6 * scale + 1e-9)


@given(kernels_with_probability(), internals)
def test_the_slope_in_log_rho(given_, internal):
    kernel, p, _ = given_
    u = np.log(p / kernel.stationary)
    h = 1e-6
    numeric = (internal.derivative(u + h) - internal.derivative(u - h)) / (2 * h)
    np.testing.assert_allclose(internal.log_slope(u), numeric, rtol=1e-6)
    np.testing.assert_allclose(internal.inverse(internal.derivative(u)), u, atol=1e-7)


@given(kernels_with_probability())
def test_the_value_is_the_papers(given_):
    kernel, p, rng = given_
    V = rng.normal(size=kernel.n_states)
    expected = reference.free_energy(kernel.stationary, p / kernel.stationary, V, 0.3)
    assert FreeEnergy(V, 0.3)(kernel, p) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@given(kernels_with_probability(), internals, generators)
def test_the_equilibrium_has_least_energy(given_, internal, rng):
    kernel, _, _ = given_
    energy = _energy(kernel, rng, internal, interaction=False)
    best = energy.equilibrium(kernel)
    assert best.sum() == pytest.approx(1)
    for _ in range(5):
        other = rng.dirichlet(np.ones(kernel.n_states))
        assert energy(kernel, best) <= energy(kernel, other) + 1e-12
    held = best > 1e-12
    f = energy.external(best) + energy.beta * internal.derivative(
        np.log(np.where(held, best, 1.0) / kernel.stationary)
    )
    assert np.ptp(f[held]) < 1e-9 * (1 + np.ptp(energy.potential))


def test_the_equilibrium_is_gibbs():
    kernel = random_kernel(6, np.random.default_rng(0))
    V = np.random.default_rng(1).normal(size=6)
    gibbs = kernel.stationary * np.exp(-V / 0.2)
    np.testing.assert_allclose(
        FreeEnergy(V, 0.2).equilibrium(kernel), gibbs / gibbs.sum(), rtol=1e-12
    )


def test_the_equilibrium_with_an_interaction_is_stationary():
    kernel = random_kernel(6, np.random.default_rng(0))
    w = np.exp(-abs(np.subtract.outer(np.arange(6), np.arange(6))))
    for matrix in (w, sparse.csr_array(w)):
        energy = FreeEnergy(np.linspace(-1, 1, 6), 0.4, matrix)
        f = energy.first_variation(kernel, energy.equilibrium(kernel))
        assert np.ptp(f) < 1e-10


@pytest.mark.parametrize("strength", [1.0, -1.0, 3.0, -3.0])
@pytest.mark.parametrize("internal", [Entropy(), PowerEnergy(1.5)], ids=repr)
def test_the_equilibrium_with_a_strong_interaction_is_stationary(strength, internal):
    """A fixed point oscillates here, and one that is damped more and more never arrives."""
    kernel = MarkovKernel.from_weights([[0.0, 1, 0], [1, 0, 3], [0, 3, 0]])
    w = strength * np.array([[0.0, 1, 0], [1, 0, 3], [0, 3, 0]])
    energy = FreeEnergy(np.zeros(3), 0.9, w, internal=internal)
    rest = energy.equilibrium(kernel)
    held = rest > 1e-12  # A power energy may leave states empty.
    f = energy.external(rest) + 0.9 * internal.derivative(np.log(rest / kernel.stationary + 1e-300))
    assert np.ptp(f[held]) < 1e-9
    assert f[~held].min(initial=np.inf) >= f[held].min() - 1e-6


def test_without_noise_all_mass_sits_lowest():
    kernel = MarkovKernel.from_weights(np.ones((3, 3)))
    np.testing.assert_allclose(FreeEnergy([1.0, 0.0, 0.0], 0.0).equilibrium(kernel), [0, 0.5, 0.5])


def test_power_energies_tend_to_the_entropy():
    u = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(PowerEnergy(1 + 1e-7).derivative(u), u, atol=1e-5)


def test_centred_has_mean_zero_under_pi():
    kernel = random_kernel(5, np.random.default_rng(0))
    assert kernel.stationary @ centred([1, 2, 3, 4, 9], kernel) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda k: FreeEnergy([0, 1, 2], -0.1), "beta is -0.1"),
        (lambda k: FreeEnergy([0, 1, 2], "much"), "beta must be a number"),
        (lambda k: FreeEnergy([0, np.inf, 2], 1), "inf at position 1"),
        (lambda k: FreeEnergy([[0, 1, 2]], 1), r"shape \(1, 3\)"),
        (
            lambda k: FreeEnergy([0, 1, 2], 1, np.arange(9.0).reshape(3, 3)),
            "differs from its transpose",
        ),
        (lambda k: FreeEnergy([0, 1, 2], 1, np.ones((2, 2))), r"must be \(3, 3\)"),
        (lambda k: FreeEnergy([0, 1], 1)(k, [0.2, 0.3, 0.5]), "2 entries, but the kernel has 3"),
        (lambda k: FreeEnergy([0, 1, 2], 1).first_variation(k, [0.5, 0.5, 0]), "zero at state 2"),
        (lambda k: PowerEnergy(1.0), "not 1"),
    ],
)
def test_bad_energies_get_one_sentence(make, sentence):
    kernel = MarkovKernel.from_weights(np.ones((3, 3)))
    with pytest.raises(InputError, match=sentence) as caught:
        make(kernel)
    assert "\n" not in str(caught.value)


def test_without_noise_an_interaction_spreads_the_population():
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    alike = FreeEnergy(np.zeros(3), 0.0, interaction=np.eye(3)).equilibrium(kernel)
    np.testing.assert_allclose(alike, 1 / 3, atol=1e-12)
    # 2 p^2 + (1 - p) is least at p = 1/4; the third state is too high for anyone.
    crowded = FreeEnergy([0.0, 1.0, 9.0], 0.0, interaction=np.diag([4.0, 0.0, 0.0]))
    np.testing.assert_allclose(crowded.equilibrium(kernel), [0.25, 0.75, 0.0], atol=1e-11)
    almost = FreeEnergy([0.0, 1.0, 9.0], 1e-5, interaction=np.diag([4.0, 0.0, 0.0]))
    np.testing.assert_allclose(crowded.equilibrium(kernel), almost.equilibrium(kernel), atol=1e-4)
