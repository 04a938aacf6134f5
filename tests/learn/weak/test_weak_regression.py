"""The weak form as a regression of the counts: errors, a positive beta, a goodness of fit."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.geometry.operators import transport_laplacian
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.fields import scoring
from thalweg.learn.weak.regression import fit_regression, normal_equations, with_errors
from thalweg.mobility import GeometricMean, LogMean, Mobility
from thalweg.report.findings import findings
from thalweg.snapshots import Snapshots
from thalweg.status import Status

RNG = np.random.default_rng(17)
KERNEL = make_graph("delaunay", 12, rng=RNG)
assert KERNEL.coordinates is not None
ENERGY = FreeEnergy(centred(np.sin(5 * KERNEL.coordinates[:, 0]), KERNEL), 0.4)
TIMES = np.linspace(0, 4, 10)
P = gradient_flow(KERNEL, ENERGY, RNG.dirichlet(np.full(12, 2.0)), TIMES).probabilities
P = P / P.sum(axis=1, keepdims=True)


def test_exact_shares_give_the_truth() -> None:
    """Only the quadrature in time is left, and it shrinks as snapshots become denser."""
    errors = []
    for step in (3, 1):
        fit = fit_regression(KERNEL, TIMES[::step], 1e7 * P[::step], mobility=LogMean())
        errors.append(abs(fit.beta - 0.4) + np.abs(fit.potential - ENERGY.potential).max())
    assert errors[1] < 0.05
    assert errors[1] < errors[0]


def test_error_bars_and_verdict_through_the_regressor() -> None:
    seen = Snapshots.from_counts(TIMES, [RNG.multinomial(3000, row) for row in P])
    model = FreeEnergyRegressor(method="weak").fit(KERNEL, seen)
    assert model.status_ is Status.CONVERGED
    assert np.isfinite(model.potential_stderr_).all()
    assert (np.abs(model.potential_ - ENERGY.potential) < 4 * model.potential_stderr_).all()
    verdict = model.beta_verdict_
    assert verdict.lower < 0.4 < verdict.upper
    assert model.diagnostics_["p_value"] > 1e-3
    # Cycles have no landscape: a population that goes round is rejected.
    turning = np.array([np.roll(P[0], k) for k in range(10)])
    wrong = FreeEnergyRegressor(method="weak").fit(
        KERNEL, Snapshots.from_counts(TIMES, 3000 * turning)
    )
    assert wrong.diagnostics_["p_value"] < 1e-3


@pytest.mark.parametrize("options", [{}, {"quadrature": "right"}])
def test_beta_is_positive_and_the_forecast_ends(options: dict[str, str]) -> None:
    """Few counts drive the estimate to zero, where a flow would never end."""
    rng = np.random.default_rng(4)
    kernel = make_graph("delaunay", 30, rng=rng)
    counts = rng.multinomial(60, np.full(30, 1 / 30), 5)
    seen = Snapshots.from_counts(np.linspace(0, 4, 5), counts)
    model = FreeEnergyRegressor(method="weak", **options).fit(kernel, seen)  # type: ignore[arg-type]
    assert model.beta_ > 0
    path = model.predict(None, seen.times)
    assert np.isfinite(path.probabilities).all()
    if model.beta_verdict_.kind == "undetermined":
        assert model.beta_stderr_ == np.inf or np.isnan(model.beta_stderr_)


@pytest.mark.parametrize("rough", [False, True])
def test_errors_hold_on_two_hundred_states(rough: bool) -> None:
    """Smooth or rough: before scoring, beta is half too low or three times too high."""
    rng = np.random.default_rng(5)
    kernel = make_graph("delaunay", 200, rng=rng)
    assert kernel.coordinates is not None
    waves = np.sin(5 * kernel.coordinates[:, 0]) + np.cos(4 * kernel.coordinates[:, 1])
    potential = centred(rng.uniform(-2, 2, 200) if rough else waves, kernel)
    times = np.linspace(0, 8, 9)
    start = rng.dirichlet(np.full(200, 5.0))
    p = gradient_flow(kernel, FreeEnergy(potential, 0.2), start, times).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(20_000, q / q.sum()) for q in p])
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert model.status_ is Status.CONVERGED
    assert abs(np.log(model.beta_ / 0.2)) < np.log(1.25)
    assert model.beta_verdict_.lower < 0.2 < model.beta_verdict_.upper
    within = np.abs(model.potential_ - potential) < 1.96 * model.potential_stderr_
    assert within.mean() > 0.9
    assert model.diagnostics_["p_value"] > 1e-2


def test_where_the_closed_form_fails_it_says_so() -> None:
    """Six states, a beta a tenth of the potential: states run empty, and the form is biased."""
    rng = np.random.default_rng(0)
    kernel = make_graph("torus", 6, rng=rng)
    n, times = kernel.n_states, np.linspace(0, 5, 51)
    energy = FreeEnergy(rng.uniform(-1, 1, n), 0.1)
    p = gradient_flow(kernel, energy, rng.dirichlet(np.ones(n)), times).probabilities
    counts = np.array([rng.multinomial(10_000, q / q.sum()) for q in p], dtype=np.float64)
    closed = fit_regression(kernel, times, counts, mobility=LogMean())
    assert abs(closed.beta - 0.1) > 0.05
    closed = with_errors(
        kernel, times, counts, closed, mobility=LogMean(), beta=None, rng=np.random.default_rng(1)
    )
    assert closed.p_value < 1e-2
    seen = Snapshots.from_counts(times, counts)
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert model.beta_verdict_.lower < 0.1 < model.beta_verdict_.upper
    known = FreeEnergyRegressor(method="weak", beta=0.3).fit(kernel, seen)
    assert known.beta_stderr_ == 0.0
    assert np.isinf(known.potential_stderr_).all()
    assert "does not describe" in known.diagnostics_["advice"]


@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean()])
@pytest.mark.parametrize("beta", [None, 0.2])
def test_equals_the_dense_least_squares(mobility: Mobility, beta: float | None) -> None:
    """Columns for the first shares, the potential and beta, rows for every share, written out."""
    sizes = np.linspace(200.0, 500.0, TIMES.size)
    shares = np.array([RNG.multinomial(int(s), row) for s, row in zip(sizes, P, strict=True)])
    shares = shares / shares.sum(axis=1, keepdims=True)
    n, moved, heat = KERNEL.n_states, np.zeros((12, 12)), np.zeros(12)
    rows, right, before = [], [], None
    for k, (p, size) in enumerate(zip(P, sizes, strict=True)):
        here = transport_laplacian(KERNEL, p, mobility).toarray()
        warm = here @ np.log(p / KERNEL.stationary)
        if before is not None:
            step = 0.5 * (TIMES[k] - TIMES[k - 1])
            moved, heat = moved + step * (here + before[0]), heat + step * (warm + before[1])
        before = here, warm
        root = (size / np.sqrt(size * p + 1.0))[:, None]
        rows.append(root * np.column_stack([np.eye(n), -moved, -heat]))
        right.append(root[:, 0] * shares[k])
    table, target = np.concatenate(rows), np.concatenate(right)
    if beta is not None:
        table, target = table[:, :-1], target - beta * table[:, -1]
    expected = np.linalg.lstsq(table, target)[0]
    equations = normal_equations(KERNEL, TIMES, sizes, P, mobility)
    found = equations.solve(equations.right(shares)[:, None], beta)[:, 0]
    np.testing.assert_allclose(found[:n], expected[:n], atol=1e-6)
    potential, other = found[n : 2 * n], expected[n : 2 * n]
    np.testing.assert_allclose(potential - potential.mean(), other - other.mean(), atol=1e-4)
    assert found[-1] == pytest.approx(expected[-1] if beta is None else beta, rel=1e-5)


def five_each(n: int) -> tuple[MarkovKernel, FreeEnergy, Snapshots]:
    """A rough landscape, seen at six times by five individuals per state."""
    rng = np.random.default_rng(7)
    kernel = make_graph("watts_strogatz", n, rng=rng)
    truth, times = FreeEnergy(rng.uniform(-0.6, 0.6, n), 0.2), np.linspace(0, 4, 6)
    p = gradient_flow(kernel, truth, rng.dirichlet(np.ones(n)), times).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(5 * n, q / q.sum()) for q in p])
    return kernel, truth, seen


def test_sixty_states_with_five_individuals_each() -> None:
    """Many begin empty, and fill: the search ends, and its errors are large enough."""
    kernel, truth, seen = five_each(60)
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert model.status_ is Status.CONVERGED
    away = abs(model.potential_ - centred(truth.potential, kernel))
    assert np.mean(away < 1.96 * model.potential_stderr_) > 0.8
    assert model.beta_verdict_.lower < 0.2 < model.beta_verdict_.upper


def test_a_state_that_hardly_anybody_shows_has_a_large_error() -> None:
    """Eight individuals in the first snapshot, none later: its height runs away, and the centring
    takes all others with it."""
    rng = np.random.default_rng([78101, 1, 30, 50])
    kernel = make_graph("delaunay", 30, rng=rng)
    smooth = np.eye(30) + 5.0 * (np.eye(30) - kernel.matrix.toarray())
    potential = np.linalg.solve(smooth, rng.normal(size=30))
    truth, times = FreeEnergy(potential / potential.std(), 0.1), np.linspace(0, 3, 6)
    p = gradient_flow(kernel, truth, rng.dirichlet(np.ones(30)), times).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(1500, q / q.sum()) for q in p])
    assert seen.counts[0, 5] == 8
    assert seen.counts[1:, 5].sum() == 0
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    away = abs(model.potential_ - centred(truth.potential, kernel))
    assert np.mean(away < 1.96 * model.potential_stderr_) > 0.8


def test_few_individuals_on_many_states_have_no_errors() -> None:
    kernel, _, seen = five_each(301)
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert np.isinf(model.potential_stderr_).all()
    assert "method='likelihood'" in str(model.beta_verdict_)


def test_a_search_that_does_not_end_claims_no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No p-value, no errors, and what to use instead."""
    monkeypatch.setattr(scoring, "_MOST_STEPS", 1)
    kernel, _, seen = five_each(60)
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert model.status_ is Status.MAX_ITERATIONS
    assert "p_value" not in model.diagnostics_
    assert np.isnan(model.potential_stderr_).all() or np.isinf(model.potential_stderr_).all()
    assert "method='likelihood'" in str(model.beta_verdict_)
    assert not any(
        "consistent" in sentence or "nan" in sentence for sentence in findings(model, seen)
    )
