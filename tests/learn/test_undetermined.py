"""Likelihood fits of every kind say what the data leave open, and give it no small error.

Scaling V and beta together leaves a resting population as it is, and two snapshots can be joined at
any beta: such data determine neither beta nor the size of the potential.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    MarkovKernel,
    Snapshots,
    Status,
    TimeBasis,
    gradient_flow,
    simulate,
)
from thalweg.errors import InputError
from thalweg.mobility import GeometricMean

TIMES = np.arange(4.0)
COLUMNS = np.array([[1.0, 0.3], [0.2, -1.0], [-0.5, 0.4], [0.7, 0.9], [-1.2, 0.1]])
ENERGY = FreeEnergy(COLUMNS @ [0.5, 0.2], 0.2)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tracked": {"observation": "tracked"},
    "tracked, frozen": {"observation": "tracked", "discretization": "frozen"},
    "tracked, empirical": {"observation": "tracked", "environment": "empirical"},
    "frozen": {"discretization": "frozen"},
    "features": {"features": COLUMNS},
    "time basis": {"time_basis": TimeBasis.piecewise([1.5])},
    "interaction": {"interactions": [np.eye(5)]},
    "growth": {"growth": "states"},
    "prior": {"prior": 1.0},
    "another mean": {"mobility": GeometricMean()},
    "start known": {"initial": [0.5, 0.3, 0.1, 0.05, 0.05]},
}


def ring() -> MarkovKernel:
    return MarkovKernel.from_weights(np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1))


def resting(kind: str) -> Snapshots:
    rows = {"identical": [50.0, 30.0, 10.0, 5.0, 5.0], "one state": [100.0, 0.0, 0.0, 0.0, 0.0]}
    if kind in rows:
        return Snapshots.from_counts(TIMES, np.tile(rows[kind], (4, 1)))
    p = ENERGY.equilibrium(ring())
    return Snapshots.from_counts(TIMES, np.random.default_rng(3).multinomial(300, p, size=4))


def moving(beta: float, size: int, n_times: int = 4) -> Snapshots:
    times = np.linspace(0.0, 3.0, n_times)
    energy = FreeEnergy(ENERGY.potential, beta)
    p = gradient_flow(ring(), energy, [0.5, 0.3, 0.1, 0.05, 0.05], times).probabilities
    rng = np.random.default_rng(4)
    return Snapshots.from_counts(times, [rng.multinomial(size, row / row.sum()) for row in p])


def expect_nothing(model: FreeEnergyRegressor) -> None:
    assert model.status_ is Status.UNDETERMINED
    assert model.beta_verdict_.vacuous
    assert np.isinf(model.beta_stderr_)
    assert np.isinf(model.potential_stderr_).all()
    assert model.determined_ == {"beta": False, "potential": False}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("kind", ["identical", "one state", "equilibrium"])
def test_a_population_at_rest_shows_no_size(kind: str, options: dict[str, Any]) -> None:
    if kind == "equilibrium" and "observation" in options:
        pytest.skip("tracked individuals who change places have moved")
    model = FreeEnergyRegressor(**options).fit(ring(), resting(kind))
    expect_nothing(model)
    if "observation" not in options:
        assert "No movement was seen" in str(model.beta_verdict_)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "features"])
def test_two_snapshots_show_no_size_without_an_average(name: str) -> None:
    model = FreeEnergyRegressor(**KINDS[name]).fit(ring(), moving(0.2, 100_000, n_times=2))
    assert "Two snapshots can be joined at any beta" in str(model.beta_verdict_)
    if model.fitted_.members is None:
        expect_nothing(model)
    else:  # the average over betas is as wide as its prior
        assert (model.potential_stderr_ > 0.5 * np.abs(model.potential_)).all()


def test_one_tracked_individual_determines_nothing() -> None:
    start = np.eye(5)[0] * 0.96 + 0.008
    seen = simulate(ring(), ENERGY, start, TIMES, 1, rng=np.random.default_rng(0))
    model = FreeEnergyRegressor(observation="tracked").fit(ring(), seen)
    assert not model.status_
    assert model.beta_verdict_.vacuous
    assert np.isinf(model.potential_stderr_).all()


def test_at_rest_a_given_beta_gives_the_potential() -> None:
    model = FreeEnergyRegressor(beta=0.2).fit(ring(), resting("equilibrium"))
    truth = ENERGY.potential - ring().stationary @ ENERGY.potential
    assert (np.abs(model.potential_ - truth) < 3 * model.potential_stderr_).all()
    assert model.potential_stderr_.max() < 0.5 < np.ptp(truth)
    assert model.beta_verdict_.kind == "given"


def test_a_given_potential_at_rest_gives_beta() -> None:
    model = FreeEnergyRegressor(potential=ENERGY.potential).fit(ring(), resting("equilibrium"))
    assert model.beta_verdict_.kind == "determined"
    assert abs(model.beta_ - 0.2) < 3 * model.beta_stderr_ < 0.15
    assert (model.potential_stderr_ == 0.0).all()


@pytest.mark.parametrize("name", ["features", "tracked, empirical", "prior", "start known"])
def test_a_beta_near_zero_is_bounded_and_the_potential_is_known(name: str) -> None:
    """The likelihood is flat in log beta there, but not open above."""
    if name.startswith("tracked"):
        rng = np.random.default_rng(1)
        energy = FreeEnergy(ENERGY.potential, 0.005)
        start = [0.5, 0.3, 0.1, 0.05, 0.05]
        seen = simulate(ring(), energy, start, TIMES, 2000, rates="empirical", rng=rng)
    else:
        seen = moving(0.005, 2000)
    model = FreeEnergyRegressor(**KINDS[name]).fit(ring(), seen)
    verdict = model.beta_verdict_
    assert verdict.lower <= 0.005 <= verdict.upper < 0.5
    assert model.status_ is Status.CONVERGED
    # State 3 emptied at once: tracked individuals show how high it is at least, not at most.
    known = [0, 1, 2, 4] if name.startswith("tracked") else slice(None)
    assert model.potential_stderr_[known].max() < 0.3
    off = model.potential_ - (ENERGY.potential - ring().stationary @ ENERGY.potential)
    assert (np.abs(off) < 3 * model.potential_stderr_).all()


def test_few_tracked_individuals_have_errors_that_cover() -> None:
    """The evidence shrinks the potential at a fixed beta, and errors include how far it does."""
    covered, p_values = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(20, 2))
        kernel = MarkovKernel.from_points(points, n_neighbors=6)
        energy = FreeEnergy(0.5 * np.sin(1.5 * points[:, 0]), 0.3)
        start, times = rng.dirichlet(np.ones(20)), np.linspace(0.0, 4.0, 6)
        seen = simulate(kernel, energy, start, times, 60, rng=rng)
        model = FreeEnergyRegressor(observation="tracked").fit(kernel, seen)
        off = model.potential_ - (energy.potential - kernel.stationary @ energy.potential)
        covered.append(np.mean(np.abs(off) < 2 * model.potential_stderr_))
        assert model.beta_verdict_.lower <= 0.3 <= model.beta_verdict_.upper
        p_values.append(model.diagnostics_["p_value"])
    assert np.mean(covered) > 0.9
    assert np.mean(np.array(p_values) < 0.05) < 0.5


def test_another_start_has_no_band_where_the_speed_is_open() -> None:
    """At rest the population stays; how fast another one would move is open."""
    model = FreeEnergyRegressor().fit(ring(), resting("equilibrium"))
    own = model.forecast([0.0, 5.0])
    p = ENERGY.equilibrium(ring())
    assert ((own.lower <= p) & (p <= own.upper)).all()
    assert (own.upper - own.lower).max() < 0.5
    other = model.forecast([0.0, 5.0], p0=np.full(5, 0.2))
    np.testing.assert_array_equal(other.lower[1], 0.0)
    np.testing.assert_array_equal(other.upper[1], 1.0)
    passage = model.mean_first_passage_time([0])
    assert not np.isfinite(passage.stderr).any()
    tracked = FreeEnergyRegressor(observation="tracked").fit(ring(), resting("identical"))
    with pytest.raises(InputError, match="give beta if the data leave it open"):
        tracked.forecast([0.0, 1.0])
