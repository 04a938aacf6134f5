"""The compiled passes over edges against literal sums and finite differences, for every mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigvalsh

from strategies import MOBILITIES, random_kernel
from thalweg.edges import fluxes, implicit_euler, kinetic, static
from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.flow.implicit_euler import ImplicitEuler
from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean, Mobility, PorousMediumMean

STEP = 1e-6


@pytest.fixture
def kernel() -> MarkovKernel:
    return random_kernel(7, np.random.default_rng(3))


@pytest.fixture
def rho() -> np.ndarray:
    return np.random.default_rng(4).uniform(0.2, 3.0, 7)


def literal_laplacian(kernel: MarkovKernel, weights: np.ndarray) -> np.ndarray:
    m = np.zeros((kernel.n_states, kernel.n_states))
    for x, y, w in zip(kernel.edges.source, kernel.edges.target, weights, strict=True):
        d = np.zeros(kernel.n_states)
        d[x], d[y] = 1.0, -1.0
        m += w * np.outer(d, d)
    return m


def test_every_form_of_the_laplacian_is_the_sum_over_edges(kernel: MarkovKernel) -> None:
    rng = np.random.default_rng(0)
    source, target, _ = kernel.edges
    weights, psi = rng.random(source.size), rng.normal(size=7)
    m = literal_laplacian(kernel, weights)
    np.testing.assert_allclose(static.dense_laplacian(source, target, weights, 7), m, atol=1e-14)
    np.testing.assert_allclose(
        static.apply_laplacian(source, target, weights, psi), m @ psi, atol=1e-13
    )
    flux = weights * (psi[source] - psi[target])
    np.testing.assert_allclose(static.edge_divergence(source, target, flux, 7), m @ psi, atol=1e-13)
    gain = kinetic.flux_gain(source, target, flux[None], 7)[0]
    np.testing.assert_allclose(gain, m @ psi, atol=1e-13)


def test_the_symmetrised_laplacian_has_the_rates_of_the_walk(kernel: MarkovKernel) -> None:
    pi = kernel.stationary
    found = eigvalsh(static.symmetrised(*kernel.edges, pi))
    walk = np.eye(7) - kernel.matrix.toarray()
    np.testing.assert_allclose(found, np.sort(np.linalg.eigvals(walk).real), atol=1e-12)
    lifted = static.symmetrised(*kernel.edges, pi, ground=pi)
    np.testing.assert_allclose(eigvalsh(lifted), found + 1.0, atol=1e-12)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
def test_kinetic_terms_are_derivatives_of_the_action(
    kernel: MarkovKernel, rho: np.ndarray, mobility: Mobility
) -> None:
    rng = np.random.default_rng(1)
    graph = static.Graph.of(kernel, mobility)
    both, psi = np.stack([rho, rho[::-1]]), rng.normal(size=(2, 7))
    differences = psi[:, graph.source] - psi[:, graph.target]

    def energy(rho: np.ndarray) -> np.ndarray:
        return 0.5 * (static.stage_weights(graph, rho) * differences**2)

    slopes = np.empty((2, 7))
    for x in range(7):
        moved = np.zeros(7)
        moved[x] = STEP
        slopes[:, x] = (energy(both + moved) - energy(both - moved)).sum(axis=1) / (2 * STEP)
    force = kinetic.stage_forces(graph, both, differences)
    np.testing.assert_allclose(force, slopes, rtol=1e-6, atol=1e-8)
    weights = static.stage_weights(graph, both)
    single = static.edge_weights(*kernel.edges, rho, mobility.spec)
    np.testing.assert_allclose(single, weights[0], rtol=1e-13)
    flux = weights * differences
    np.testing.assert_allclose(kinetic.flux_force(graph, both, flux), force, rtol=1e-9)
    table, again = kinetic.linearise_stages(graph, both, differences)
    np.testing.assert_allclose(again, force, rtol=1e-9, atol=1e-12)
    action = 2.0 * energy(both).sum(axis=1)
    np.testing.assert_allclose(action, kinetic.flux_action(graph, both, flux), rtol=1e-12)
    np.testing.assert_allclose(table[:, :, 0], weights, rtol=1e-12)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
def test_the_linearised_system_is_the_derivative_of_gain_and_force(
    kernel: MarkovKernel, rho: np.ndarray, mobility: Mobility
) -> None:
    rng = np.random.default_rng(2)
    graph = static.Graph.of(kernel, mobility)
    density, psi = rho[:, None], rng.normal(size=(7, 1))
    w, q = rng.normal(size=(7, 1)), rng.normal(size=(7, 1))
    table = np.empty((kernel.n_edges, 6, 1))

    def at(share: float) -> tuple[np.ndarray, np.ndarray]:
        moved = density * (1.0 + share * w)
        gain, force, _, _ = kinetic.linearise(graph, moved, psi + share * q, np.ones(1), table)
        return gain, force * density

    (gain, force), (before, pulled) = at(STEP), at(-STEP)
    at(0.0)
    out, push = np.empty((7, 1)), np.empty((7, 1))
    kinetic.product(graph, table, q, w, out, push)
    np.testing.assert_allclose(out, (gain - before) / (2 * STEP), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(push, (force - pulled) / (2 * STEP), rtol=1e-6, atol=1e-7)
    m, a, k = kinetic.diagonals(graph, table)
    for x in range(7):
        unit = np.zeros((7, 1))
        unit[x] = 1.0
        kinetic.product(graph, table, unit, 0 * unit, out, push)
        assert out[x] == pytest.approx(m[x])
        assert push[x] == pytest.approx(a[x])
        kinetic.product(graph, table, 0 * unit, unit, out, push)
        assert push[x] == pytest.approx(k[x])


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
def test_the_flux_along_an_edge_is_the_mean_times_the_fall(
    kernel: MarkovKernel, rho: np.ndarray, mobility: Mobility
) -> None:
    energy = FreeEnergy(np.linspace(-1, 1, 7), 0.4)
    source, target, c = kernel.edges
    graph = static.Graph.of(kernel, mobility)
    drive = fluxes.Drive.of(energy, mobility, kernel.stationary)
    found = fluxes.edge_fluxes(graph, drive, rho)
    f = energy.potential + 0.4 * np.log(rho)
    expected = c * mobility(rho[source], rho[target]) * (f[source] - f[target])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    p = kernel.stationary * rho
    out, work = np.empty(7), np.empty(7)
    fluxes.accumulate_velocity(*graph, *drive, p, work, out)
    np.testing.assert_allclose(
        out, -static.edge_divergence(source, target, expected, 7), rtol=1e-9, atol=1e-13
    )


@pytest.mark.parametrize(
    ("energy", "mobility"),
    [
        (FreeEnergy(np.linspace(-1, 1, 7), 0.4), LogMean()),
        (FreeEnergy(np.linspace(-1, 1, 7), 0.4), PorousMediumMean(1.5)),
        (FreeEnergy(np.linspace(-1, 1, 7), 0.3, internal=PowerEnergy(2.0)), LogMean()),
    ],
    ids=["matched", "unmatched", "power"],
)
def test_the_matrix_of_an_implicit_step_is_the_slope_of_its_residual(
    kernel: MarkovKernel, rho: np.ndarray, energy: FreeEnergy, mobility: Mobility
) -> None:
    step, h = ImplicitEuler(kernel, energy, mobility), 0.3
    before = np.log(rho / (kernel.stationary @ rho))
    u = before + 0.2 * np.random.default_rng(5).normal(size=7)
    problem = step.problem(before, h)

    def residual(u: np.ndarray) -> np.ndarray:
        step.evaluate(problem, u)
        return step.work.residual.copy()

    slopes = np.empty((7, 7))
    for x in range(7):
        moved = np.zeros(7)
        moved[x] = STEP
        slopes[:, x] = (residual(u + moved) - residual(u - moved)) / (2 * STEP)
    value = residual(u)
    newton = step.direction(problem, u)
    np.testing.assert_allclose(slopes @ newton, -value, rtol=1e-5, atol=1e-9)


def test_relaxation_solves_the_equation_of_a_state(rho: np.ndarray) -> None:
    pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    step, h = ImplicitEuler(pair, FreeEnergy([0.0, 1.0], 0.5), LogMean()), 0.7
    before = np.log(np.array([0.3, 1.7]))
    problem = step.problem(before, h)
    u = np.array([-3.0, 2.0])
    for _ in range(30):
        step.relax(problem, u)
    assert step.evaluate(problem, u) < 1e-3
    solved = step.step(before, h, tolerance=1e-13)
    np.testing.assert_allclose(u, solved.u, atol=2e-3)
    limited = np.empty(2)
    implicit_euler.newton_update(u, np.array([1e3, -1e3]), 1.0, step.log_pi, limited)
    assert limited[0] <= -step.log_pi[0]
    assert limited[1] >= u[1] - 30.0 - abs(u[1])
