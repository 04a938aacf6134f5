"""Large graphs without coordinates: spectral prior, its solver, and whole fits of rough fields."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import eigvals

from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import fit_likelihood_large
from thalweg.learn.fields.conjugate_gradients import conjugate_gradients
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.graph_fit import GraphFitter
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.learn.fields.matching import Following, matched_slope
from thalweg.learn.fields.options import LargeOptions
from thalweg.learn.fields.spectral_solver import Curvature, Kind, Preconditioning
from thalweg.learn.fields.spectrum import SpectralPrior, Spectrum
from thalweg.status import Status

BETA = 0.1


@pytest.fixture(scope="module")
def kernel() -> MarkovKernel:
    return make_graph("watts_strogatz", 90, rng=np.random.default_rng(4))


@pytest.fixture(scope="module")
def spectrum(kernel: MarkovKernel) -> Spectrum:
    return Spectrum(kernel, np.random.default_rng(0))


def drawn(kernel: MarkovKernel, per_state: int, seed: int) -> tuple[np.ndarray, ...]:
    """A rough landscape, times, its flow at them, counts."""
    rng = np.random.default_rng(seed)
    n = kernel.n_states
    V, p0 = rng.uniform(-1, 1, n), rng.dirichlet(np.full(n, 5.0))
    times = np.linspace(0, 5, 11)
    p = gradient_flow(kernel, FreeEnergy(V, BETA), p0, times, rtol=1e-6).probabilities
    counts = np.array([rng.multinomial(per_state * n, row / row.sum()) for row in p])
    return V, times, p, counts.astype(float)


@pytest.fixture(scope="module")
def curvature(kernel: MarkovKernel, spectrum: Spectrum) -> Curvature:
    V, times, p, counts = drawn(kernel, 20, 1)
    u0 = np.log(p[0] / kernel.stationary)
    place = Likelihood(FlowMap(kernel, times), counts).at(u0, V, float(np.log(BETA)))
    assert place is not None
    priors = (SpectralPrior.of_field(spectrum, field) for field in (u0, V))
    return Curvature(place, *priors)


def test_prior_is_a_function_of_the_laplacian(kernel: MarkovKernel, spectrum: Spectrum) -> None:
    values, vectors = np.linalg.eigh(spectrum.matrix.toarray())
    scale = np.sqrt(kernel.n_states * kernel.stationary)
    walk = np.diag(1 / scale) @ (np.eye(values.size) - spectrum.matrix.toarray()) @ np.diag(scale)
    np.testing.assert_allclose(walk, kernel.matrix.toarray(), atol=1e-12)
    levels = np.linspace(-1.0, 3.0, spectrum.knots.size)

    def half(levels: np.ndarray) -> np.ndarray:
        q = np.exp(spectrum.bumps(values) @ levels)
        return ((vectors * np.sqrt(q)) @ vectors.T * scale) / scale[:, None]

    prior = SpectralPrior(spectrum, levels)
    x = np.random.default_rng(1).normal(size=(kernel.n_states, 3))
    exact = half(levels).T @ half(levels) @ x
    np.testing.assert_allclose(prior.precision(x), exact, atol=2e-2 * np.abs(exact).max())
    for j in range(levels.size):
        step = 1e-4 * np.eye(levels.size)[j]
        ahead, behind = (np.sum((half(levels + s * step) @ x) ** 2) / 3 for s in (1, -1))
        slope = (ahead - behind) / 2e-4
        assert prior.powers(x)[j] == pytest.approx(slope, rel=0.02, abs=0.02 * abs(ahead))


def test_prior_of_a_field_knows_how_rough_it_is(kernel: MarkovKernel, spectrum: Spectrum) -> None:
    rough = np.random.default_rng(2).normal(size=kernel.n_states)
    smooth = rough
    for _ in range(6):
        smooth = 0.5 * (smooth + kernel.matrix @ smooth)
    slopes = [np.ptp(SpectralPrior.of_field(spectrum, f).levels) for f in (rough, smooth)]
    assert slopes[1] > 3.0 > slopes[0]


def test_levels_resolve_a_sharp_spectrum(kernel: MarkovKernel, spectrum: Spectrum) -> None:
    """Noise after eight steps of the lazy walk: its spectrum falls fastest where modes crowd."""
    values = np.linalg.eigvalsh(spectrum.matrix.toarray())[1:]
    amplitude = (1.0 - 0.5 * values) ** 8
    assert (np.bincount(spectrum.bumps(values).argmax(axis=1)) < 0.35 * values.size).all()
    log_q = -2.0 * np.log(amplitude)
    low = log_q < log_q.min() + 8.0
    bumps = spectrum.bumps(values)[low]
    fitted = bumps @ np.linalg.lstsq(bumps, log_q[low])[0]
    assert np.abs(fitted - log_q[low]).max() < 0.5


def test_information_about_the_levels(spectrum: Spectrum) -> None:
    """Of a known field it is the curvature of the field's own likelihood."""
    full = spectrum.level_information(np.ones(spectrum.knots.size))
    half = spectrum.level_information(np.full(spectrum.knots.size, 0.5))
    # Moving all levels together: half of every mode counts, a quarter of that where half is seen.
    ones = np.ones(spectrum.knots.size)
    assert ones @ full @ ones == pytest.approx(0.5 * (spectrum.n - 1), rel=0.02)
    assert ones @ half @ ones == pytest.approx(0.125 * (spectrum.n - 1), rel=0.08)


