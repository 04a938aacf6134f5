"""JKO steps from point masses and empty states, for every mean and kind of energy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.flow.jko import jko_step
from thalweg.geometry import TransportGeometry
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import ArithmeticMean, GeometricMean, HarmonicMean, LogMean, Mobility
from thalweg.paths.end import FreeEnd
from thalweg.paths.free_end import step as free_step
from thalweg.paths.free_end.step import solve_staggered
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

Array = NDArray[np.float64]


def random_problem(seed: int) -> tuple[MarkovKernel, FreeEnergy, Array, float]:
    """A start with empty states; beta from 0.003 to 1, tau from 0.01 to 100."""
    rng = np.random.default_rng([seed, 4])
    family = list(GRAPH_FAMILIES)[seed % len(GRAPH_FAMILIES)]
    kernel = make_graph(family, int(rng.integers(6, 25)), rng=rng)
    n = kernel.n_states
    p = np.zeros(n)
    if seed % 2:
        p[rng.integers(n)] = 1.0
    else:
        p[: max(1, n // 2)] = rng.dirichlet(np.ones(max(1, n // 2)))
    beta, tau = 10 ** rng.uniform(-2.5, 0), 10 ** rng.uniform(-2, 2)
    return kernel, FreeEnergy(rng.uniform(-1, 1, n), beta), p, tau


def free_end(kernel: MarkovKernel, energy: FreeEnergy, p: Array, tau: float) -> PathProblem:
    grounded = LaplacianSolver.for_kernel(kernel, grounded=True)
    mesh, end = TimeMesh.uniform(1, 3), FreeEnd(kernel, energy, tau)
    return PathProblem(kernel, LogMean().spec, p, p, mesh, grounded, end)


def check(
    kernel: MarkovKernel, energy: FreeEnergy, p: Array, tau: float, mobility: Mobility
) -> None:
    step = jko_step(kernel, energy, p, tau, mobility=mobility)
    assert step.status
    assert step.first_order_residual < 1e-8
    lost = energy(kernel, p) - step.energy
    assert lost >= step.distance**2 / (2 * tau) * (1 - 1e-2) - 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_every_family(seed: int) -> None:
    check(*random_problem(seed), LogMean())


@pytest.mark.parametrize("mobility", [GeometricMean(), ArithmeticMean(), HarmonicMean()])
@pytest.mark.parametrize("seed", [12, 13, 18])
def test_every_mean(seed: int, mobility: Mobility) -> None:
    check(*random_problem(seed), mobility)


@pytest.mark.parametrize("kind", ["no entropy", "power 2", "power 1/2", "repulsion", "attraction"])
@pytest.mark.parametrize("seed", [14, 15, 18])
def test_every_kind_of_energy(seed: int, kind: str) -> None:
    kernel, energy, p, tau = random_problem(seed)
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(kernel.n_states, kernel.n_states))
    a = a @ a.T / kernel.n_states
    v, beta = energy.potential, energy.beta
    energy = {
        "no entropy": FreeEnergy(v, 0.0),
        "power 2": FreeEnergy(v, beta, internal=PowerEnergy(2.0)),
        "power 1/2": FreeEnergy(v, beta, internal=PowerEnergy(0.5)),
        "repulsion": FreeEnergy(v, beta, interaction=a),
        "attraction": FreeEnergy(v, beta, interaction=-0.3 * a),
    }[kind]
    check(kernel, energy, p, tau, LogMean())


@pytest.mark.parametrize("tau", [0.05, 1.0, 30.0])
def test_the_distance_is_that_of_the_geodesic(tau: float) -> None:
    kernel, energy, p, _ = random_problem(1)
    step = jko_step(kernel, energy, p, tau)
    exact = TransportGeometry(kernel).distance(p, step.probability, tolerance=1e-5)
    # The estimate is one of a mesh of second order: a factor of three for what it leaves out.
    assert abs(step.distance - exact) <= (3 * step.path_error + 1e-5) * exact
    assert step.path_error < 0.01


@pytest.mark.parametrize("tau", [0.2, 1.0, 5.0])
def test_two_states_from_a_point_mass(tau: float) -> None:
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    energy = FreeEnergy([0.5, 0.0], beta=0.3)
    geometry = TransportGeometry(kernel)

    def total(x: float) -> float:
        q = np.array([1 - x, x])
        return energy(kernel, q) + geometry.distance([1, 0], q, tolerance=1e-9) ** 2 / (2 * tau)

    best = minimize_scalar(
        total, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-9}
    )
    step = jko_step(kernel, energy, [1.0, 0.0], tau)
    assert step.status
    assert step.probability[1] == pytest.approx(best.x, rel=2e-3)
    assert step.energy + step.distance**2 / (2 * tau) == pytest.approx(best.fun, abs=1e-5)


def test_of_second_order_where_both_solvers_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    kernel = make_graph("delaunay", 12, rng=rng)
    p = kernel.stationary * np.exp(0.5 * rng.normal(size=12))
    p /= p.sum()
    energy, tau = FreeEnergy(rng.normal(size=12), 0.5), 1.0
    exact = jko_step(kernel, energy, p, tau, path_tolerance=1e-9).probability
    problem = free_end(kernel, energy, p, tau)
    errors = []
    for most in (12, 24, 48):
        monkeypatch.setattr(free_step, "_MOST", most)
        found = solve_staggered(problem, tolerance=1e-10, path_tolerance=1e-12)
        assert found is not None
        assert found.status is Status.CONVERGED
        errors.append(float(np.abs(kernel.stationary * np.exp(found.y) - exact).max()))
    slopes = np.diff(np.log2(errors))
    assert errors[-1] < 1e-4
    np.testing.assert_allclose(slopes, -2.0, atol=0.3)


def test_a_graph_too_large_for_elimination_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, energy, p, tau = random_problem(3)
    monkeypatch.setattr(free_step, "_FLOPS", 1.0)
    problem = free_end(kernel, energy, p, tau)
    assert solve_staggered(problem, tolerance=1e-9, path_tolerance=1e-6) is None
    # The other solver then takes over, and its status is right.
    step = jko_step(kernel, energy, p, tau)
    assert step.status is not Status.CONVERGED or step.first_order_residual < 1e-8
