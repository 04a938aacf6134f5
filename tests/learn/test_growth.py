"""Births beside transport: the flow, its sensitivities, and what a fit finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow, growth_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, load
from thalweg.learn.growth import Growth, growth_of
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.snapshots import Snapshots
from thalweg.status import Status

Array = NDArray[np.float64]

KERNEL = MarkovKernel.from_weights([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
ENERGY = FreeEnergy(np.array([0.7, 0.1, -0.5, -0.3]), 0.5)
RATES = np.array([0.4, 0.0, -0.3, 0.1])
TIMES = np.linspace(0, 3, 10)
START = np.array([0.55, 0.05, 0.1, 0.3])


def test_without_births_growth_flow_is_the_flow() -> None:
    p0, times = [0.7, 0.1, 0.1, 0.1], [0.0, 1.0, 2.0]
    ours = growth_flow(KERNEL, ENERGY, p0, times, rates=np.zeros(4))
    assert np.allclose(ours, gradient_flow(KERNEL, ENERGY, p0, times).probabilities, atol=1e-6)


def test_splitting_is_of_second_order() -> None:
    rates, m0 = np.array([0.5, 0.0, -0.3, 0.2]), [7.0, 1.0, 1.0, 1.0]
    fine = growth_flow(KERNEL, ENERGY, m0, [0.0, 1.0], rates=rates, n_steps=128)[-1]
    errors = [
        abs(growth_flow(KERNEL, ENERGY, m0, [0.0, 1.0], rates=rates, n_steps=n)[-1] - fine).max()
        for n in (4, 8, 16)
    ]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (slopes > 1.7).all()


def test_the_same_rate_everywhere_only_scales_the_whole() -> None:
    ours = growth_flow(KERNEL, ENERGY, [2, 1, 1, 1], [0.0, 1.5], rates=np.full(4, 0.2))[-1]
    assert np.isclose(ours.sum(), 5 * np.exp(0.3))


def _masses() -> Array:
    return growth_flow(KERNEL, ENERGY, 1e5 * START, TIMES, rates=RATES)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_the_likelihood_integrates_the_same_flow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates, v, beta = rng.normal(0, 0.5, 4), rng.normal(0, 0.5, 4), 0.3
    start, times = rng.dirichlet(np.full(4, 3.0)), np.array([0.0, 0.5, 1.2])
    model = LikelihoodOptions(growth=Growth()).model(KERNEL, times)
    theta = np.concatenate([v, rates, [np.log(beta)], np.log(start / KERNEL.stationary)])
    mesh = Mesh(np.array([16, 16]), 3)
    ours = model.probabilities(theta, mesh)
    masses = growth_flow(KERNEL, FreeEnergy(v, beta), start, times, rates=rates, n_steps=64)
    assert ours == pytest.approx(masses / masses.sum(axis=1, keepdims=True), abs=2e-4)
    # And the growth of the whole.
    whole = [chunk.mass for chunk in model.trajectory(theta, mesh) if chunk is not None][-1]
    assert whole[:, 0] == pytest.approx(np.log(masses.sum(axis=1))[1:], abs=2e-4)
    direction = rng.normal(size=theta.size)
    up, down = (model.sensitivities(theta + e * direction, mesh) for e in (1e-5, -1e-5))
    here = model.sensitivities(theta, mesh)
    assert up is not None
    assert down is not None
    assert here is not None
    assert here[1] @ direction == pytest.approx((up[0] - down[0]) / 2e-5, abs=1e-4)


def test_known_and_learned_rates_through_the_regressor(tmp_path: Path) -> None:
    masses = _masses()
    totals = masses.sum(axis=1)
    rng = np.random.default_rng(8)
    counts = [rng.multinomial(20_000, m / m.sum()) for m in masses]
    seen = Snapshots.from_counts(TIMES, counts)
    learned = FreeEnergyRegressor(growth=Growth(totals=totals)).fit(KERNEL, seen)
    found = learned.growth_
    assert found is not None
    assert found.anchored
    assert found.p_value < 1e-3  # births are there, and are seen
    # Within three standard errors, and these are small enough to mean something.
    assert (np.abs(found.rates - RATES) < 3 * found.stderr).all()
    assert found.stderr.max() < 0.5
    assert (
        np.abs(learned.potential_ - (ENERGY.potential - KERNEL.stationary @ ENERGY.potential))
        < 3 * learned.potential_stderr_
    ).all()
    given_ = FreeEnergyRegressor(growth=RATES).fit(KERNEL, seen)
    assert given_.growth_ is not None
    assert given_.growth_.rates == pytest.approx(RATES)
    assert given_.potential_stderr_.max() < learned.potential_stderr_.max()
    assert given_.beta_ == pytest.approx(0.5, rel=0.1)
    alone = FreeEnergyRegressor().fit(KERNEL, seen)
    assert learned.diagnostics_["deviance"] < alone.diagnostics_["deviance"] - 10
    shares = masses[-1] / totals[-1]
    assert learned.predict(None, TIMES).final == pytest.approx(shares, abs=0.01)
    band = learned.forecast(TIMES)
    assert ((band.lower <= band.probabilities) & (band.probabilities <= band.upper)).all()
    sampled = learned.forecast(TIMES, p0=START, p0_size=50.0)
    sure = learned.forecast(TIMES, p0=START)
    assert sure.upper[0] == pytest.approx(START, abs=1e-6)
    # The noise of fifty individuals is in the band, at the start and later.
    deviation = np.sqrt(START * (1 - START) / 50)
    assert sampled.upper[0] - sampled.lower[0] == pytest.approx(3.9 * deviation, rel=0.4)
    assert ((sampled.upper - sampled.lower)[:5] > 1.2 * (sure.upper - sure.lower)[:5]).all()
    learned.save(tmp_path / "m.thalweg")
    again = load(tmp_path / "m.thalweg")
    assert again.growth_ is not None
    assert again.growth_.rates == pytest.approx(found.rates)
    assert again.predict(None, TIMES).final == pytest.approx(learned.predict(None, TIMES).final)
    with pytest.raises(InputError, match="does not hold the covariance of growth"):
        again.forecast(TIMES)


def test_growth_of_a_feature_where_nothing_is_born_is_not_needed() -> None:
    p = gradient_flow(KERNEL, ENERGY, START, TIMES).probabilities
    rng = np.random.default_rng(3)
    seen = Snapshots.from_counts(TIMES, [rng.multinomial(5000, row / row.sum()) for row in p])
    growth = Growth(features=np.array([0.0, 1.0, 0.0, 0.0]))
    found = FreeEnergyRegressor(growth=growth).fit(KERNEL, seen).growth_
    assert found is not None
    assert found.p_value > 0.01
    assert found.gain >= 0  # never worse than transport alone
    assert "Rates are relative" in str(found)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"growth": "everywhere"}, "growth is 'everywhere'"),
        ({"growth": Growth(totals=[1.0, 2.0])}, "totals must be one positive number per time"),
        ({"growth": Growth(features=np.ones(3))}, "growth features have shape"),
        ({"growth": "states", "method": "weak"}, "does not learn growth"),
        ({"growth": "states", "observation": "tracked"}, "growth is learned from independent"),
    ],
)
def test_what_growth_cannot_do_is_said(options: dict[str, object], sentence: str) -> None:
    seen = Snapshots.from_counts(TIMES, _masses())
    with pytest.raises(InputError, match=sentence):
        FreeEnergyRegressor(**options).fit(KERNEL, seen)  # type: ignore[arg-type]


def test_a_rate_per_state_on_thirty_states_ends() -> None:
    rng = np.random.default_rng(3)
    n, times = 30, np.linspace(0.0, 3.0, 6)
    kernel = make_graph("watts_strogatz", n, rng=rng)
    energy = FreeEnergy(0.6 * rng.normal(size=n), 1.0)
    mass = growth_flow(
        kernel, energy, rng.dirichlet(np.ones(n)), times, rates=0.3 * rng.normal(size=n)
    )
    counts = [rng.multinomial(1000, m / m.sum()) for m in mass]
    seen = Snapshots.from_counts(times, np.array(counts, dtype=np.float64))
    model = FreeEnergyRegressor(growth="states", max_iterations=400).fit(kernel, seen)
    assert model.status_ in (Status.CONVERGED, Status.UNDETERMINED)
    assert model.growth_ is not None
    assert model.growth_.gain > 0.0
    stopped = FreeEnergyRegressor(growth="states", max_iterations=5).fit(kernel, seen)
    assert stopped.status_ is Status.MAX_ITERATIONS
    assert not stopped.beta_verdict_.determined


def test_rates_of_births_that_the_data_do_not_show_vanish_but_keep_their_errors() -> None:
    p = gradient_flow(KERNEL, ENERGY, START, TIMES).probabilities
    left = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        counts = np.array([rng.multinomial(2000, row / row.sum()) for row in p])
        fit = fit_likelihood(KERNEL, TIMES, counts, options=LikelihoodOptions(growth=Growth()))
        assert fit.unshrunk is not None
        found, weak = growth_of(fit), growth_of(fit.unshrunk)
        left.append(np.abs(found.rates).max() / np.abs(weak.rates).max())
        assert (found.stderr > 0.99 * weak.stderr).all()
        assert fit.beta == pytest.approx(fit_likelihood(KERNEL, TIMES, counts).beta, rel=0.1)
    assert np.median(left) < 0.1


def test_a_search_that_did_not_converge_judges_no_growth(tmp_path: Path) -> None:
    m = _masses()
    counts = np.random.default_rng(0).poisson(2e3 * m / m.sum(axis=1, keepdims=True))
    snapshots = Snapshots.from_counts(TIMES, counts)
    model = FreeEnergyRegressor(growth="states", max_iterations=1).fit(KERNEL, snapshots)
    assert model.status_ is Status.MAX_ITERATIONS
    model.save(tmp_path / "m.thalweg")
    for found in (model.growth_, load(tmp_path / "m.thalweg").growth_):
        assert found is not None
        assert "not known" in str(found)
        assert np.isinf(found.stderr).all()


@pytest.mark.parametrize("energy", [ENERGY, None])
def test_growth_that_cannot_be_computed_is_rejected(energy: FreeEnergy | None) -> None:
    masses, rates = np.ones(4), np.zeros(4)
    with pytest.raises(InputError, match="n_steps is 0"):
        growth_flow(KERNEL, energy, masses, [0.0, 1.0], rates=rates, n_steps=0)
    with pytest.raises(InputError, match="overflow"):
        growth_flow(KERNEL, energy, masses, [0.0, 2.0], rates=rates + 1e4)