def test_coarse_information_is_near_and_smaller_where_states_empty(curvature: Curvature) -> None:
    n = curvature.place.u0.size
    unit = np.random.default_rng(8).normal(size=(2 * n, 3))
    exact, coarse = (
        curvature.place.information(unit, np.zeros(3), coarse=c)[0] for c in (False, True)
    )
    ratio = np.sum(unit * coarse, axis=0) / np.sum(unit * exact, axis=0)
    assert np.all((ratio > 0.5) & (ratio < 1.2))


def test_density_of_states_without_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = make_graph("grid", 400, rng=np.random.default_rng(0))
    exact = Spectrum(kernel, np.random.default_rng(0))
    monkeypatch.setattr("thalweg.learn.fields.spectrum._EXACT_STATES", 10)
    probed = Spectrum(kernel, np.random.default_rng(0))
    assert probed.top == pytest.approx(exact.top, rel=1e-3)
    assert probed.weights.sum() == pytest.approx(exact.weights.sum())
    wide = exact.nodes > 0.5
    assert probed.weights[probed.nodes > 0.5].sum() == pytest.approx(wide.sum(), rel=0.05)


@pytest.mark.parametrize("kind", ["flow", "graph", "graph by rational functions"])
def test_information_is_symmetric_and_solved(curvature: Curvature, kind: str) -> None:
    n = curvature.place.u0.size
    tried: tuple[Kind, ...] = ("flow",) if kind == "flow" else ("graph",)
    if "rational" in kind:
        spectrum = copy.copy(curvature.potential.spectrum)
        vars(spectrum)["basis"] = None  # as on more states than have all their eigenvectors
        priors = (replace(p, spectrum=spectrum) for p in (curvature.initial, curvature.potential))
        curvature = Curvature(curvature.place, *priors)
    dense = curvature.place.information(np.eye(2 * n), np.zeros(2 * n), tolerance=1e-10)[0]
    dense = dense + curvature.prior(np.eye(2 * n))
    np.testing.assert_allclose(dense, dense.T, atol=1e-6 * np.abs(dense).max())
    preconditioner, about, _ = Preconditioning(curvature.place, tried)(curvature)
    inverse = preconditioner(np.eye(2 * n))
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-8 * np.abs(inverse).max())
    assert np.linalg.eigvalsh(inverse)[0] > 0
    assert np.all(about > 0)
    right = np.random.default_rng(3).normal(size=(2 * n, 2))
    x, iterations = conjugate_gradients(curvature, right, preconditioner, tolerance=1e-2)
    exact = np.linalg.solve(dense, right)
    error = np.sum((x - exact) * (dense @ (x - exact)), axis=0)
    assert np.all(error < 1e-2 * np.sum(exact * right, axis=0))
    assert iterations < 60


def test_the_kind_of_fewer_iterations_is_kept(curvature: Curvature) -> None:
    preconditioning = Preconditioning(curvature.place, ("graph", "flow"))
    kinds = []
    for iterations in (9, 20, 30, 12, 40, 25):
        kinds.append(preconditioning.kind)
        preconditioning.took(iterations)
    # The other is tried only once the first takes many.
    assert kinds == ["graph", "graph", "flow", "graph", "graph", "flow"]
    assert preconditioning.kind == "flow"


def test_the_start_is_seen_where_the_population_began(curvature: Curvature) -> None:
    """Most states of a rough landscape are nearly empty on average over time, not at the start."""
    n = curvature.place.u0.size
    dense = curvature(np.eye(2 * n))
    preconditioner, _, _ = Preconditioning(curvature.place)(curvature)
    values = eigvals(preconditioner(np.eye(2 * n)) @ dense).real
    assert values.max() < 15.0


def test_one_or_two_columns_are_solved_as_more_are(curvature: Curvature) -> None:
    """They have loops of their own, in the passes along the flow and in polynomials."""
    n = curvature.place.u0.size
    z = np.random.default_rng(2).normal(size=(2 * n, 3))
    exact = curvature.place.information(z, np.zeros(3), tolerance=1e-9)[0]
    prior = curvature.prior(z)
    for part in (slice(0, 1), slice(1, 3)):
        width = z[:, part].shape[1]
        few = curvature.place.information(z[:, part], np.zeros(width), tolerance=1e-9)[0]
        np.testing.assert_allclose(few, exact[:, part], atol=1e-6 * np.abs(exact).max())
        few = curvature.prior(z[:, part])
        np.testing.assert_allclose(few, prior[:, part], atol=1e-12 * np.abs(prior).max())


