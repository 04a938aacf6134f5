"""Oracles, metric laws and convergence orders of W_K geodesics."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import expm

from strategies import MEANS, MOBILITIES
from thalweg.errors import ConvergenceError, InputError
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PowerHeatMean,
)
from thalweg.paths.interior.collocation import Start, solve_collocation
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

Array = NDArray[np.float64]
EVERY = (*MOBILITIES, PowerHeatMean(1.5))


def two_states(p: float, q: float) -> MarkovKernel:
    return MarkovKernel.from_matrix([[1 - p, p], [q, 1 - q]])


def at_ratio(kernel: MarkovKernel, p: float, q: float, r: float) -> Array:
    rho = np.array([(p + q) / q * (1 - r) / 2, (p + q) / p * (1 + r) / 2])
    return rho * kernel.stationary / (rho @ kernel.stationary)


def two_state_distance(mobility: Mobility, p: float, q: float, r0: float, r1: float) -> float:
    """`1/2 sqrt(1/p + 1/q) int dr / sqrt(m)`, with `r = sin` to tame the ends, in mpmath."""
    import mpmath

    def integrand(angle: mpmath.mpf) -> float:
        r = float(mpmath.sin(angle))
        c = float(mpmath.cos(angle))
        left, right = (1 - r, 1 + r) if abs(r) < 0.9 else _complement(angle)
        m = float(mobility((p + q) / q * left / 2, (p + q) / p * right / 2))
        return c / np.sqrt(m) if m > 0 else 0.0

    low, high = np.arcsin(r0), np.arcsin(r1)
    value = mpmath.quad(integrand, [low, 0.5 * (low + high), high])
    return float(0.5 * np.sqrt(1 / p + 1 / q) * float(value))


def _complement(angle: object) -> tuple[float, float]:
    """`1 - sin` and `1 + sin` without cancellation."""
    import mpmath

    return (
        float(2 * mpmath.sin(mpmath.pi / 4 - angle / 2) ** 2),
        float(2 * mpmath.sin(mpmath.pi / 4 + angle / 2) ** 2),
    )


@pytest.mark.parametrize(
    ("mobility", "short", "full"),
    [
        (LogMean(), 1.015114665012, 2.204345217618),
        (GeometricMean(), 1.023098200520, 2.396280469471),
        (ArithmeticMean(), 1.0, 2.0),
        (HarmonicMean(), 1.047197551197, np.pi),
    ],
)
def test_two_states_and_point_masses(mobility: Mobility, short: float, full: float) -> None:
    kernel = two_states(0.5, 0.5)
    geometry = TransportGeometry(kernel, mobility)
    near = geometry.distance([0.75, 0.25], [0.25, 0.75], tolerance=1e-11)
    assert near == pytest.approx(short, rel=1e-10)
    geodesic = geometry.geodesic([1, 0], [0, 1], tolerance=1e-10)
    assert geodesic.status
    assert geodesic.distance == pytest.approx(full, rel=1e-10)
    assert geodesic.error_estimate <= 1e-10 * full
    assert abs(geodesic.distance - full) <= geodesic.error_estimate + 1e-11


@pytest.mark.parametrize("mobility", MEANS, ids=repr)
def test_two_states_of_different_weight(mobility: Mobility) -> None:
    p, q = 0.3, 0.8
    kernel = two_states(p, q)
    expected = two_state_distance(mobility, p, q, -0.6, 0.7)
    found = TransportGeometry(kernel, mobility).distance(
        at_ratio(kernel, p, q, -0.6), at_ratio(kernel, p, q, 0.7), tolerance=1e-10
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_lumping_of_the_complete_graph_and_the_cube() -> None:
    kernel = MarkovKernel.from_weights(np.ones((7, 7)) - np.eye(7))
    block = np.array([0, 0, 0, 1, 1, 1, 1])
    p, q = 4 / 6, 3 / 6

    def state(r: float) -> Array:
        rho = np.array([(p + q) / q * (1 - r) / 2, (p + q) / p * (1 + r) / 2])[block]
        return rho / rho.sum()

    found = TransportGeometry(kernel).distance(state(-0.5), state(0.6), tolerance=1e-11)
    assert found == pytest.approx(1.043088802740, rel=1e-10)
    for d, expected in ((3, 1.243256479848), (6, 1.758230175309)):
        n = 2**d
        w = np.zeros((n, n))
        for x in range(n):
            for bit in range(d):
                w[x, x ^ (1 << bit)] = 1
        half = np.where(np.arange(n) & 1, 1.5, 0.5) / n
        geometry = TransportGeometry(MarkovKernel.from_weights(w))
        other = np.where(np.arange(n) & 1, 0.5, 1.5) / n
        assert geometry.distance(half, other, tolerance=1e-11) == pytest.approx(expected, rel=1e-10)


def random_pair(n: int, seed: int, spread: float) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    p, q = (kernel.stationary * np.exp(spread * rng.normal(size=n)) for _ in range(2))
    return kernel, p / p.sum(), q / q.sum()


@pytest.mark.parametrize("mobility", EVERY, ids=repr)
def test_metric_laws(mobility: Mobility) -> None:
    kernel, p, q = random_pair(12, 3, 0.6)
    geometry = TransportGeometry(kernel, mobility)
    geodesic = geometry.geodesic(p, q, tolerance=1e-10)
    assert geodesic.status
    d = geodesic.distance
    assert geometry.distance(q, p, tolerance=1e-10) == pytest.approx(d, rel=1e-10)
    middle = geodesic.at([0.4]).probabilities[0]
    first = geometry.distance(p, middle, tolerance=1e-9)
    second = geometry.distance(middle, q, tolerance=1e-9)
    assert first == pytest.approx(0.4 * d, rel=1e-5)
    assert first + second == pytest.approx(d, rel=1e-6)
    off = geometry.distance(p, kernel.stationary) + geometry.distance(kernel.stationary, q)
    assert off > d
    points = geodesic.at(np.linspace(0, 1, 7))
    np.testing.assert_allclose(points.speeds, d, rtol=2e-3)
    np.testing.assert_allclose(points.probabilities.sum(axis=1), 1, rtol=1e-13)
    assert geodesic.upper_bound == pytest.approx(d, rel=1e-8)


@pytest.mark.parametrize("mobility", EVERY, ids=repr)
def test_exp_undoes_log_and_log_measures_the_distance(mobility: Mobility) -> None:
    kernel, p, q = random_pair(10, 5, 0.4)
    geometry = TransportGeometry(kernel, mobility)
    psi = geometry.log(p, q)
    np.testing.assert_allclose(geometry.exp(p, psi), q, atol=2e-9)
    assert geometry.norm(p, psi) == pytest.approx(geometry.distance(p, q), rel=1e-7)
    back = geometry.geodesic(p, q, tolerance=1e-10).final_potential
    np.testing.assert_allclose(geometry.log(q, p), -back, atol=3e-6)


def test_named_logarithms_have_their_orders() -> None:
    kernel, p, q = random_pair(10, 7, 0.5)
    geometry = TransportGeometry(kernel)
    errors = []
    for share in (0.2, 0.1, 0.05):
        near = (1 - share) * p + share * q
        exact = geometry.log(p, near)
        scale = geometry.norm(p, exact)
        errors.append(
            [
                geometry.norm(p, approximate(p, near) - exact) / scale
                for approximate in (geometry.log_linearised, geometry.log_midpoint)
            ]
        )
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(abs(slopes[:, 0] - 1) < 0.2)
    assert np.all(abs(slopes[:, 1] - 2) < 0.3)


def test_tangent_inverts_velocity() -> None:
    kernel, p, q = random_pair(15, 1, 1.0)
    geometry = TransportGeometry(kernel, GeometricMean())
    psi = geometry.tangent(p, q - p)
    np.testing.assert_allclose(geometry.velocity(p, psi), q - p, atol=1e-14)
    assert geometry.inner(p, psi, psi) == pytest.approx(psi @ (q - p), rel=1e-10)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_collocation_has_order_twice_its_stages(order: int) -> None:
    kernel, p, q = random_pair(6, 2, 0.5)
    solver = LaplacianSolver.for_kernel(kernel)
    exact = TransportGeometry(kernel).distance(p, q, tolerance=1e-12)
    errors = []
    for pieces in (1, 2, 4):
        problem = PathProblem(kernel, LogMean().spec, p, q, TimeMesh.uniform(pieces, order), solver)
        rho = p / kernel.stationary + problem.mesh.times[:, None] * (q - p) / kernel.stationary
        start = Start(problem, rho, np.zeros(rho.shape), np.zeros(6))
        found = solve_collocation(start, tolerance=1e-11)
        assert found.status
        action = problem.mesh.weights @ (found.psi * found.gain).sum(axis=1)
        errors.append(abs(np.sqrt(action) - exact))
    slope = np.log2(errors[1] / errors[2])
    assert slope > 2 * order - 0.6


def test_two_solvers_agree() -> None:
    kernel, p, q = random_pair(20, 4, 0.2)
    geometry = TransportGeometry(kernel)
    one = geometry.geodesic(p, q, tolerance=1e-10, method="collocation")
    other = geometry.geodesic(p, q, tolerance=1e-10, method="interior-point")
    assert one.method == "collocation"
    assert other.method == "interior-point"
    assert one.distance == pytest.approx(other.distance, rel=1e-9)


def test_heat_flow_moves_with_the_fisher_information() -> None:
    kernel, p, _ = random_pair(10, 8, 0.5)
    geometry = TransportGeometry(kernel)
    generator = kernel.matrix.toarray() - np.eye(10)
    fisher = geometry.inner(p, np.log(p / kernel.stationary), np.log(p / kernel.stationary))
    ratios = []
    for d in (1e-2, 1e-3):
        q = p @ expm(d * generator)
        ratios.append(geometry.distance(p, q / q.sum(), tolerance=1e-10) / (d * np.sqrt(fisher)))
    assert abs(ratios[1] - 1) < 0.15 * abs(ratios[0] - 1) < 0.02


def test_zeros_at_both_ends_and_a_subgraph() -> None:
    n = 8
    path = MarkovKernel.from_weights(np.eye(n, k=1) + np.eye(n, k=-1))
    p = np.zeros(n)
    p[:3] = [3, 2, 1]
    q = np.zeros(n)
    q[:3] = [1, 2, 3]
    geodesic = TransportGeometry(path).geodesic(p / 6, q / 6, tolerance=1e-6)
    assert geodesic.status
    small = MarkovKernel(
        path.stationary[:4] / path.stationary[:4].sum(),
        type(path.edges)(path.edges.source[:3], path.edges.target[:3], path.edges.conductance[:3]),
    )
    # The states beyond stay empty, so the distance is that of the piece, rescaled.
    scale = path.stationary[:4].sum()
    lifted = MarkovKernel(
        small.stationary,
        type(path.edges)(small.edges.source, small.edges.target, small.edges.conductance / scale),
    )
    part = TransportGeometry(lifted).geodesic(p[:4] / 6, q[:4] / 6, tolerance=1e-6)
    assert geodesic.distance == pytest.approx(part.distance, rel=1e-5)


def test_densities_to_1e_minus_12_and_relabelling() -> None:
    rng = np.random.default_rng(0)
    kernel = make_graph("watts_strogatz", 12, rng=rng)
    p, q = 10 ** rng.uniform(-12, 0, (2, 12))
    p, q = p / p.sum(), q / q.sum()
    d = TransportGeometry(kernel).distance(p, q, tolerance=1e-7)
    order = rng.permutation(12)
    shuffled = MarkovKernel.from_matrix(kernel.matrix.toarray()[np.ix_(order, order)])
    assert TransportGeometry(shuffled).distance(p[order], q[order], tolerance=1e-7) == (
        pytest.approx(d, rel=2e-7)
    )
    assert TransportGeometry(kernel).distance(q, p, tolerance=1e-7) == pytest.approx(d, rel=1e-10)


def test_w1_bounds_the_arithmetic_distance_from_below() -> None:
    """With the arithmetic mean `sqrt(2) W_K >= W_1` for the hop distance (POT's exact value)."""
    import ot

    kernel, p, q = random_pair(15, 9, 1.0)
    from scipy.sparse.csgraph import shortest_path

    hops = shortest_path(kernel.flow_matrix > 0, unweighted=True)
    w1 = ot.emd2(p, q, hops)
    assert np.sqrt(2) * TransportGeometry(kernel, ArithmeticMean()).distance(p, q) >= w1


def test_equal_ends_and_bad_input() -> None:
    kernel, p, q = random_pair(5, 0, 0.3)
    geometry = TransportGeometry(kernel)
    same = geometry.geodesic(p, p)
    assert same.distance == 0
    assert same.status
    with pytest.raises(InputError, match="kernel has 5 states"):
        geometry.distance(p[:4], q)
    with pytest.raises(InputError, match="sums to"):
        geometry.distance(2 * p, q)
    with pytest.raises(InputError, match="cannot be negative"):
        geometry.distance(p - 0.5, q)
    with pytest.raises(InputError, match="no finite potential"):
        geometry.log([1, 0, 0, 0, 0], q)
    with pytest.raises(InputError, match="sum"):
        geometry.tangent(p, q)


def test_an_unreachable_tolerance_is_reported_with_the_best_bound() -> None:
    kernel = two_states(0.5, 0.5)
    geometry = TransportGeometry(kernel)
    geodesic = geometry.geodesic([1, 0], [0, 1], tolerance=1e-10, max_stages=40)
    assert geodesic.status is not Status.CONVERGED
    assert geodesic.upper_bound * (1 + 1e-11) > 2.204345217618
    assert abs(geodesic.distance - 2.204345217618) < 3 * geodesic.error_estimate
    with pytest.raises(ConvergenceError, match="was not met"):
        TransportGeometry(kernel, ArithmeticMean()).distance([1, 0], [0, 1], tolerance=1e-17)


def test_shooting_stops_at_the_boundary() -> None:
    kernel, p, _ = random_pair(6, 1, 0.3)
    shot = TransportGeometry(kernel).shoot(p, 40 * np.arange(6.0), [0.0, 1.0])
    assert shot.status is Status.LEFT_SIMPLEX
