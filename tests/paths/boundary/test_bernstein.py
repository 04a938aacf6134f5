"""Positive Bernstein curves: meshes, factors without subtractions, Newton's step, the levels."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from strategies import MEANS
from thalweg.edges.static import Graph
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import HarmonicMean, LogMean, Mobility
from thalweg.paths.boundary.bernstein import BernsteinMesh, carried, graded_pieces
from thalweg.paths.boundary.positive import LEVELS, MAX_STEPS, solve_positive
from thalweg.paths.boundary.positive_newton import PositiveCurves, factor_all
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]


def problem(kernel: MarkovKernel, p: Array, q: Array, mobility: Mobility) -> PathProblem:
    solver = LaplacianSolver.for_kernel(kernel)
    return PathProblem(kernel, mobility.spec, p, q, TimeMesh.uniform(1, 3), solver)


def partial_supports(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    p, q = rng.random((2, n)) * (rng.random((2, n)) < 0.5)
    p[0] += 0.1
    q[-1] += 0.1
    return p / p.sum(), q / q.sum()


def test_a_refined_curve_is_the_same_curve() -> None:
    old = BernsteinMesh(graded_pieces(4, 0, 3.0, 0.125), 3, 5)
    new = BernsteinMesh(graded_pieces(8, 2, 3.0, 0.125), 6, 9)
    assert new.widths.sum() == pytest.approx(1.0, abs=1e-14)
    assert new.barrier.sum() == pytest.approx(1.0, abs=0.05)
    c = np.random.default_rng(0).random((4, 4, 2))
    c[1:, 0] = c[:-1, -1]
    finer = carried(old, c, new)
    assert finer.min() > 0

    def integral(mesh: BernsteinMesh, c: Array) -> Array:
        values = (mesh.values @ c).reshape(-1, 2)
        return np.asarray(mesh.weights @ values**2)

    fine = BernsteinMesh(old.widths, 3, 20, singular=False)
    finest = BernsteinMesh(new.widths, 6, 20, singular=False)
    np.testing.assert_allclose(integral(finest, finer), integral(fine, c), rtol=1e-12)
    np.testing.assert_allclose(finer[0, 0], c[0, 0], rtol=1e-13)
    np.testing.assert_allclose(finer[-1, -1], c[-1, -1], rtol=1e-13)


def test_factors_are_exact_for_weights_over_forty_decades() -> None:
    rng = np.random.default_rng(1)
    kernel = make_graph("delaunay", 8, rng=rng)
    source, target, conductance = kernel.edges
    rho = 10 ** rng.uniform(-40, 0, (1, 8))
    rate = np.zeros((1, 8))
    rate[0, [2, 5]] = 1.0, -1.0
    *_, action = factor_all(Graph.of(kernel, HarmonicMean()), rho, rate)
    with mpmath.workdps(120):
        matrix = mpmath.zeros(8)
        for x, y, c in zip(source, target, conductance, strict=True):
            s, t = mpmath.mpf(rho[0, x]), mpmath.mpf(rho[0, y])
            w = mpmath.mpf(c) * 2 * s * t / (s + t)
            for a, b, sign in ((x, x, 1), (y, y, 1), (x, y, -1), (y, x, -1)):
                matrix[int(a), int(b)] += sign * w
        keep = [i for i in range(8) if i != 5]
        grounded = mpmath.matrix([[matrix[i, j] for j in keep] for i in keep])
        right = mpmath.matrix([1 if i == 2 else 0 for i in keep])
        exact = float((right.T * mpmath.lu_solve(grounded, right))[0])
    assert action[0] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("mobility", MEANS, ids=repr)
def test_newtons_step_has_the_slope_and_the_curvature_of_the_barrier_function(
    mobility: Mobility,
) -> None:
    kernel = make_graph("watts_strogatz", 7, rng=np.random.default_rng(2))
    mesh = BernsteinMesh(graded_pieces(4, 1, 3.0, 0.125), 4, 6)
    curves = PositiveCurves(problem(kernel, *partial_supports(7, 3), mobility), mesh)
    c = curves.start()
    at = curves.evaluate(c, mesh.elevation @ c)
    assert at is not None
    mu = 0.1 * at.action
    step, decrement = curves.direction(at, mu, mu / np.where(at.e > 0, at.e, 1.0))
    np.testing.assert_allclose(step @ kernel.stationary, 0.0, atol=1e-10 * np.abs(step).max())
    assert not step[0, 0].any()
    assert not step[-1, -1].any()

    def value(t: float) -> float:
        new = c + t * step
        found = curves.evaluate(new, mesh.elevation @ new)
        assert found is not None
        return curves.value(found, mu)

    t = 1e-4
    slope = (value(t) - value(-t)) / (2 * t)
    curvature = (value(t) - 2 * value(0.0) + value(-t)) / t**2
    assert slope == pytest.approx(-decrement, rel=1e-5)
    assert curvature == pytest.approx(decrement, rel=1e-3)


@pytest.mark.parametrize("mobility", MEANS, ids=repr)
def test_tolerances_are_met_with_partial_supports(mobility: Mobility) -> None:
    kernel = make_graph("delaunay", 9, rng=np.random.default_rng(4))
    here = problem(kernel, *partial_supports(9, 5), mobility)
    rough, fine = (solve_positive(here, tolerance=t) for t in (1e-5, 1e-8))
    assert rough.status
    assert fine.status
    assert fine.error_estimate <= 1e-8 * fine.distance
    assert abs(rough.distance - fine.distance) <= 3 * rough.error_estimate


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_estimates_are_true_on_random_graphs(seed: int) -> None:
    """Partial supports, conductances over up to eight decades, all means in turn."""
    rng = np.random.default_rng([2026, seed])
    n = int(rng.integers(5, 13))
    linked = (rng.random((n, n)) < 0.4) | np.eye(n, k=1, dtype=bool)
    weights = np.triu(linked * 10 ** ((0, 2, 4, 8)[seed % 4] * (rng.random((n, n)) - 0.5)), 1)
    kernel = MarkovKernel.from_weights(weights + weights.T)
    here = problem(kernel, *partial_supports(n, seed), MEANS[seed // 4 % len(MEANS)])
    fine = solve_positive(here, tolerance=1e-8)
    for tolerance in (1e-4, 1e-6):
        found = solve_positive(here, tolerance=tolerance)
        if found.status:
            assert (
                abs(found.distance - fine.distance)
                <= 3 * found.error_estimate + fine.error_estimate
            )


def test_the_path_has_the_fluxes_of_the_curve() -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0))
    p, q = np.eye(9)[[0, -1]]
    found = solve_positive(problem(kernel, p, q, LogMean()), tolerance=1e-6)
    mesh = found.problem.mesh
    np.testing.assert_allclose(mesh.weights @ found.problem.gains(found.flux), q - p, atol=1e-12)
    again = found.problem.densities(found.problem.gains(found.flux))
    np.testing.assert_allclose(again, found.rho, rtol=1e-9, atol=1e-12)
    # Constant speed on a geodesic: the action is the squared length.
    action = mesh.weights @ found.problem.actions(found.rho, found.flux)
    assert np.sqrt(action) == pytest.approx(found.distance, rel=1e-5)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-8, 1e-12, 1e-17])
@pytest.mark.parametrize("mobility", [LogMean(), HarmonicMean()], ids=repr)
def test_every_tolerance_ends_and_says_how(mobility: Mobility, tolerance: float) -> None:
    kernel = MarkovKernel.from_weights(np.eye(4, k=1) + np.eye(4, k=-1))
    p, q = np.eye(4)[[0, -1]]
    here = problem(kernel, p, q, mobility)
    found = solve_positive(here, tolerance=tolerance)
    most = len(LEVELS) * MAX_STEPS
    assert found.steps <= most
    assert bool(found.status) == (found.error_estimate <= tolerance * found.distance)
    assert found.status or tolerance < 1e-11


def test_a_limit_on_the_stages_is_a_work_limit_with_a_bound() -> None:
    kernel = make_graph("grid", 16, rng=np.random.default_rng(0))
    p, q = np.eye(16)[[0, -1]]
    geometry = TransportGeometry(kernel)
    short = geometry.geodesic(p, q, tolerance=1e-8, max_stages=40)
    full = geometry.geodesic(p, q, tolerance=1e-8)
    assert short.status is Status.WORK_LIMIT
    assert full.status
    assert full.distance <= short.upper_bound
    assert short.distance - full.distance <= 3 * short.error_estimate