def test_beta_waits_for_the_levels_where_individuals_are_few(kernel: MarkovKernel) -> None:
    """Without the force of the evidence a joint step takes beta towards zero."""
    _, times, _, counts = drawn(kernel, 2, 3)
    rng = np.random.default_rng(0)
    fitter = GraphFitter(kernel, times, counts, None, LargeOptions(), None, rng)
    start = fitter.theta
    while fitter.draws is None:
        assert fitter.theta == start
        fitter.settled(0)
    for round_ in range(1, 4):
        fitter.settled(round_)
    assert fitter.theta != start


def test_what_beta_moved_since_the_simulations_counts_as_its_error(kernel: MarkovKernel) -> None:
    _, times, _, counts = drawn(kernel, 20, 3)
    rng = np.random.default_rng(0)
    fitter = GraphFitter(kernel, times, counts, None, LargeOptions(n_samples=2), None, rng)
    for round_ in range(40):
        if fitter.settled(round_):
            break
    fitter.change, fitter.goal = 0.0, fitter.theta
    fitter.spread = spread = 0.01
    least = 0.01  # even where nothing moved, and however many individuals
    still = fitter.result(Status.CONVERGED).log_beta_stderr
    assert still == pytest.approx(np.hypot(spread, least))
    fitter.goal = fitter.theta - 2.0 * spread
    moved = fitter.result(Status.CONVERGED).log_beta_stderr
    assert moved == pytest.approx(np.hypot(np.sqrt(5.0) * spread, least))
    fitter.goal, fitter.change = fitter.theta, 2.0  # not settled: all of it is open
    assert fitter.result(Status.CONVERGED).log_beta_stderr == pytest.approx(moved)


def test_simulated_slope_is_that_of_fits_to_drawn_data(curvature: Curvature) -> None:
    """Without its known parts the simulated slope varies far less than the slope itself."""
    place = curvature.place
    n = place.u0.size
    dense = curvature.place.information(np.eye(2 * n), np.zeros(2 * n))[0]
    dense = dense + curvature.prior(np.eye(2 * n))
    mixed, info = place.information(np.zeros((2 * n, 1)), np.ones(1))
    along = -np.linalg.solve(dense, mixed[:, 0])
    error = float(info[0] + mixed[:, 0] @ along) ** -0.5
    root = np.linalg.cholesky(np.linalg.inv(dense))
    draws = root @ np.random.default_rng(5).normal(size=(2 * n, 4))
    preconditioner, _, _ = Preconditioning(place)(curvature)
    z = np.concatenate([place.u0, place.V])
    pull = curvature.prior(along[:, None])[:, 0]
    found = matched_slope(
        curvature, preconditioner, place.likelihood,
        Following(z, float(np.log(BETA)), along, pull, np.linalg.solve(dense, pull)), draws,
        count=8, seed=0,
    )  # fmt: skip
    assert found.count == 8
    assert found.error * error < 0.5
    assert found.slope < 0


def test_rough_landscape_from_the_graph_alone(kernel: MarkovKernel) -> None:
    V, times, _, counts = drawn(kernel, 100, 7)
    fit = fit_likelihood_large(kernel, times, counts)
    truth = centred(V, kernel)
    assert fit.status is Status.CONVERGED
    assert np.corrcoef(fit.potential, truth)[0, 1] > 0.95
    assert abs(np.log(fit.beta / BETA)) < 4 * fit.log_beta_stderr
    assert 0.02 < fit.log_beta_stderr < 0.3
    assert np.mean(np.abs(fit.potential - truth) < 3 * fit.potential_stderr) > 0.85


def test_a_landscape_too_flat_to_be_seen_has_errors_of_its_size() -> None:
    """The evidence prefers one that vanishes; errors under that prior covered it in 0.18."""
    rng = np.random.default_rng(0)
    kernel = make_graph("delaunay", 300, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    V = 0.8 * np.cos(np.pi * (x - x.min()) / np.ptp(x))
    p0 = kernel.stationary * np.exp(np.cos(2 * np.pi * y))
    times = np.linspace(0, 3, 6)
    energy = FreeEnergy(V, 0.2)
    p = gradient_flow(kernel, energy, p0 / p0.sum(), times, rtol=1e-6).probabilities
    counts = np.array([rng.multinomial(1500, row / row.sum()) for row in p])
    fit = fit_likelihood_large(kernel, times, counts.astype(float))
    gap = np.abs(fit.potential - centred(V, kernel))
    assert np.mean(gap < 1.96 * fit.potential_stderr) > 0.9
    assert np.median(fit.potential_stderr) > np.sqrt(np.mean(fit.potential**2))
