"""Implicit Euler in entropy variables, and the hard corner: small beta, states that run empty."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from strategies import MOBILITIES
from thalweg._compile import njit
from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.flow import gradient_flow
from thalweg.flow.implicit_euler import ImplicitEuler
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    LogMean,
    formulas,
)
from thalweg.status import Status


@njit()
def log_mean_partials(spec, u, v):
    """A function that only compiled ones can call."""
    return formulas.log_mean_partials(spec, u, v)


def near_delta(n: int, state: int) -> np.ndarray:
    p = np.full(n, 1e-8)
    p[state] = 1.0
    return p / p.sum()


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
def test_logarithms_of_means(mobility):
    for u, v in [(0.3, 0.3), (0.1, 0.5), (-2.0, 3.0), (-40.0, 1.0), (1.0, -600.0)]:
        log_m, by_u, by_v = log_mean_partials(mobility.spec, u, v)
        m, m_u, m_v = mobility.from_logs(u, v)
        np.testing.assert_allclose([log_m], np.log(m), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose([by_u, by_v], [m_u / m, m_v / m], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("u", "v"), [(-3000.0, 1.0), (-5000.0, -4999.5), (2.0, -1e4)])
def test_the_logarithmic_mean_far_below_underflow(u, v):
    with mpmath.workdps(60):
        a, b = mpmath.mpf(u), mpmath.mpf(v)
        m = (mpmath.exp(a) - mpmath.exp(b)) / (a - b)
        by_u = (mpmath.exp(a) - m) / (a - b) / m
        expected = [float(mpmath.log(m)), float(by_u), float(1 - by_u)]
    np.testing.assert_allclose(log_mean_partials(LogMean().spec, u, v), expected, rtol=1e-13)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
@pytest.mark.parametrize("internal", [None, PowerEnergy(1.5)], ids=repr)
@pytest.mark.parametrize("interacting", [False, True])
def test_the_newton_matrix_is_the_derivative_of_the_residual(mobility, internal, interacting):
    rng = np.random.default_rng(1)
    kernel = make_graph("delaunay", 8, rng=rng)
    w = rng.normal(size=(8, 8))
    energy = FreeEnergy(
        rng.normal(size=8), 0.3, interaction=w + w.T if interacting else None, internal=internal
    )
    euler = ImplicitEuler(kernel, energy, mobility)
    u = rng.normal(size=8)
    problem = euler.problem(rng.normal(size=8) - 2 - euler.log_pi, 0.7)

    def residual(at: np.ndarray) -> np.ndarray:
        euler.evaluate(problem, at)
        return euler.work.residual.copy()

    step = 1e-6
    jacobian = np.stack(
        [(residual(u + step * e) - residual(u - step * e)) / (2 * step) for e in np.eye(8)], axis=1
    )
    expected = np.linalg.solve(jacobian, -residual(u))
    np.testing.assert_allclose(euler.direction(problem, u), expected, rtol=1e-6, atol=1e-8)
    # Mass is conserved: the columns of the Jacobian sum to the masses.
    np.testing.assert_allclose(jacobian.sum(axis=0), euler.masses(u), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta", [0.01, 0.001])
@pytest.mark.parametrize("h", [1e-6, 1e-3, 0.1, 1.0])
def test_one_euler_step_from_anywhere(beta, h):
    for family in GRAPH_FAMILIES:
        rng = np.random.default_rng(11)
        kernel = make_graph(family, 12, rng=rng)
        n = kernel.n_states
        energy = FreeEnergy(rng.uniform(-1, 1, n), beta)
        euler = ImplicitEuler(kernel, energy, LogMean())
        for u in (np.log(near_delta(n, 3) / kernel.stationary), rng.normal(0, 20, n)):
            u0 = u - np.log(euler.masses(u).sum())
            result = euler.step(u0, h, tolerance=1e-12)
            assert result.converged, family
            before = energy(kernel, euler.masses(u0))
            assert energy(kernel, euler.probabilities(result.u)) <= before + 1e-12


def test_sparse_and_dense_newton_agree(monkeypatch):
    rng = np.random.default_rng(2)
    kernel = make_graph("delaunay", 40, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, 40), 0.01)
    p0 = rng.dirichlet(np.ones(40))
    dense = gradient_flow(kernel, energy, p0, [0, 1], rtol=1e-6)
    monkeypatch.setattr("thalweg.flow.implicit_euler._DENSE_STATES", 10)
    sparse = gradient_flow(kernel, energy, p0, [0, 1], rtol=1e-6)
    np.testing.assert_allclose(dense.final, sparse.final, atol=1e-8)


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_hard_corner(family):
    times = [0, 0.1, 0.5, 1, 2, 5]
    rng = np.random.default_rng(4)
    kernel = make_graph(family, 6, rng=rng)
    n = kernel.n_states
    v = rng.uniform(-1, 1, n)
    delta = near_delta(n, int(np.argmax(v)))
    for beta, p0 in ((0.01, kernel.stationary), (0.001, delta)):
        energy = FreeEnergy(v, beta)
        flow = gradient_flow(kernel, energy, p0, times)
        assert flow.status is Status.CONVERGED
        assert flow.n_steps < 400
        values = [energy(kernel, p) for p in flow.probabilities]
        assert np.diff(values).max() <= 1e-14
        assert abs(flow.probabilities.sum(axis=1) - 1).max() < 1e-15
        fine = gradient_flow(kernel, energy, p0, times, rtol=2e-10, method="implicit")
        assert abs(fine.probabilities - flow.probabilities).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("family", GRAPH_FAMILIES)
@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("beta", [0.01, 0.001])
def test_hard_corner_on_more_states(family, n, beta):
    if family in ("complete", "k_partite") and n > 100:
        n = 100
    rng = np.random.default_rng(n)
    kernel = make_graph(family, n, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, kernel.n_states), beta)
    for p0 in (kernel.stationary, near_delta(kernel.n_states, 3)):
        flow = gradient_flow(kernel, energy, p0, [0, 1, 5], rtol=1e-4)
        assert flow.status is Status.CONVERGED
        assert flow.n_steps < 500
        assert np.diff([energy(kernel, p) for p in flow.probabilities]).max() <= 1e-14


def test_a_loose_tolerance_does_not_hold_a_delta_fast():
    # Newton must not stop at the start, where little mass has yet moved.
    rng = np.random.default_rng(1)
    kernel = make_graph("grid", 150, rng=rng)
    n = kernel.n_states
    energy = FreeEnergy(rng.uniform(-1, 1, n), 0.01)
    p0 = near_delta(n, int(np.argmax(energy.potential)))
    loose, tight = (gradient_flow(kernel, energy, p0, [0, 0.1, 1], rtol=r) for r in (1e-3, 1e-6))
    np.testing.assert_allclose(loose.probabilities, tight.probabilities, atol=1e-3)
    assert tight.probabilities[2].max() < 0.95


def test_a_state_that_empties_settles_on_its_balance():
    # A hill between two valleys: the hill's log density tends to the balance with them.
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    energy = FreeEnergy([0.0, 1.0, 0.0], beta=0.01)
    flow = gradient_flow(kernel, energy, [0.25, 0.5, 0.25], [0, 50], rtol=1e-10)
    depth = np.log(flow.final[1] / flow.final[0] / 2)
    np.testing.assert_allclose(depth, -100, rtol=1e-6)


@pytest.mark.parametrize("mobility", [LogMean(), ArithmeticMean()], ids=repr)
@pytest.mark.parametrize("beta", [1.0, 0.05])
def test_a_delta_is_the_limit_of_near_deltas(mobility, beta):
    rng = np.random.default_rng(3)
    kernel = make_graph("grid", 9, rng=rng)
    n = kernel.n_states
    energy = FreeEnergy(0.3 * rng.uniform(-1, 1, n), beta)
    delta = np.eye(n)[4]
    tiny = (delta + 1e-290) / (delta + 1e-290).sum()
    a = gradient_flow(kernel, energy, delta, [0, 0.5, 2], mobility=mobility)
    b = gradient_flow(kernel, energy, tiny, [0, 0.5, 2], mobility=mobility, method="implicit")
    assert a.status
    assert b.status
    np.testing.assert_allclose(a.probabilities[1:], b.probabilities[1:], atol=1e-6)


def test_without_noise_an_empty_state_stays_empty():
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    energy = FreeEnergy([1.0, 0.5, 0.0], beta=0.0)
    for method in ("auto", "implicit"):
        flow = gradient_flow(kernel, energy, [0.5, 0.5, 0.0], [0, 0.3], method=method)
        assert flow.status
        assert flow.final[2] < 1e-290
        assert flow.final[1] > 0.5
    moving = gradient_flow(kernel, energy, [0.3, 0.5, 0.2], [0, 1, 10], rtol=1e-6)
    assert moving.status
    assert moving.final[2] > 0.9
