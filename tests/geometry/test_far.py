"""Far pairs and point masses: the sparse elimination, the levels, the bound and its estimate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.geometry import TransportGeometry
from thalweg.geometry.elimination_order import Elimination
from thalweg.geometry.far import solve_far
from thalweg.geometry.graded import affordable, by_elimination, smooth_length, solve_graded
from thalweg.geometry.mesh import TimeMesh
from thalweg.geometry.path_problem import PathProblem
from thalweg.geometry.space_time import SignedFactor, SparseFactor
from thalweg.geometry.staggered import Staggered, graded_widths
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import ArithmeticMean, GeometricMean, LogMean, Mobility
from thalweg.status import Status

Array = NDArray[np.float64]


def staggered(
    kernel: MarkovKernel, p: Array, q: Array, intervals: int, mobility: Mobility | None = None
) -> Staggered:
    spec = (mobility or LogMean()).spec
    widths = graded_widths(intervals, (True, True), 2.0)
    return Staggered(kernel, spec, p, q, widths, LaplacianSolver.for_kernel(kernel))


def corners(n: int) -> tuple[Array, Array]:
    p, q = np.zeros(n), np.zeros(n)
    p[0], q[-1] = 1.0, 1.0
    return p, q


def dense(system: object, count: int, n: int) -> Array:
    """The matrix of a system, column by column of its product."""
    size = (2 * count - 1) * n
    columns = []
    for unit in np.eye(size):
        x, psi = unit[: (count - 1) * n].reshape(-1, n), unit[(count - 1) * n :].reshape(-1, n)
        columns.append(np.concatenate([part.ravel() for part in system.product(x, psi)]))  # type: ignore[attr-defined]
    return np.array(columns).T


@pytest.mark.parametrize("family", ["grid", "delaunay", "barabasi_albert"])
@pytest.mark.parametrize("kind", [SparseFactor, SignedFactor])
def test_elimination_solves_a_symmetric_quasi_definite_system(
    family: str, kind: type[SparseFactor] | type[SignedFactor]
) -> None:
    kernel = make_graph(family, 16, rng=np.random.default_rng(1))
    n, count = kernel.n_states, 5
    problem = staggered(kernel, *corners(n), count)
    curve, _ = problem.start()
    system, right_x, right_psi, _ = problem.linearise(curve, 0.1, 0.1 / curve.rho[1:-1])
    matrix = dense(system, count, n)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12 * np.abs(matrix).max())
    cut = (count - 1) * n
    assert np.linalg.eigvalsh(matrix[:cut, :cut]).min() > 0
    assert np.linalg.eigvalsh(matrix[cut:, cut:]).max() < 1e-12 * np.abs(matrix).max()
    x, psi = kind(system, Elimination.of(kernel)).solve(right_x, right_psi)
    image = system.product(x, psi)
    np.testing.assert_allclose(image[0], right_x, atol=1e-9 * np.abs(right_x).max())
    np.testing.assert_allclose(image[1], right_psi, atol=1e-9 * np.abs(right_psi).max())


def test_the_order_eliminates_every_state_once_and_foresees_its_cost() -> None:
    kernel = make_graph("delaunay", 200, rng=np.random.default_rng(0))
    order = Elimination.of(kernel)
    states = np.concatenate([front.states for front in order.fronts])
    assert sorted(states) == list(range(kernel.n_states))
    edges = np.concatenate([front.edges for front in order.fronts])
    assert sorted(edges) == list(range(kernel.n_edges))
    assert order.flops(10) == pytest.approx(1000 * order.flops(1))
    assert affordable(order, 1.0, 1e9) == 0
    assert affordable(order, 1e12, 1e9) >= 24


@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean(), ArithmeticMean()])
def test_the_bound_falls_to_the_distance_and_the_estimate_is_true(mobility: Mobility) -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0), weights=None)
    p, q = corners(9)
    exact = TransportGeometry(kernel, mobility).distance(p, q, tolerance=1e-7)
    found = solve_graded(
        staggered(kernel, p, q, 4, mobility),
        by_elimination(Elimination.of(kernel)),
        tolerance=2e-5,
        singular=(True, True),
        most_intervals=96,
    )
    assert found.status
    assert exact * (1 - 1e-6) <= found.distance <= exact * (1 + 3e-4)
    curve = found.centred.curve
    assert np.abs(found.problem.defect(curve)).max() < 1e-10


def test_the_estimated_error_is_true() -> None:
    kernel = make_graph("grid", 25, rng=np.random.default_rng(0), weights=None)
    problem, order = staggered(kernel, *corners(25), 4), Elimination.of(kernel)
    rough, fine = (
        solve_graded(
            problem,
            by_elimination(order),
            tolerance=tolerance,
            singular=(True, True),
            most_intervals=96,
        )
        for tolerance in (1e-4, 1e-6)
    )
    assert 1 / 3 < rough.error / (rough.distance - fine.distance) < 3


def test_any_curve_is_at_least_as_long_as_the_distance() -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0), weights=None)
    p, q = corners(9)
    exact = TransportGeometry(kernel).distance(p, q, tolerance=1e-6)
    problem = staggered(kernel, p, q, 24)
    assert smooth_length(problem, problem.start()[0].rho) > exact


@pytest.mark.parametrize("family", ["grid", "delaunay", "regular"])
def test_point_masses_on_a_hundred_states(family: str) -> None:
    kernel = make_graph(family, 100, rng=np.random.default_rng(3))
    p, q = corners(kernel.n_states)
    geometry = TransportGeometry(kernel)
    there = geometry.geodesic(p, q, tolerance=2e-2, n_steps=4)
    assert there.status
    assert there.method == "interior-point"
    assert there.error_estimate <= 2e-2 * there.distance
    np.testing.assert_allclose(there.probabilities.sum(axis=1), 1.0, atol=1e-8)
    back = geometry.geodesic(q, p, tolerance=2e-2, n_steps=4)
    assert back.distance == pytest.approx(there.distance, rel=1e-6)


def test_work_is_limited_and_the_limit_has_a_name() -> None:
    kernel = make_graph("grid", 144, rng=np.random.default_rng(0))
    p, q = corners(144)
    solver = LaplacianSolver.for_kernel(kernel)
    problem = PathProblem(kernel, LogMean().spec, p, q, TimeMesh.uniform(1, 3), solver)
    found = solve_far(problem, 1e-9, (True, True), 6)
    assert found.status is Status.WORK_LIMIT
    finer = solve_far(problem, 1e-2, (True, True), None)
    assert finer.status
    assert found.distance >= finer.distance - finer.error


@pytest.mark.slow
def test_point_masses_on_five_thousand_states() -> None:
    kernel = make_graph("delaunay", 5000, rng=np.random.default_rng(0))
    p, q = corners(kernel.n_states)
    found = TransportGeometry(kernel).geodesic(p, q, tolerance=2e-2, n_steps=4)
    assert found.status
