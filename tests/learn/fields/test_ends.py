"""Few individuals on many states: no beta is called determined that others describe as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, answer, load, many_states
from thalweg.learn.diagnostics import GoodnessOfFit, goodness_of_many
from thalweg.learn.fields import fit_likelihood_large
from thalweg.learn.fields.ends import try_ends
from thalweg.learn.fields.options import LargeFit, LargeOptions
from thalweg.learn.fields.spectrum import SpectralPrior, Spectrum
from thalweg.snapshots import Snapshots
from thalweg.status import Status


def data(n: int, size: int, seed: int) -> tuple[MarkovKernel, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    assert kernel.coordinates is not None
    potential = np.sin(5 * kernel.coordinates[:, 0])
    times = np.linspace(0, 6, 4)
    start = rng.dirichlet(np.full(n, 3.0))
    p = gradient_flow(kernel, FreeEnergy(potential, 0.2), start, times).probabilities
    counts = np.array([rng.multinomial(size, q / q.sum()) for q in p], dtype=float)
    return kernel, times, counts, potential - kernel.stationary @ potential


@pytest.mark.parametrize("most", [300, 600])
def test_one_individual_per_state_does_not_determine_beta(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the matrix-free likelihood nor by an average over priors."""
    monkeypatch.setattr(answer, "FEW_STATES", most)
    kernel, times, counts, potential = data(400, 400, 3)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    assert (model.fitted_.members is not None) == (most == 600)
    verdict = model.beta_verdict_
    assert not verdict.determined
    assert verdict.lower <= 0.2 <= verdict.upper
    within = np.abs(model.potential_ - potential) < 1.96 * model.potential_stderr_
    assert within.mean() > 0.85


def test_a_side_is_open_where_the_likelihood_does_not_fall() -> None:
    kernel, times, counts, _ = data(60, 120, 4)
    fit = fit_likelihood_large(kernel, times, counts)
    fit = replace(fit, status=Status.CONVERGED)

    def refit(beta: float) -> LargeFit:
        fall = 10.0 if beta > fit.beta else 1.0
        energy = FreeEnergy(fit.potential + 3.0, beta)
        return replace(fit, energy=energy, log_likelihood=fit.log_likelihood - fall)

    wider, below, above = try_ends(fit, refit)
    assert below == 0.0
    assert above == pytest.approx(5.0 * fit.beta)  # the most that was tried
    expected = 4.0 * (fit.potential_stderr**2 + 1.5**2 + 1.5**2 * 3.32 / 10.0)
    assert np.allclose(wider.potential_stderr**2, expected)
    many = replace(fit, counts=100.0 * fit.counts)
    assert try_ends(many, refit) == (many, fit.beta, fit.beta)


def test_an_interval_reaches_as_far_as_the_fall_of_the_likelihood_says() -> None:
    kernel, times, counts, _ = data(60, 120, 4)
    fit = replace(fit_likelihood_large(kernel, times, counts), status=Status.CONVERGED)

    def refit(beta: float) -> LargeFit:
        energy = FreeEnergy(fit.potential, beta)
        return replace(fit, energy=energy, log_likelihood=fit.log_likelihood - 4 * 3.32)

    _, below, above = try_ends(fit, refit)  # twice as far in standard deviations as the drop
    assert below == pytest.approx(fit.beta / np.sqrt(5.0))
    assert above == pytest.approx(fit.beta * np.sqrt(5.0))


def test_coordinates_of_many_dimensions_are_left_out() -> None:
    rng = np.random.default_rng(6)
    kernel = MarkovKernel.from_points(rng.normal(size=(80, 5)), n_neighbors=8)
    counts = rng.multinomial(800, kernel.stationary, size=3)
    few = LargeOptions(max_rounds=2)
    fits = [
        fit_likelihood_large(kernel, [0.0, 1.0, 2.0], counts, coordinates=how, options=few)
        for how in ("kernel", None)
    ]
    assert np.array_equal(fits[0].potential, fits[1].potential)


