"""The chain of frozen rates: exponentials, minima at kinks, pulls towards counts, horizons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm, expm_frechet

from thalweg.energy import FreeEnergy
from thalweg.flow import simulate
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.diagnostics import goodness_of_fit
from thalweg.learn.likelihood.chain.exponential import exponential
from thalweg.learn.likelihood.chain.kinks import certify
from thalweg.learn.likelihood.chain.nudging import let_go
from thalweg.learn.likelihood.chain.search import grow
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.frozen import density_doubts, frozen_chain, frozen_intervals
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation
from thalweg.learn.likelihood.optimize import minimise
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.priors import make_prior
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.snapshots import Snapshots, hellinger
from thalweg.status import Status

MEAN_FIELD = LikelihoodOptions(
    observation="tracked", discretization="frozen", environment="mean-field"
)


def random_rates(n: int, seed: int, fastest: float):
    """Rates of jumps from each state to later ones, some of them very fast."""
    rng = np.random.default_rng(seed)
    start, end = (part.astype(np.int64) for part in np.triu_indices(n, 1))
    rate = rng.exponential(size=start.size) * np.where(rng.random(start.size) < 0.3, fastest, 1.0)
    return start, end, rate, rng.dirichlet(np.ones(n), size=2)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10**6), st.floats(-3, 6))
def test_exponential_and_its_derivatives(n: int, seed: int, exponent: float) -> None:
    start, end, rate, mass = random_rates(n, seed, 10.0**exponent)
    found, slopes = exponential(n, start, end, rate, 0.7, mass, True)
    generator = np.zeros((n, n))
    generator[start, end] = rate
    generator -= np.diag(generator.sum(axis=1))
    np.testing.assert_allclose(found, expm(0.7 * generator), atol=1e-12)
    for e in range(start.size):
        way = np.zeros((n, n))
        way[start[e], end[e]], way[start[e], start[e]] = 0.7, -0.7
        exact = mass @ expm_frechet(0.7 * generator, way, compute_expm=False)
        np.testing.assert_allclose(slopes[:, e], exact, atol=2e-5 * max(abs(exact).max(), 1e-9))


def test_small_probabilities_keep_their_digits() -> None:
    """A chain of n slow jumps reaches its end with probability about `(t rate)^n / n!`."""
    start, end = np.arange(6, dtype=np.int64), np.arange(1, 7, dtype=np.int64)
    found, _ = exponential(7, start, end, np.full(6, 1e-9), 1.0, np.eye(1, 7), False)
    assert found[0, 6] == pytest.approx(1e-54 / 720, rel=1e-6)


def test_value_is_continuous_where_a_state_is_nearly_empty() -> None:
    """No other formula takes over anywhere: along a line, second differences stay small."""
    kernel = make_graph("watts_strogatz", 6, rng=np.random.default_rng(4))
    energy = FreeEnergy([1.0, -1.0, 0.8, -0.6, 0.4, -0.9], 0.05)
    times = np.linspace(0, 5, 21)
    seen = simulate(
        kernel, energy, np.full(6, 1 / 6), times, 10_000, rng=np.random.default_rng(0),
        method="frozen", rates="empirical",
    )  # fmt: skip
    counts = np.asarray(seen.counts, dtype=float)
    assert counts.min() == 0
    model = FlowModel(kernel, times, fixed_initial=np.full(6, 1 / 6))
    mesh = Mesh(np.ones(20, dtype=np.int64))
    theta = np.append(energy.potential, np.log(0.05))
    objective = TrackedObjective(model, counts, True, True).reweighted(theta, mesh)
    way = np.array([1.0, 0.3, -0.5, 0.2, -0.7, 0.1, 1.0])
    line = [objective.value(theta + s * way, mesh) for s in np.linspace(0, 1e-3, 201)]
    first = np.diff(line)
    assert np.abs(np.diff(first)).max() < 1e-6 * max(1.0, abs(line[0])) + 0.05 * abs(first).max()


def test_rates_cut_as_the_simulation_cuts_them() -> None:
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    model = FlowModel(kernel, np.array([0.0, 0.5]), fixed_initial=np.full(3, 1 / 3))
    u = np.array([[-600.0, 0.0, 0.1]])
    theta = np.array([1.0, 0.0, -1.0, np.log(0.1)])
    empty = np.zeros((1, 3, 4))
    p = np.array([[0.0, 0.5, 0.5]])
    moved, slopes, matrices = frozen_intervals(model, theta, u, empty, (p, empty))
    assert np.isfinite(moved).all()
    assert np.isfinite(slopes).all()
    assert moved.sum() == pytest.approx(1)
    assert matrices.min() >= 0


class _Corner:
    """`10 |a| + (b - 1)^2 / 2`, whose minimum (0, 1) is a kink."""

    model = None

    def value(self, theta, mesh):
        return float(10 * abs(theta[0]) + 0.5 * (theta[1] - 1) ** 2)

    def evaluate(self, theta, mesh):
        gradient = np.array([10.0 if theta[0] >= 0 else -10.0, theta[1] - 1.0])
        return Evaluation(self.value(theta, mesh), gradient, np.eye(2), np.eye(2), 0.0)


class _Flat:
    units = np.ones(2)

    def quadratic(self, theta):
        return 0.0, np.zeros(2), np.zeros((2, 2))


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_minimum_at_a_kink_is_certified_or_improved(start: float) -> None:
    corner, mesh = _Corner(), Mesh(np.ones(1, dtype=np.int64))

    def search(theta):
        return minimise(corner, _Flat(), theta, mesh)

    stalled = search(np.array([0.0, start]))
    assert stalled.status is Status.STALLED
    found = certify(corner, _Flat(), stalled, mesh, search)
    assert found.status is Status.CONVERGED
    # No probe gains 0.02 any more.
    assert found.value < 0.03


def population(n: int, seed: int = 0, rates: str = "mean-field"):
    rng = np.random.default_rng(seed)
    kernel = make_graph("regular", 6, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.1)
    p0, times = rng.dirichlet(np.ones(6)), np.linspace(0, 5, 21)
    seen = simulate(kernel, energy, p0, times, n, rng=rng, method="frozen", rates=rates)
    return kernel, energy, p0, times, np.array(seen.counts, dtype=float)


def test_mean_field_chain_is_followed_to_its_end() -> None:
    kernel, energy, p0, times, counts = population(10_000)
    fit = fit_likelihood(kernel, times, counts, options=replace(MEAN_FIELD, initial=p0))
    assert fit.status is Status.CONVERGED
    assert fit.n_intervals == 20
    assert 0.6 < fit.deviance_per_degree < 1.5
    assert not fit.rejected
    model = FlowModel(kernel, times, fixed_initial=p0)
    curves = [
        frozen_chain(model, np.append(e.potential, np.log(e.beta)), slopes=False).probabilities
        for e in (energy, fit.energy)
    ]
    # Ten thousand histograms are off by 0.009; the limit of this problem is near 0.004.
    assert np.mean(hellinger(*curves)) < 0.008


def test_wrong_reading_is_not_shown_without_a_word() -> None:
    """Snapshots that no frozen chain makes: the diagnostics say so beside the status."""
    kernel, _, _, times, counts = population(10_000)
    shuffled = counts[:5, ::-1].copy()
    shuffled[::2] = counts[:5:2]
    seen = Snapshots.from_counts(times[:5], shuffled)
    model = FreeEnergyRegressor(
        observation="tracked", discretization="frozen", environment="empirical"
    ).fit(kernel, seen)
    assert model.diagnostics_["deviance_per_degree"] > 10
    assert "does not describe these snapshots" in model.diagnostics_["advice"]


def test_horizon_stops_where_the_snapshots_leave_the_chain() -> None:
    """The second half belongs to other states: the first half is fitted, and the status says so."""
    kernel, _, p0, times, counts = population(10_000)
    counts[11:] = counts[11:, ::-1]
    fit = fit_likelihood(kernel, times, counts, options=replace(MEAN_FIELD, initial=p0))
    assert fit.status is Status.SHORTER_HORIZON
    assert 5 <= fit.n_intervals <= 10
    assert "first intervals" in fit.status.value
    assert fit.probabilities.shape == counts.shape
    # What is judged is what was fitted: the second half does not count against it.
    assert goodness_of_fit(fit, rng=np.random.default_rng(0), n_draws=60).p_value > 1e-3


def test_search_is_bounded_and_repeats_itself() -> None:
    kernel, _, p0, times, counts = population(2000, seed=5)
    model = FlowModel(kernel, times, fixed_initial=p0)
    objective, mesh = TrackedObjective(model, counts, True, False), Mesh(np.ones(20, np.int64))
    prior = make_prior(model, 0.1, 0.5, 1e-2)
    starts = [np.append(np.zeros(6), np.log(0.1))]
    first, second = (
        grow(objective, prior, starts, mesh, rng=np.random.default_rng(1)) for _ in range(2)
    )
    np.testing.assert_array_equal(first.theta, second.theta)
    assert first.n_intervals == second.n_intervals


def pulled_problem():
    """A landscape on which no state empties within the horizon."""
    rng = np.random.default_rng(3)
    kernel = make_graph("regular", 6, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.3)
    p0, times = np.full(6, 1 / 6), np.linspace(0, 2, 21)
    seen = simulate(kernel, energy, p0, times, 10_000, rng=rng, method="frozen", rates="mean-field")
    model = FlowModel(kernel, times, fixed_initial=p0)
    return model, np.array(seen.counts, dtype=float), np.append(energy.potential, np.log(0.3))


def test_full_pull_puts_the_population_where_it_was_seen() -> None:
    model, counts, theta = pulled_problem()
    p = frozen_chain(model, theta, counts=counts, gain=1.0).probabilities
    seen = counts[1:] / counts[1:].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p[1:][counts[1:] > 0], seen[counts[1:] > 0], rtol=1e-3)
    free = frozen_chain(model, theta).probabilities
    np.testing.assert_array_equal(frozen_chain(model, theta, counts=counts).probabilities, free)


def test_derivatives_of_a_pulled_chain() -> None:
    model, counts, theta = pulled_problem()
    counts[3, 2] = 0.0
    way = np.array([1.0, 0.3, -0.5, 0.2, -0.7, 0.1, 1.0])
    h = 1e-6
    ahead, behind = (
        np.log(frozen_chain(model, theta + s * way, counts=counts, gain=0.4).probabilities)
        for s in (h, -h)
    )
    slopes = frozen_chain(model, theta, counts=counts, gain=0.4).log_slopes @ way
    differences = (ahead - behind) / (2 * h)
    assert np.abs(slopes - differences).max() < 1e-3 * np.abs(slopes).max()


def test_noise_of_the_counts_is_known_to_a_pulled_chain() -> None:
    """At the truth a chain pulled to noisy counts is not rejected."""
    model, counts, theta = pulled_problem()
    mesh = Mesh(np.ones(20, dtype=np.int64))
    objective = TrackedObjective(model, counts, True, False, gain=1.0)
    assert not objective.judge(theta, mesh).rejects()
    shares = counts[:-1] / counts[:-1].sum(axis=1, keepdims=True)
    p = frozen_chain(model, theta, counts=counts, gain=1.0).probabilities
    doubts = density_doubts(model, theta, p, shares, counts, 1.0)
    # The start is known; afterwards the doubt is small beside the covariance of the jumps.
    assert np.all(doubts[0] == 0)
    assert np.linalg.eigvalsh(doubts).min() > -1e-15
    assert np.einsum("kxx->k", doubts)[1:].min() > 1e-8
    assert np.all(density_doubts(model, theta, p, shares, counts, 0.0) == 0)


def test_letting_go_leads_to_the_optimum_of_the_whole_chain() -> None:
    model, counts, truth = pulled_problem()
    mesh = Mesh(np.ones(20, dtype=np.int64))
    objective = TrackedObjective(model, counts, True, False)
    prior = make_prior(model, 0.1, 0.5, 1e-2)
    guide = let_go(objective, prior, [np.append(np.zeros(6), np.log(0.3))], mesh)
    assert not guide.judgement.rejects()
    assert not guide.interrupted
    # Seven parameters gain 3.5 on average over the truth.
    assert guide.judgement.merit < objective.judge(truth, mesh).merit + 2.0
