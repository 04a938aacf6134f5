"""The edgewise calculus against the paper's dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import reference
from strategies import kernels_with_probability, mobilities
from thalweg.edges import static
from thalweg.edges.kinetic import stage_forces
from thalweg.geometry import operators
from thalweg.mobility import LogMean


@given(kernels_with_probability())
def test_the_laplacian_is_the_papers(given_):
    kernel, p, _ = given_
    rho, K = p / kernel.stationary, kernel.matrix.toarray()
    M = operators.transport_laplacian(kernel, p, LogMean()).toarray()
    np.testing.assert_allclose(M, reference.graph_laplacian(K, kernel.stationary, rho), atol=1e-14)
    A = reference.continuity_operator(K, rho)
    np.testing.assert_allclose(M, -np.diag(kernel.stationary) @ A, atol=1e-14)


@given(kernels_with_probability())
def test_the_inner_product_is_the_papers(given_):
    kernel, p, rng = given_
    phi, psi = rng.normal(size=(2, kernel.n_states))
    expected = reference.inner_rho(
        kernel.matrix.toarray(), kernel.stationary, p / kernel.stationary, phi, psi
    )
    assert operators.inner(kernel, p, phi, psi, LogMean()) == pytest.approx(expected, abs=1e-12)


@given(kernels_with_probability())
def test_integration_by_parts_and_the_papers_divergence(given_):
    kernel, _, rng = given_
    K, pi = kernel.matrix.toarray(), kernel.stationary
    psi = rng.normal(size=kernel.n_states)
    field = rng.normal(size=kernel.n_edges)
    dense = np.zeros_like(K)
    source, target, conductance = kernel.edges
    dense[source, target], dense[target, source] = field, -field
    divergence = operators.divergence(kernel, field)
    np.testing.assert_allclose(divergence, reference.divergence(K, dense), atol=1e-12)
    left = reference.inner_pi(K, pi, reference.gradient(psi), dense)
    assert left == pytest.approx(-(pi * psi) @ divergence, abs=1e-12)
    assert left == pytest.approx(conductance * field @ operators.gradient(kernel, psi), abs=1e-12)


@given(kernels_with_probability(), mobilities)
def test_flux_form_equals_the_matrix_and_conserves_mass(given_, mobility):
    kernel, p, rng = given_
    psi = rng.normal(size=kernel.n_states)
    weights = operators.transport_weights(kernel, p, mobility)
    source, target, _ = kernel.edges
    moved = static.apply_laplacian(source, target, weights, psi)
    M = operators.transport_laplacian(kernel, p, mobility)
    np.testing.assert_allclose(moved, M @ psi, atol=1e-13)
    assert moved.sum() == pytest.approx(0, abs=1e-14)


@given(kernels_with_probability())
def test_the_metric_turns_entropy_into_heat(given_):
    """`M(rho) log rho = pi (I - K) rho`: what makes the heat flow a gradient flow."""
    kernel, p, _ = given_
    rho = p / kernel.stationary
    left = operators.transport_laplacian(kernel, p, LogMean()) @ np.log(rho)
    right = kernel.stationary * (rho - kernel.matrix @ rho)
    np.testing.assert_allclose(left, right, atol=1e-13)


@given(kernels_with_probability(), mobilities)
def test_the_kinetic_derivative_is_a_derivative(given_, mobility):
    kernel, p, rng = given_
    rho = p / kernel.stationary
    psi = rng.normal(size=kernel.n_states)
    fall = operators.gradient(kernel, psi)

    def energy(r):
        return static.edge_weights(*kernel.edges, r, mobility.spec) @ fall**2

    graph = static.Graph.of(kernel, mobility)
    derivative = 2 * stage_forces(graph, rho[None], fall[None])[0]
    for x in range(kernel.n_states):
        h = 1e-6 * rho[x]
        step = np.zeros_like(rho)
        step[x] = h
        numeric = (energy(rho + step) - energy(rho - step)) / (2 * h)
        assert derivative[x] == pytest.approx(numeric, rel=1e-5, abs=1e-7 * energy(rho) / rho[x])
