"""Intervals and bands: consistent with each other and with refits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.forecast import Start, band_of
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.profile import walk_profile
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.snapshots import Snapshots
from thalweg_bench import accuracy_cases as cases

KERNEL = MarkovKernel.from_weights([[0, 1, 0, 0], [1, 0, 2, 1], [0, 2, 0, 1], [0, 1, 1, 0]])
TIMES = np.linspace(0, 2, 11)
P0 = np.array([0.4, 0.3, 0.2, 0.1])
V = np.array([0.5, -0.2, 0.3, -0.6])


DROP = 0.5 * float(chi2.ppf(0.95, 1))


def interval(fit: LikelihoodFit) -> tuple[float, float]:
    return walk_profile(fit, drop=DROP).interval(DROP)


def true_theta(beta: float) -> np.ndarray:
    return np.concatenate([V, [np.log(beta)], np.log(P0 / KERNEL.stationary)])


def make_fit(n: int, beta: float = 0.2, seed: int = 0, **options: object) -> LikelihoodFit:
    model = FlowModel(KERNEL, TIMES)
    p = model.probabilities(true_theta(beta), Mesh(np.full(10, 16, dtype=np.int64)))
    rng = np.random.default_rng(seed)
    counts = np.array([rng.multinomial(n, q / q.sum()) for q in p])
    return fit_likelihood(KERNEL, TIMES, counts, options=LikelihoodOptions(**options))


@pytest.fixture(scope="module")
def fit() -> LikelihoodFit:
    return make_fit(5000)


def test_errors_fall_like_one_over_root_n(fit: LikelihoodFit) -> None:
    finer = make_fit(80_000)
    np.testing.assert_allclose(fit.potential_stderr / finer.potential_stderr, 4, rtol=0.3)
    assert fit.beta_stderr / finer.beta_stderr == pytest.approx(4, rel=0.3)


def test_joint_covariance_holds_the_parts(fit: LikelihoodFit) -> None:
    joint = fit.joint_covariance
    np.testing.assert_allclose(joint[:4, :4], fit.potential_covariance, rtol=1e-5, atol=1e-9)
    assert np.sqrt(joint[4, 4]) == pytest.approx(fit.beta_stderr)
    # A centred potential and a distribution of mass one have no freedom along the constants.
    np.testing.assert_allclose(joint[:4, :4] @ KERNEL.stationary, 0, atol=1e-8)
    np.testing.assert_allclose(joint[5:, 5:] @ fit.initial, 0, atol=1e-8)


def test_profile_agrees_with_the_log_scale_where_beta_is_certain() -> None:
    sure = make_fit(200_000)
    normal = sure.beta * np.exp(np.array([-1.96, 1.96]) * sure.log_beta_stderr)
    np.testing.assert_allclose(interval(sure), normal, rtol=0.02)


def test_profile_end_is_where_the_likelihood_has_dropped() -> None:
    fit = make_fit(2000, prior_strength=0.01)
    _, upper = interval(fit)
    options = LikelihoodOptions(prior_strength=0.01, beta=float(upper))
    held = fit_likelihood(KERNEL, TIMES, fit.counts, options=options)
    assert held.deviance - fit.deviance == pytest.approx(chi2.ppf(0.95, 1), rel=0.15)


def test_beta_that_the_data_cannot_tell_from_zero() -> None:
    few = make_fit(200, beta=0.003)
    lower, upper = interval(few)
    assert lower == 0 or lower < 0.003
    assert upper > 0.003


def test_band_widens_with_ignorance_and_holds_the_truth(fit: LikelihoodFit) -> None:
    grid = np.array([0.0, 1.0, 2.0, 4.0])
    band = band_of(fit, grid, Start(), 0.999)
    model = FlowModel(KERNEL, grid)
    truth = model.probabilities(true_theta(0.2), Mesh(np.full(3, 64, dtype=np.int64)))
    assert np.all((band.lower <= truth) & (truth <= band.upper))
    sure = band_of(make_fit(500_000), grid, Start(), 0.999)
    assert np.all(sure.upper - sure.lower < band.upper - band.lower)
    known = band_of(fit, grid, Start(P0), 0.95)
    np.testing.assert_allclose(known.lower[0], P0, atol=1e-6)
    alone = band_of(fit, grid[:1], Start(), 0.999)
    np.testing.assert_allclose([alone.lower[0], alone.upper[0]], [band.lower[0], band.upper[0]])


def test_bootstrap_agrees_with_the_information(fit: LikelihoodFit) -> None:
    seen = Snapshots.from_counts(TIMES, fit.counts)
    model = FreeEnergyRegressor().fit(KERNEL, seen)
    again = model.bootstrap(seen, 40)
    # A standard deviation from 40 draws is off by 11 % on average.
    np.testing.assert_allclose(again.potential_stderr, model.potential_stderr_, rtol=0.4)
    assert np.mean(again.potential_stderr / model.potential_stderr_) == pytest.approx(1.0, abs=0.2)
    assert again.beta_stderr == pytest.approx(model.beta_stderr_, rel=0.4)
    assert all(again.statuses)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_bad_level(fit: LikelihoodFit, level: float) -> None:
    with pytest.raises(InputError, match=r"between 0 and 1"):
        band_of(fit, TIMES, Start(), level)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.2])
def test_coverage(beta: float) -> None:
    times = np.linspace(0, 5, 51)
    results = np.array([cases.coverage_run(i, 3, beta, times, 10_000) for i in range(150)])
    assert 0.91 < np.nanmean(results[:, 0]) < 0.985
    assert 0.89 < results[results[:, 2] > 0, 1].mean() < 0.99
