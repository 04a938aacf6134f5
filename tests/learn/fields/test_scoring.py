"""Fisher scoring from the weak form: where it ends, its errors, and when it gives none."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import scoring
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.learn.fields.scoring import scored
from thalweg.learn.weak.regression import RegressionFit, fit_regression
from thalweg.mobility import LogMean
from thalweg.status import Status

BETA = 0.1


def waves(
    n: int, per_state: int, seed: int, n_times: int = 11
) -> tuple[MarkovKernel, Array, Array]:
    """A smooth landscape in the plane, and counts of its flow."""
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    p0 = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    energy = FreeEnergy(np.sin(9 * x) * np.cos(6 * y), BETA)
    times = np.linspace(0, 5, n_times)
    p = gradient_flow(kernel, energy, p0 / p0.sum(), times).probabilities
    counts = [rng.multinomial(per_state * n, row / row.sum()) for row in p]
    return kernel, times, np.array(counts, dtype=np.float64)


def both(
    kernel: MarkovKernel, times: Array, counts: Array, beta: float | None = None
) -> tuple[RegressionFit, RegressionFit]:
    start = fit_regression(kernel, times, counts, mobility=LogMean(), beta=beta)
    rng = np.random.default_rng(0)
    found = scored(kernel, times, counts, start, beta=beta, rng=rng)
    assert found is not None
    return start, found


def test_few_counts_per_state_no_longer_bias_beta() -> None:
    ratios = []
    for seed in range(4):
        kernel, times, counts = waves(150, 20, seed)
        start, found = both(kernel, times, counts)
        low, high = found.beta_interval
        assert low < BETA < high
        ratios.append(np.log(np.array([start.beta, found.beta]) / BETA))
    before, after = np.mean(ratios, axis=0)
    assert abs(before) > 0.4
    assert abs(after) < 0.3


def test_it_ends_where_the_likelihood_is_stationary() -> None:
    kernel, times, counts = waves(60, 200, 3)
    start, found = both(kernel, times, counts)
    assert found.status is Status.CONVERGED
    likelihood = Likelihood(FlowMap(kernel, times, substeps=8), counts)
    slopes = []
    for fit in (start, found):
        place = likelihood.at(
            np.log(fit.initial / kernel.stationary), fit.potential, np.log(fit.beta)
        )
        assert place is not None
        slopes.append(np.linalg.norm(place.score()[0]))
    assert slopes[1] < 0.2 * slopes[0]
    # As many residuals as the data have beyond the directions that they determine.
    assert abs(found.chi_square - found.freedom) < 4 * np.sqrt(2 * found.freedom)
    assert found.p_value > 1e-3


def test_errors_are_those_of_repeated_samples() -> None:
    kernel, times, counts = waves(40, 300, 5)
    p = counts / counts.sum(axis=1, keepdims=True)
    fits = []
    rng = np.random.default_rng(8)
    for _ in range(12):
        drawn = np.array([rng.multinomial(12_000, row) for row in p], dtype=np.float64)
        fits.append(both(kernel, times, drawn)[1])
    spread = np.std([f.potential for f in fits], axis=0, ddof=1).mean()
    claimed = np.mean([f.potential_stderr for f in fits])
    assert 0.7 < claimed / spread < 1.6
    betas = np.std([f.beta for f in fits], ddof=1)
    assert 0.6 < np.mean([f.beta_stderr for f in fits]) / betas < 3.0


def test_long_intervals_take_finer_time_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, times, counts = waves(40, 20_000, 2, n_times=4)
    fine = both(kernel, times, counts)[1]
    monkeypatch.setattr(scoring, "_MOST_SUBSTEPS", 1)
    coarse = both(kernel, times, counts)[1]
    assert abs(np.log(fine.beta / BETA)) < 0.05
    assert abs(np.log(coarse.beta / BETA)) > 2 * abs(np.log(fine.beta / BETA))


def test_a_known_beta_is_kept() -> None:
    kernel, times, counts = waves(40, 100, 4)
    found = both(kernel, times, counts, beta=BETA)[1]
    assert found.beta == BETA
    assert found.beta_stderr == 0.0
    assert found.potential_stderr is not None
    assert np.isfinite(found.potential_stderr).all()


def test_a_search_that_did_not_end_gives_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_MOST_STEPS", 1)
    kernel, times, counts = waves(60, 5, 1)
    found = both(kernel, times, counts)[1]
    assert not found.status
    assert found.beta_stderr == np.inf
    assert found.beta_interval == (0.0, np.inf)
    assert np.isnan(found.p_value)
    # A crowd that jumps to and fro has no landscape, whether the search ends or not.
    monkeypatch.undo()
    counts[1::2] = counts[1::2, ::-1]
    assert both(kernel, times, 100 * counts)[1].p_value < 1e-12


def test_potentials_are_centred() -> None:
    kernel, times, counts = waves(40, 100, 6)
    found = both(kernel, times, counts)[1]
    np.testing.assert_allclose(found.potential, centred(found.potential, kernel), atol=1e-12)
