"""The matrix-free likelihood: products against finite differences, traces, recovery, interrupts."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import LargeOptions, fit_likelihood_large
from thalweg.learn.fields import fit as fit_module
from thalweg.learn.fields.evidence import probe, slope_of_log_determinant, updated_scales
from thalweg.learn.fields.fit import _Fitter
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.learn.fields.posterior import Posterior
from thalweg.learn.fields.preconditioner import Information, Preconditioner, solve
from thalweg.learn.fields.prior import cosines, field_prior, is_thin
from thalweg.status import Status

BETA = 0.2


@pytest.fixture(scope="module")
def kernel() -> MarkovKernel:
    return make_graph("delaunay", 120, rng=np.random.default_rng(3))


def wavy(kernel: MarkovKernel) -> np.ndarray:
    x, y = kernel.coordinates.T
    return np.sin(3 * x) * np.cos(4 * y)


def problem(kernel: MarkovKernel, *, tolerance: float = 1e-11) -> Posterior:
    rng = np.random.default_rng(0)
    initial = field_prior(kernel, 12, coordinates=kernel.coordinates, spreads=(0, 3), rng=rng)
    potential = field_prior(kernel, 24, coordinates=kernel.coordinates, spreads=(0,), rng=rng)
    times = np.array([0.0, 0.4, 1.0, 2.5])
    counts = rng.multinomial(500, kernel.stationary, size=4).astype(float)
    flow = FlowMap(kernel, times, 1, tolerance, tolerance)
    initial = initial.with_scales(0.3 * initial.scales)
    return Posterior(
        Likelihood(flow, counts), initial, potential.with_scales(0.3 * potential.scales)
    )


def somewhere(posterior: Posterior) -> np.ndarray:
    z = np.random.default_rng(5).normal(size=posterior.size)
    z[-1] = np.log(0.15)
    return z


# -------------------------------------------------------------------- the flow


def test_states_that_start_empty_are_filled(kernel: MarkovKernel) -> None:
    low = kernel.coordinates[:, 0] < 0.3
    p0 = kernel.stationary * np.exp(-20.0 * low)
    p0 /= p0.sum()
    energy = FreeEnergy(-2.0 * low, 0.2)
    run = FlowMap(kernel, np.array([0.0, 0.5]), 64)(
        np.log(p0 / kernel.stationary), energy.potential, 0.2
    )
    assert run is not None
    p = kernel.stationary * np.exp(run.log_density[-1])
    other = gradient_flow(kernel, energy, p0, [0.0, 0.5], rtol=1e-9).probabilities[-1]
    assert abs(p / p.sum() - other).sum() < 1e-3


def test_flow_converges_to_the_integrator_with_order_two(kernel: MarkovKernel) -> None:
    p0 = kernel.stationary * np.exp(wavy(kernel))
    p0 /= p0.sum()
    times = np.array([0.0, 1.0, 3.0])
    V = wavy(kernel)
    truth = gradient_flow(kernel, FreeEnergy(V, BETA), p0, times, rtol=1e-10).probabilities
    errors = []
    for substeps in (4, 8, 16):
        run = FlowMap(kernel, times, substeps)(np.log(p0 / kernel.stationary), V, BETA)
        assert run is not None
        errors.append(np.abs(kernel.stationary * np.exp(run.log_density) - truth).max())
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    assert np.all(slopes > 1.8)
    assert errors[-1] < 1e-4


def test_flow_empties_a_steep_hill_and_keeps_the_mass() -> None:
    weights = np.diag(np.ones(4), 1)
    line = MarkovKernel.from_weights(weights + weights.T)
    V = np.array([0.0, 0.5, 3.0, 0.5, 0.0])
    run = FlowMap(line, np.array([0.0, 1.0, 10.0]), 8)(np.zeros(5), V, 0.05)
    assert run is not None
    for chain in (run.coarse, run.fine):
        np.testing.assert_allclose(np.exp(chain.u) @ line.stationary, 1.0, rtol=1e-6)
    assert run.log_density[-1, 2] < -20


def test_tangent_and_adjoint_are_transposes_and_derivatives(kernel: MarkovKernel) -> None:
    rng = np.random.default_rng(1)
    flow = FlowMap(kernel, np.array([0.0, 0.5, 2.0]), 2, 1e-12, 1e-12)
    u0, V = 0.3 * rng.normal(size=(2, 120))
    run = flow(u0, V, BETA)
    assert run is not None
    du0, dV = rng.normal(size=(2, 120, 3))
    dbeta = rng.normal(size=3)
    forward = run.tangent(du0, dV, dbeta)
    weights = rng.normal(size=forward.shape)
    g0, gV, gbeta = run.adjoint(weights)
    left = np.einsum("kxj,kxj->j", forward, weights)
    np.testing.assert_allclose(left, (du0 * g0 + dV * gV).sum(axis=0) + dbeta * gbeta, rtol=1e-8)
    h = 1e-5
    ahead = flow(u0 + h * du0[:, 0], V + h * dV[:, 0], BETA + h * dbeta[0])
    behind = flow(u0 - h * du0[:, 0], V - h * dV[:, 0], BETA - h * dbeta[0])
    assert ahead is not None
    assert behind is not None
    difference = (ahead.log_density - behind.log_density) / (2 * h)
    np.testing.assert_allclose(forward[:, :, 0], difference, atol=1e-6 * np.abs(forward).max())


# -------------------------------------------------------------------- the prior


def test_cosines_hold_smooth_functions_to_the_edge() -> None:
    points = np.random.default_rng(0).random((400, 2))
    basis = np.column_stack([np.ones(400), cosines(points, 120)])
    f = np.sin(3 * np.pi * points[:, 0]) * points[:, 1]
    rest = f - basis @ np.linalg.lstsq(basis, f, rcond=1e-8)[0]
    assert np.std(rest) < 0.01 * np.std(f)


def test_prior_transpose(kernel: MarkovKernel) -> None:
    prior = problem(kernel).initial
    rng = np.random.default_rng(2)
    w, g = rng.normal(size=(prior.size, 2)), rng.normal(size=(120, 2))
    np.testing.assert_allclose(
        np.sum(prior.field(w) * g, axis=0), np.sum(w * prior.transpose(g), axis=0)
    )


# -------------------------------------------------------------------- the posterior


def test_gradient_is_the_derivative(kernel: MarkovKernel) -> None:
    posterior = problem(kernel)
    z = somewhere(posterior)
    point = posterior.point(z)
    assert point is not None
    d = np.random.default_rng(6).normal(size=z.size)
    h = 1e-5
    difference = (posterior.point(z + h * d).value - posterior.point(z - h * d).value) / (2 * h)
    assert point.gradient() @ d == pytest.approx(difference, rel=1e-6)


def test_solve_and_traces_against_dense(kernel: MarkovKernel) -> None:
    posterior = problem(kernel)
    point = posterior.point(somewhere(posterior))
    assert point is not None
    H = point.curvature(np.eye(posterior.size), tolerance=1e-11)
    np.testing.assert_allclose(H, H.T, atol=1e-7 * np.abs(H).max())
    preconditioner = Preconditioner.of(posterior, Information.at(point))
    right = np.random.default_rng(7).normal(size=(posterior.size, 2))
    x, _ = solve(point, right, preconditioner, tolerance=1e-4)
    np.testing.assert_allclose(x, np.linalg.solve(H, right), atol=2e-3)

    signs = np.random.default_rng(8).choice([-1.0, 1.0], size=(posterior.size, 64))
    probes = probe(point, preconditioner, signs, 1e-3)
    inverse = np.linalg.inv(H)
    assert probes.log_beta_variance == pytest.approx(inverse[-1, -1], rel=1e-3)
    _, counts = updated_scales(point, preconditioner, probes)
    groups = posterior.potential.groups
    exact = np.bincount(groups, 1 - posterior.split(np.diag(inverse))[1])
    np.testing.assert_allclose(counts[1], exact, rtol=0.1, atol=0.5)


def test_slope_of_log_determinant(kernel: MarkovKernel) -> None:
    posterior = problem(kernel)
    point = posterior.point(somewhere(posterior))
    assert point is not None
    preconditioner = Preconditioner.of(posterior, Information.at(point))
    signs = np.random.default_rng(9).choice([-1.0, 1.0], size=(posterior.size, 200))
    probes = probe(point, preconditioner, signs, 1e-3)
    direction = probes.along_beta / probes.along_beta[-1]

    def log_determinant(step: float) -> float:
        moved = posterior.point(point.z + step * direction)
        return float(np.linalg.slogdet(moved.curvature(np.eye(posterior.size))[:-1, :-1])[1])

    exact = (log_determinant(0.02) - log_determinant(-0.02)) / 0.04
    assert slope_of_log_determinant(point, probes) == pytest.approx(exact, abs=0.1 * abs(exact) + 2)


# -------------------------------------------------------------------- whole fits


@pytest.fixture(scope="module")
def data() -> tuple[MarkovKernel, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    kernel = make_graph("delaunay", 300, rng=rng)
    V = wavy(kernel)
    p0 = kernel.stationary * np.exp(2 * kernel.coordinates[:, 0])
    times = np.linspace(0, 6, 9)
    p = gradient_flow(kernel, FreeEnergy(V, BETA), p0 / p0.sum(), times).probabilities
    counts = np.array([rng.multinomial(6000, row / row.sum()) for row in p])
    return kernel, V, times, counts, p


def test_recovers_the_landscape(data) -> None:
    kernel, V, times, counts, _ = data
    fit = fit_likelihood_large(kernel, times, counts, coordinates="kernel")
    assert fit.status is Status.CONVERGED
    truth = centred(V, kernel)
    assert np.corrcoef(fit.potential, truth)[0, 1] > 0.99
    assert abs(np.log(fit.beta / BETA)) < 3.5 * fit.log_beta_stderr
    assert fit.beta_interval[0] < fit.beta < fit.beta_interval[1]
    assert np.mean(np.abs(fit.potential - truth) < 3 * fit.potential_stderr) > 0.8
    np.testing.assert_allclose(fit.probabilities.sum(axis=1), 1.0)
    np.testing.assert_allclose(kernel.stationary @ fit.potential, 0.0, atol=1e-12)


def test_from_the_graph_alone_the_population_is_known_better_than_by_counting(data) -> None:
    kernel, _, times, counts, truth = data
    fit = fit_likelihood_large(kernel, times, counts, options=LargeOptions(max_rounds=10))
    shares = counts / counts.sum(axis=1, keepdims=True)
    ours, raw = (np.sum((np.sqrt(q) - np.sqrt(truth)) ** 2) for q in (fit.probabilities, shares))
    assert ours < 0.3 * raw


def test_from_the_graph_alone_the_landscape_is_recovered() -> None:
    rng = np.random.default_rng(21)
    kernel = make_graph("delaunay", 250, rng=rng)
    V = wavy(kernel)
    p0 = kernel.stationary * np.exp(2 * kernel.coordinates[:, 0])
    times = np.linspace(0, 20, 11)
    p = gradient_flow(kernel, FreeEnergy(V, BETA), p0 / p0.sum(), times).probabilities
    counts = np.array([rng.multinomial(20_000, row / row.sum()) for row in p])
    fit = fit_likelihood_large(kernel, times, counts, coordinates=None)
    truth = centred(V, kernel)
    pi = kernel.stationary
    slope = (pi * fit.potential) @ truth / (pi @ truth**2)
    assert np.corrcoef(fit.potential, truth)[0, 1] > 0.95
    assert 0.85 < slope < 1.15
    assert np.mean(np.abs(fit.potential - truth) < 2 * fit.potential_stderr) > 0.8


def test_sampled_standard_errors_are_those_of_the_dense_information(data) -> None:
    kernel, _, times, counts, _ = data
    fitter = _Fitter(
        kernel, times, counts.astype(float), kernel.coordinates, None,
        LargeOptions(n_samples=300), None, np.random.default_rng(0),
    )  # fmt: skip
    fit = fitter.run()
    posterior = fitter.posterior
    covariance = np.linalg.inv(fitter.point.curvature(np.eye(posterior.size), tolerance=1e-7))
    assert fit.log_beta_stderr == pytest.approx(np.sqrt(covariance[-1, -1]), rel=0.02)
    middle = posterior.split(posterior.split(covariance)[1].T)[1]
    field = posterior.potential.field(posterior.potential.field(middle).T)
    centre = np.eye(300) - kernel.stationary
    exact = np.sqrt(np.diag(centre @ field @ centre.T))
    ratio = fit.potential_stderr / exact
    # 300 draws: each standard error is good to 4 %, and the errors of neighbours go together.
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.1)
    assert np.std(ratio) < 0.08


def test_known_beta_is_kept(data) -> None:
    kernel, _, times, counts, _ = data
    fit = fit_likelihood_large(kernel, times, counts, coordinates="kernel", beta=BETA)
    assert fit.beta == pytest.approx(BETA)
    assert fit.beta_stderr == 0.0


def test_interrupting_keeps_the_best_iterate(data) -> None:
    kernel, V, times, counts, _ = data

    def stop(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    fit = fit_likelihood_large(kernel, times, counts, coordinates="kernel", progress=stop)
    assert fit.status is Status.INTERRUPTED
    assert np.corrcoef(fit.potential, V)[0, 1] > 0.8


def test_too_few_rounds_say_so(data) -> None:
    kernel, _, times, counts, _ = data
    fit = fit_likelihood_large(kernel, times, counts, options=LargeOptions(max_rounds=1))
    assert fit.status is Status.MAX_ITERATIONS


def test_bad_counts_are_refused(kernel: MarkovKernel) -> None:
    counts = np.ones((2, 120))
    with pytest.raises(InputError, match="shape"):
        fit_likelihood_large(kernel, [0, 1, 2], counts)
    counts[1] = 0
    with pytest.raises(InputError, match="no samples"):
        fit_likelihood_large(kernel, [0, 1], counts)
    counts[1, 4] = -1
    with pytest.raises(InputError, match="negative"):
        fit_likelihood_large(kernel, [0, 1], counts)


def test_states_on_a_ring_are_fitted_along_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smooth functions of the plane depend on each other there, and no solve with them exists."""
    kernel = make_graph("watts_strogatz", 320, rng=np.random.default_rng(11))
    assert kernel.coordinates is not None
    used = []

    class ReachedError(Exception):
        pass

    def stand_in(*data: object) -> None:
        used.append(data)
        raise ReachedError

    monkeypatch.setattr(fit_module, "GraphFitter", stand_in)
    with pytest.raises(ReachedError):
        fit_likelihood_large(kernel, [0.0, 1.0], np.ones((2, 320)), coordinates="kernel")
    assert len(used) == 1
    assert not is_thin(make_graph("delaunay", 320, rng=np.random.default_rng(0)).coordinates, 80)