def test_the_pull_moves_only_levels_that_the_data_leave_open() -> None:
    """Taken back, it loosens the slow bumps by far and those of many known modes hardly."""
    kernel = make_graph("grid", 400, rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    spectrum = Spectrum(kernel, rng)
    prior = SpectralPrior.of_field(spectrum, rng.uniform(-1, 1, kernel.n_states))
    information = spectrum.level_information(np.full(spectrum.knots.size, 0.9))
    moved = prior.levels - spectrum.unpulled(prior.levels, information)
    assert (moved >= 0.0).all()
    assert moved[0] > 0.2
    assert moved[spectrum.modes > 40].max() < 0.1


def test_a_population_at_rest_keeps_its_infinite_errors_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "FEW_STATES", 300)
    kernel = make_graph("grid", 400, rng=np.random.default_rng(0))
    counts = np.random.default_rng(1).multinomial(400, kernel.stationary, size=3)
    tried: list[LargeFit] = []
    monkeypatch.setattr(many_states, "try_ends", lambda fit, refit: tried.append(fit))
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts([0.0, 1.0, 2.0], counts))
    assert not tried  # any beta fits: none but one is fitted
    assert model.status_ is Status.UNDETERMINED
    assert np.isposinf(model.potential_stderr_).all()
    model.save(tmp_path / "rest.thalweg")
    again = load(tmp_path / "rest.thalweg")
    assert np.isposinf(again.potential_stderr_).all()
    assert np.allclose(again.predict(None, [2.0, 3.0]).probabilities.sum(axis=1), 1.0)


@pytest.mark.parametrize("better", [0, 1])
def test_where_a_smooth_prior_is_rejected_the_graph_alone_is_tried(
    better: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit that describes the counts better is kept."""
    monkeypatch.setattr(answer, "SMALL_STATES", 5)
    kernel, times, counts, _ = data(80, 3000, 3)
    snapshots = Snapshots.from_counts(times, counts)
    graph_first: list[bool] = []

    def judged(fit: LargeFit) -> GoodnessOfFit:
        graph_first.append(not fit.in_space)
        place = 0 if fit.in_space else 1
        deviance = 1e6 if place != better else 1e5
        found = goodness_of_many(deviance, fit.counts, fit.probabilities, fit.determined)
        assert found.statistic > 4.0
        return found

    monkeypatch.setattr(LargeFit, "goodness", property(judged))
    model = FreeEnergyRegressor().fit(kernel, snapshots)
    assert isinstance(model.fitted_.source, LargeFit)
    assert model.fitted_.source.in_space == (better == 0)
    assert True in graph_first
    direct = fit_likelihood_large(kernel, times, counts, coordinates="kernel")
    assert direct.in_space == (better == 0)
    one = LargeOptions(fall_back=False)
    assert fit_likelihood_large(kernel, times, counts, coordinates="kernel", options=one).in_space


def test_a_direct_fit_that_the_counts_reject_is_made_along_the_graph() -> None:
    """A rough landscape with five individuals per state and snapshot: no beta many times too large.

    The fit that is smooth in space alone is rejected, and sure of its beta.
    """
    rng = np.random.default_rng(11)
    kernel = make_graph("delaunay", 300, rng=rng)
    V, start = rng.uniform(-1, 1, 300), rng.dirichlet(np.full(300, 5.0))
    times = np.linspace(0, 5, 6)
    p = gradient_flow(kernel, FreeEnergy(V, 0.2), start, times).probabilities
    counts = np.array([rng.multinomial(1500, q / q.sum()) for q in p], dtype=float)
    smooth = LargeOptions(fall_back=False)
    alone = fit_likelihood_large(kernel, times, counts, coordinates="kernel", options=smooth)
    assert alone.rejected
    assert alone.beta_interval[0] > 0.2
    fit = fit_likelihood_large(kernel, times, counts, coordinates="kernel")
    assert not fit.in_space
    assert not fit.rejected
    assert fit.beta_interval[0] <= 0.2 <= fit.beta_interval[1]
