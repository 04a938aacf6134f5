"""Far pairs and point masses: incomplete elimination, the levels, the bound and its estimate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import ArithmeticMean, GeometricMean, HarmonicMean, LogMean, Mobility
from thalweg.paths.boundary.graded import affordable, smooth_length, solve_graded
from thalweg.paths.boundary.incomplete import IncompleteFactor, IncompletePattern, by_incomplete
from thalweg.paths.boundary.staggered import Staggered
from thalweg.paths.choose import solve_far
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

Array = NDArray[np.float64]


def staggered(
    kernel: MarkovKernel, p: Array, q: Array, intervals: int, mobility: Mobility | None = None
) -> Staggered:
    spec = (mobility or LogMean()).spec
    mesh = TimeMesh.graded(intervals, (True, True))
    return Staggered(PathProblem(kernel, spec, p, q, mesh, LaplacianSolver.for_kernel(kernel)))


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
def test_elimination_with_all_fill_is_exact(family: str) -> None:
    kernel = make_graph(family, 16, rng=np.random.default_rng(1))
    n, count = kernel.n_states, 5
    problem = staggered(kernel, *corners(n), count)
    curve = problem.start()
    system, right_x, right_psi, _ = problem.linearise(curve, 0.1, 0.1 / curve.rho[1:-1])
    matrix = dense(system, count, n)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12 * np.abs(matrix).max())
    cut = (count - 1) * n
    assert np.linalg.eigvalsh(matrix[:cut, :cut]).min() > 0
    assert np.linalg.eigvalsh(matrix[cut:, cut:]).max() < 1e-12 * np.abs(matrix).max()
    pattern = IncompletePattern.of(kernel, deepest=n, growth=np.inf)
    x, psi, iterations = by_incomplete(pattern)(
        system, right_x, right_psi, np.zeros_like(right_psi)
    )
    image = system.product(x, psi)
    assert iterations <= 2
    np.testing.assert_allclose(image[0], right_x, atol=1e-9 * np.abs(right_x).max())
    np.testing.assert_allclose(image[1], right_psi, atol=1e-9 * np.abs(right_psi).max())


@pytest.mark.parametrize("family", ["grid", "regular", "barabasi_albert"])
def test_incomplete_elimination_needs_few_iterations(family: str) -> None:
    kernel = make_graph(family, 200, rng=np.random.default_rng(1))
    problem = staggered(kernel, *corners(kernel.n_states), 12)
    curve = problem.start()
    mu = 1e-3 * problem.action(curve)
    system, right_x, right_psi, _ = problem.linearise(curve, mu, mu / curve.rho[1:-1])
    exact = IncompletePattern.of(kernel, deepest=kernel.n_states, growth=np.inf)
    x, _, _ = by_incomplete(exact)(system, right_x, right_psi, curve.psi)
    near, _, iterations = by_incomplete(IncompletePattern.of(kernel))(
        system, right_x, right_psi, curve.psi
    )
    unit = system.scale[0]
    assert np.linalg.norm((near - x) / unit) < 1e-2 * np.linalg.norm(x / unit)
    assert iterations < 30


def test_the_pattern_has_every_state_and_edge_once_and_foresees_its_cost() -> None:
    kernel = make_graph("delaunay", 200, rng=np.random.default_rng(0))
    pattern = IncompletePattern.of(kernel)
    assert sorted(pattern.order) == list(range(kernel.n_states))
    assert np.unique(pattern.edges.slot).size == kernel.n_edges
    assert kernel.n_edges < pattern.later.size <= 2 * kernel.n_edges
    assert pattern.flops(10) == pytest.approx(1000 * pattern.flops(1))
    assert affordable(pattern, 1.0, 1e9) == 0
    assert affordable(pattern, 1e12, 1e9) >= 24


def test_a_system_that_is_not_finite_breaks_the_factorisation_and_is_told() -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0))
    problem = staggered(kernel, *corners(9), 4)
    curve = problem.start()
    system, *_ = problem.linearise(curve, 0.1, np.full(curve.rho[1:-1].shape, np.nan))
    pattern = IncompletePattern.of(kernel)
    assert IncompleteFactor(system, pattern).broken
    x, _, _ = by_incomplete(pattern)(system, curve.rho[1:-1], curve.psi, curve.psi)
    assert np.isnan(x).all()


@pytest.mark.parametrize("error", [1e-2, 1e-6])
def test_newton_steps_may_be_inexact(error: float) -> None:
    kernel = make_graph("grid", 100, rng=np.random.default_rng(0))
    problem = staggered(kernel, *corners(100), 4)
    pattern = IncompletePattern.of(kernel)

    def bound(error: float) -> float:
        found = solve_graded(
            problem,
            by_incomplete(pattern, tolerance=error),
            tolerance=2e-3,
            singular=(True, True),
            most_intervals=48,
        )
        assert found.status
        return found.distance

    assert bound(error) == pytest.approx(bound(1e-3), rel=2e-3)


@pytest.mark.parametrize(
    ("mobility", "exact"),
    [
        (LogMean(), 2.204345217618),
        (GeometricMean(), 2.396280469471),
        (ArithmeticMean(), 2.0),
        (HarmonicMean(), np.pi),
    ],
)
def test_two_states_have_a_closed_form(mobility: Mobility, exact: float) -> None:
    kernel = MarkovKernel.from_matrix(np.full((2, 2), 0.5))
    found = solve_graded(
        staggered(kernel, *corners(2), 4, mobility),
        by_incomplete(IncompletePattern.of(kernel)),
        tolerance=3e-4,
        singular=(True, True),
        most_intervals=384,
    )
    assert found.status
    assert found.distance == pytest.approx(exact, rel=6e-4)


@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean()])
@pytest.mark.parametrize("family", ["regular", "watts_strogatz", "delaunay"])
def test_both_methods_for_empty_states_agree(family: str, mobility: Mobility) -> None:
    kernel = make_graph(family, 12, rng=np.random.default_rng(2))
    p, q = corners(kernel.n_states)
    positive = TransportGeometry(kernel, mobility).geodesic(p, q, tolerance=1e-7, n_steps=4)
    assert positive.status
    assert positive.lower_bound <= positive.distance
    graded = solve_graded(
        staggered(kernel, p, q, 4, mobility),
        by_incomplete(IncompletePattern.of(kernel)),
        tolerance=1e-4,
        singular=(True, True),
        most_intervals=96,
    )
    assert graded.status
    assert graded.distance == pytest.approx(positive.distance, rel=5e-4)


@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean(), ArithmeticMean()])
def test_the_bound_falls_to_the_distance_and_the_estimate_is_true(mobility: Mobility) -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0), weights=None)
    p, q = corners(9)
    exact = TransportGeometry(kernel, mobility).distance(p, q, tolerance=1e-7)
    found = solve_graded(
        staggered(kernel, p, q, 4, mobility),
        by_incomplete(IncompletePattern.of(kernel)),
        tolerance=2e-5,
        singular=(True, True),
        most_intervals=96,
    )
    assert found.status
    assert exact * (1 - 1e-6) <= found.distance <= exact * (1 + 3e-4)
    # The fluxes make the densities, interval by interval, from one end to the other.
    gain, problem = found.problem.gains(found.flux), found.problem
    np.testing.assert_allclose(problem.densities(gain), found.rho, atol=1e-7)
    np.testing.assert_allclose(problem.mesh.weights @ gain, q - p, atol=1e-8)


def test_the_estimated_error_is_true() -> None:
    kernel = make_graph("grid", 25, rng=np.random.default_rng(0), weights=None)
    problem, pattern = staggered(kernel, *corners(25), 4), IncompletePattern.of(kernel)
    rough, fine = (
        solve_graded(
            problem,
            by_incomplete(pattern),
            tolerance=tolerance,
            singular=(True, True),
            most_intervals=96,
        )
        for tolerance in (1e-4, 1e-6)
    )
    assert 1 / 3 < rough.error_estimate / (rough.distance - fine.distance) < 3


def test_any_curve_is_at_least_as_long_as_the_distance() -> None:
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0), weights=None)
    p, q = corners(9)
    exact = TransportGeometry(kernel).distance(p, q, tolerance=1e-6)
    problem = staggered(kernel, p, q, 24)
    assert smooth_length(problem, problem.start().rho) > exact


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
    # The same discrete problem read backwards, each solved only to well within its estimate.
    assert abs(back.distance - there.distance) < 0.3 * there.error_estimate


def test_work_is_limited_and_the_limit_has_a_name() -> None:
    kernel = make_graph("grid", 144, rng=np.random.default_rng(0))
    p, q = corners(144)
    solver = LaplacianSolver.for_kernel(kernel)
    problem = PathProblem(kernel, LogMean().spec, p, q, TimeMesh.uniform(1, 3), solver)
    found = solve_far(problem, 1e-9, (True, True), 6)
    assert found.status is Status.WORK_LIMIT
    finer = solve_far(problem, 1e-2, (True, True), None)
    assert finer.status
    assert found.distance >= finer.distance - finer.error_estimate


def test_point_masses_on_an_expander() -> None:
    kernel = make_graph("regular", 600, rng=np.random.default_rng(5))
    p, q = corners(kernel.n_states)
    found = TransportGeometry(kernel).geodesic(p, q, tolerance=1e-2, n_steps=4)
    assert found.status
    finer = TransportGeometry(kernel).distance(p, q, tolerance=1e-3)
    assert finer <= found.distance <= finer * (1 + 1e-2)
    assert found.probabilities.min() >= 0.0
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["grid", "delaunay", "regular", "watts_strogatz"])
def test_point_masses_on_five_thousand_states(family: str) -> None:
    kernel = make_graph(family, 5000, rng=np.random.default_rng(0))
    p, q = corners(kernel.n_states)
    found = TransportGeometry(kernel).geodesic(p, q, tolerance=1e-2, n_steps=4)
    assert found.status


@pytest.mark.parametrize(("family", "n"), [("delaunay", 9), ("regular", 25)])
def test_estimates_are_true_at_two_tolerances(family: str, n: int) -> None:
    kernel = make_graph(family, n, rng=np.random.default_rng(0))
    geometry = TransportGeometry(kernel)
    loose = geometry.geodesic(*corners(kernel.n_states), tolerance=1e-4)
    tight = geometry.geodesic(*corners(kernel.n_states), tolerance=1e-7)
    assert tight.status
    assert tight.error_estimate <= 1e-7 * tight.distance
    # The estimates are true within a factor of three.
    assert abs(loose.distance - tight.distance) <= 3 * loose.error_estimate
