"""The weak form tested with modes: errors, a positive beta, a goodness of fit."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.weak.moments import fit_moments
from thalweg.mobility import LogMean
from thalweg.snapshots import Snapshots
from thalweg.status import Status

RNG = np.random.default_rng(17)
KERNEL = make_graph("delaunay", 12, rng=RNG)
assert KERNEL.coordinates is not None
ENERGY = FreeEnergy(centred(np.sin(5 * KERNEL.coordinates[:, 0]), KERNEL), 0.4)
TIMES = np.linspace(0, 4, 10)
P = gradient_flow(KERNEL, ENERGY, RNG.dirichlet(np.full(12, 2.0)), TIMES).probabilities
P = P / P.sum(axis=1, keepdims=True)


def test_exact_moments_give_the_truth() -> None:
    """Only the quadrature in time is left, and it shrinks as snapshots become denser."""
    errors = []
    for step in (3, 1):
        fit = fit_moments(KERNEL, TIMES[::step], 1e7 * P[::step], mobility=LogMean())
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
def test_beyond_refits_errors_hold_or_are_refused(rough: bool) -> None:
    """On 200 states: a smooth landscape is covered, a rough one is not given errors at all."""
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
    if rough:
        assert not model.beta_verdict_.determined
        assert "not noise" in str(model.beta_verdict_)
        assert "does not describe" in model.diagnostics_["advice"]
        assert np.isinf(model.potential_stderr_).all()
    else:
        assert model.beta_verdict_.lower < 0.2 < model.beta_verdict_.upper
        within = np.abs(model.potential_ - potential) < 1.96 * model.potential_stderr_
        assert within.mean() > 0.9
        assert "p_value" not in model.diagnostics_


def test_where_the_weak_form_fails_it_says_so() -> None:
    """Six states, a beta a tenth of the potential: states run empty, and the form is biased."""
    rng = np.random.default_rng(0)
    kernel = make_graph("torus", 6, rng=rng)
    n, times = kernel.n_states, np.linspace(0, 5, 51)
    energy = FreeEnergy(rng.uniform(-1, 1, n), 0.1)
    p = gradient_flow(kernel, energy, rng.dirichlet(np.ones(n)), times).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(10_000, q / q.sum()) for q in p])
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert abs(model.beta_ - 0.1) > 0.05
    assert not model.beta_verdict_.determined
    assert np.isinf(model.beta_stderr_)
    assert "does not describe" in model.diagnostics_["advice"]
    known = FreeEnergyRegressor(method="weak", beta=0.3).fit(kernel, seen)
    assert known.beta_stderr_ == 0.0
    assert np.isinf(known.potential_stderr_).all()
