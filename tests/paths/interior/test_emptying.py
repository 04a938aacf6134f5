"""States that all but empty on the way: local systems, clusters, paths lifted off the boundary."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.edges import kinetic
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver, balanced
from thalweg.mobility import LogMean
from thalweg.paths.interior import emptying
from thalweg.paths.interior.system import apply_blocks, invert_blocks, local_blocks
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem

Array = NDArray[np.float64]
SPEC = LogMean().spec


def problem_on(mesh: TimeMesh, n: int, seed: int) -> PathProblem:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    p, q = (kernel.stationary * np.exp(rng.normal(size=n)) for _ in range(2))
    solver = LaplacianSolver.for_kernel(kernel)
    return PathProblem(kernel, SPEC, p / p.sum(), q / q.sum(), mesh, solver)


def iterate(problem: PathProblem, seed: int) -> tuple[Array, Array, Array]:
    """Densities around the chord, two of them small, and small potentials."""
    rng = np.random.default_rng(seed)
    t, pi = problem.mesh.times, problem.kernel.stationary[:, None]
    r = (np.outer(problem.p0, 1 - t) + np.outer(problem.p1, t)) / pi
    r[[3, 7]] *= 0.01
    q, middle = 0.1 * rng.normal(size=r.shape), 0.1 * rng.normal(size=pi.size)
    return r, q, middle


def local_of(problem: PathProblem, barrier: float) -> emptying.Local:
    ends, mid = problem.mesh.from_ends.T.copy(), problem.mesh.from_middle.T.copy()
    base, weights = problem.base.T.copy(), problem.mesh.weights
    return emptying.Local(problem.graph, problem.gap, base, ends, mid, weights, barrier)


def clusters_of(kernel: MarkovKernel, states: list[int]) -> emptying.Clusters:
    urge = np.zeros(kernel.n_states)
    urge[states] = 2.0
    found = emptying.find_clusters(kernel.adjacency, urge)
    assert found is not None
    return found


def residuals(
    local: emptying.Local, problem: PathProblem, at: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    r, q, middle = at
    pi, b = problem.kernel.stationary[:, None], problem.mesh.weights
    table = np.empty((problem.kernel.n_edges, 6, b.size))
    gain, force, _, _ = kinetic.linearise(problem.graph, r, q + middle[:, None], b, table)
    r1 = local.base + gain @ local.ends / pi - r
    r2 = -((force / pi + local.barrier / r) @ local.mid) - q
    return r1, r2, problem.gap - gain @ b


@pytest.mark.parametrize("count", [1, 16, 21])
def test_inverses_of_local_blocks(count: int) -> None:
    rng = np.random.default_rng(0)
    mesh = TimeMesh.uniform(1, 4)
    ends, mid = mesh.from_ends.T.copy(), mesh.from_middle.T.copy()
    m, a, k = rng.normal(size=(3, 40, 4))
    # A pivot that vanishes, to be met by exchanges of rows.
    a[0, 0] = 1.0 / ends[0, 0]
    mass = np.ones((40, 4)) + rng.random((40, 4))
    mass[0] = 1.0
    states = np.arange(count, dtype=np.int64)
    blocks = invert_blocks(states, (m, a, k), mass, ends, mid)
    w, q = rng.normal(size=(2, 40, 4))
    before = np.concatenate([w, q], axis=1)
    apply_blocks(*blocks, w, q)
    after = np.concatenate([w, q], axis=1)
    matrices = local_blocks(states[None], (m, a, k), mass, ends, mid)[0]
    for x in states:
        block = matrices[:, :, x]
        assert np.abs(block @ after[x] - before[x]).max() < 1e-4 * np.abs(after[x]).max() + 1e-5
    assert np.array_equal(after[count:], before[count:])


def test_clusters_do_not_touch() -> None:
    kernel = make_graph("grid", 400, rng=np.random.default_rng(0))
    source, target, _ = kernel.edges
    urge = np.random.default_rng(1).random(400) * 1.06
    urge[:5] = 3.0
    found = emptying.find_clusters(kernel.adjacency, urge)
    assert found is not None
    label = np.full(400, -1)
    for k, (low, high) in enumerate(zip(found.bounds[:-1], found.bounds[1:], strict=True)):
        label[found.states[low:high]] = k
    one, other = label[source], label[target]
    assert np.all((one == other) | (one < 0) | (other < 0))
    assert np.array_equal(np.flatnonzero(label >= 0), np.sort(found.states))
    assert np.all(urge[found.states] > 1)
    assert set(np.flatnonzero(urge > 1)) == set(found.states)
    assert emptying.find_clusters(kernel.adjacency, np.zeros(400)) is None
    assert emptying.find_clusters(kernel.adjacency, np.full(400, 2.0)) is None


@pytest.mark.parametrize("barrier", [0.0, 1e-3])
def test_settled_states_obey_their_equations(barrier: float) -> None:
    problem = problem_on(TimeMesh.uniform(1, 4), 60, 0)
    local, at = local_of(problem, barrier), iterate(problem, 0)
    neighbour = int(problem.kernel.edges.target[problem.kernel.edges.source == 3][0])
    clusters = clusters_of(problem.kernel, [3, neighbour, 50])
    others = np.setdiff1d(np.arange(60), clusters.states)
    before = [x[others] for x in at]
    emptying.settle(clusters, local, 1e-12, *at)
    for rest in residuals(local, problem, at):
        assert np.abs(rest[clusters.states]).max() < 1e-9
    assert all(np.array_equal(x[others], y) for x, y in zip(at, before, strict=True))


def test_states_taken_out_follow_the_linearised_equations() -> None:
    problem = problem_on(TimeMesh.uniform(1, 3), 60, 1)
    local, at = local_of(problem, 1e-3), iterate(problem, 1)
    kernel, b, pi = problem.kernel, problem.mesh.weights, problem.kernel.stationary[:, None]
    source, target, _ = kernel.edges
    neighbour = int(target[source == 3][0])
    clusters = clusters_of(kernel, [3, neighbour, 50])
    table = np.empty((kernel.n_edges, 6, 3), np.float32)
    r, q, middle = at
    kinetic.linearise(problem.graph, r, q + middle[:, None], b, table)
    response = clusters.response(local, table, *at)
    rng = np.random.default_rng(2)
    w, dq, dm = rng.normal(size=r.shape), rng.normal(size=r.shape), rng.normal(size=60)
    right = rng.normal(size=(clusters.states.size, 7))
    response.follow(w, dq, dm, right)
    gain, push = np.empty(r.shape), np.empty(r.shape)
    kinetic.product(problem.graph, table, dq + dm[:, None], w, gain, push)
    rows = np.concatenate(
        [
            w - (gain @ local.ends) / pi / r,
            dq + ((push / pi - local.barrier * w) / r) @ local.mid,
            (gain @ b)[:, None],
        ],
        axis=1,
    )
    assert rows[clusters.states] == pytest.approx(right, rel=1e-3, abs=1e-3)


def chord_flux(problem: PathProblem) -> Array:
    """Constant fluxes along the straight line from `p0` to `p1`."""
    source, target, _ = problem.kernel.edges
    mesh, pi = problem.mesh, problem.kernel.stationary
    rho = problem.p0 / pi + mesh.times[:, None] * problem.gap / pi
    average = mesh.weights @ problem.weights(rho)
    psi = problem.solver.factor(average).solve(balanced(problem.gap), tolerance=1e-12).x
    return np.tile(average * (psi[source] - psi[target]), (mesh.size, 1))


def test_a_path_that_dips_is_lifted_to_an_admissible_one() -> None:
    problem = problem_on(TimeMesh.uniform(1, 5), 30, 3)
    kernel, pi, mesh = problem.kernel, problem.kernel.stationary, problem.mesh
    source, target, _ = kernel.edges
    flux = chord_flux(problem)
    # State 5 all but empties: its edges carry, besides, a flux that falls and rises in time.
    own = (source == 5) | (target == 5)
    shape = -np.sign(mesh.times - 0.5) * (np.abs(mesh.times - 0.5) < 0.3)
    shape -= mesh.weights @ shape
    least = problem.densities(problem.gains(flux))[:, 5].min()
    unit = np.where(source == 5, -1.0, 1.0) * own
    for size in np.geomspace(1e-3, 10, 400) * pi[5] * least:
        trial = flux + size * np.outer(shape, unit)
        inner = problem.densities(problem.gains(trial))
        t = np.linspace(0.01, 0.99, 4001)
        piece, place = mesh.locate(t)
        late = mesh.is_late(piece, place)[:, None]
        gain = problem.gains(trial)
        rho = np.where(late, problem.p1, problem.p0) / pi
        rho = rho + mesh.integral_from_ends(piece, place) @ gain / pi
        if inner.min() > 0 > rho[:, 5].min():
            break
    assert inner.min() > 0 > rho[:, 5].min()
    at = mesh.interpolate(piece, place)
    lifted, fluxes = problem._lifted(rho, at @ gain, at @ trial, inner)
    assert lifted.min() > 0
    assert lifted @ pi == pytest.approx(np.ones(t.size), abs=1e-12)
    slope = np.diff(lifted, axis=0) / np.diff(t)[:, None] * pi
    rates = problem.gains(fluxes)
    between = 0.5 * (rates[1:] + rates[:-1])
    kinks = np.abs(slope - between).max(axis=1) > 1e-3 * np.abs(slope).max()
    assert kinks.sum() <= 4
    length = problem.length(trial)
    assert length.feasible
    assert np.isfinite(length.upper)


@pytest.mark.parametrize(("family", "spread", "seed"), [("delaunay", 1.3, 0), ("grid", 1.4, 1)])
def test_the_error_estimate_holds_where_states_empty(family: str, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = make_graph(family, 500, rng=rng)
    p, q = (kernel.stationary * np.exp(spread * rng.normal(size=500)) for _ in range(2))
    geometry = TransportGeometry(kernel)
    rough = geometry.geodesic(p / p.sum(), q / q.sum(), tolerance=1e-4)
    fine = geometry.geodesic(p / p.sum(), q / q.sum(), tolerance=1e-6)
    assert rough.status
    assert fine.status
    assert abs(rough.distance - fine.distance) <= rough.error_estimate + fine.error_estimate
    assert fine.distance - fine.error_estimate <= rough.upper_bound
