"""The library against the paper's algorithms, transcribed literally in `reference.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import reference
from strategies import generators, kernels_with_probability, random_kernel
from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow, jump_rates
from thalweg.flow.rates import velocity
from thalweg.geometry import TransportGeometry
from thalweg.learn.forecast import flow_of
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.mobility import LogMean
from thalweg.snapshots import hellinger


@given(kernels_with_probability())
def test_the_tangent_solve_is_algorithm_1(given_):
    kernel, p, rng = given_
    pi, K = kernel.stationary, kernel.matrix.toarray()
    p_dot = rng.normal(size=kernel.n_states)
    p_dot -= p_dot.mean()
    expected = reference.schur_cholesky(K, pi, p / pi, p_dot / pi)
    found = TransportGeometry(kernel).tangent(p, p_dot)
    # Potentials are equal up to a constant; double Cholesky squares the condition number.
    scale = np.ptp(expected)
    np.testing.assert_allclose(
        found - found[0], expected - expected[0], atol=1e-6 * scale, rtol=1e-5
    )


@given(kernels_with_probability(), generators)
def test_the_flow_and_its_rates_are_the_papers(given_, rng):
    kernel, p, _ = given_
    pi, K = kernel.stationary, kernel.matrix.toarray()
    energy = FreeEnergy(rng.normal(size=kernel.n_states), 0.3)
    rho = p / pi
    expected = reference.flow_velocity(K, rho, energy.potential, energy.beta)
    np.testing.assert_allclose(velocity(kernel, energy, p), pi * expected, atol=1e-10)
    Q = reference.jump_rates(K, rho, energy.potential, energy.beta)
    found = jump_rates(kernel, energy, p).toarray()
    np.testing.assert_allclose(found, Q, rtol=1e-8, atol=1e-8 * abs(Q).max())
    np.testing.assert_allclose(p @ Q, pi * expected, atol=1e-10)


@given(kernels_with_probability(), generators)
def test_the_corrected_sign_lowers_the_free_energy_and_the_printed_one_raises_it(given_, rng):
    kernel, p, _ = given_
    pi, K = kernel.stationary, kernel.matrix.toarray()
    V, beta = rng.normal(size=kernel.n_states), 0.3
    energy = FreeEnergy(V, beta)
    f = energy.first_variation(kernel, p)
    dissipation = -f @ (p @ jump_rates(kernel, energy, p).toarray())
    # The rate at which the free energy falls is the squared speed of the flow.
    assert dissipation == pytest.approx(TransportGeometry(kernel).norm(p, f) ** 2, rel=1e-9)
    printed = reference.jump_rates(K, p / pi, -V, -beta)
    assert f @ (p @ printed) >= -1e-12


def test_frozen_rates_are_the_papers_population():
    rng = np.random.default_rng(0)
    kernel = random_kernel(6, rng)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.2)
    p = rng.dirichlet(np.ones(6))
    times = np.array([0.0, 0.1, 0.25])
    found = flow_of(kernel, energy, p, times, mobility=LogMean(), discretization="frozen")
    K, pi = kernel.matrix.toarray(), kernel.stationary
    for k, dt in enumerate(np.diff(times)):
        p = reference.frozen_step(K, pi, p, energy.potential, energy.beta, dt)
        np.testing.assert_allclose(found.probabilities[k + 1], p, atol=1e-10)


def test_the_weak_form_minimises_the_papers_loss():
    rng = np.random.default_rng(1)
    kernel = random_kernel(5, rng)
    truth = FreeEnergy(rng.uniform(-1, 1, 5), 0.4)
    times = np.linspace(0, 1, 6)
    p = gradient_flow(kernel, truth, rng.dirichlet(np.ones(5)), times).probabilities
    fit = fit_weak(
        kernel, times, p, options=WeakOptions(quadrature="right", weighting="paper", ridge=0)
    )
    K, pi = kernel.matrix.toarray(), kernel.stationary
    rhos = list(p / pi)

    def loss(V, beta):
        return reference.loss(K, pi, rhos, 0.2, V, beta)

    V, beta = fit.energy.potential, fit.energy.beta
    least = loss(V, beta)
    for _ in range(20):
        change = 1e-3 * rng.normal(size=6)
        there, back = loss(V + change[:5], beta + change[5]), loss(V - change[:5], beta - change[5])
        assert min(there, back) > least
        # A quadratic's differences cancel at its minimum.
        assert there - back == pytest.approx(0, abs=1e-6 * (there + back - 2 * least))


@given(kernels_with_probability(), generators)
def test_the_hellinger_distance_is_the_papers(given_, rng):
    _, p, _ = given_
    q = rng.dirichlet(np.ones(p.size))
    assert float(hellinger(p, q)) == pytest.approx(reference.hellinger(p, q), abs=1e-14)
