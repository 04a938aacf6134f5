"""Models of counts: their laws, and what a fit makes of them, through the public regressor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import dirichlet_multinomial, multinomial

from thalweg.adapters.tables import read_snapshots
from thalweg.energy import FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, load
from thalweg.learn.observation import CountModel, Multinomial, Overdispersed, Replicated
from thalweg.snapshots import Replicates, Snapshots

Array = NDArray[np.float64]

ROWS = Replicates(np.ones((2, 4)), np.array([0, 0]), np.array([0, 1]))
MODELS = [Multinomial(), Overdispersed(7.0), Overdispersed(3e4), Replicated(ROWS, 4.0)]


def _population(seed: int, n: int = 6, beta: float = 0.5) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    assert kernel.coordinates is not None
    energy = FreeEnergy(centred(np.sin(4 * kernel.coordinates[:, 0]), kernel), beta)
    times, start = np.linspace(0, 4, 8), np.array([0.7] + [0.3 / (n - 1)] * (n - 1))
    p = gradient_flow(kernel, energy, start, times).probabilities
    return kernel, times, p / p.sum(axis=1, keepdims=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MODELS))
def test_pull_is_the_slope_of_the_value(seed: int, model: CountModel) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), 3)
    counts = rng.integers(0, 50, (3, 4)) + np.eye(3, 4)
    direction = rng.normal(size=(3, 4))
    direction -= (p * direction).sum(axis=1, keepdims=True)

    def value(step: float) -> float:
        log_p = np.log(p) + step * direction
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        return model.terms(counts, log_p).value

    terms = model.terms(counts, np.log(p))
    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    assert -np.vdot(terms.pull, direction) == pytest.approx(slope, rel=1e-5, abs=1e-5)
    assert terms.pull.sum(axis=1) == pytest.approx(np.zeros(3), abs=1e-9)
    assert (terms.curvature >= terms.information - 1e-12).all()
    assert (terms.information >= 0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 1e3))
def test_likelihoods_agree_with_scipy(seed: int, s: float) -> None:
    rng = np.random.default_rng(seed)
    p, c = rng.dirichlet(np.ones(5)), rng.integers(0, 30, 5) + 1
    log_p, counts = np.log(p)[None], c[None].astype(float)
    # Both leave out the multinomial coefficient, which does not depend on p.
    coefficient = multinomial.logpmf(c, c.sum(), p) + Multinomial().terms(counts, log_p).value
    ours = coefficient - Overdispersed(s).terms(counts, log_p).value
    assert ours == pytest.approx(dirichlet_multinomial.logpmf(c, s * p, c.sum()), rel=1e-9)


@pytest.mark.parametrize("model", [Multinomial(), Overdispersed(30.0), Replicated(None, 5.0)])
def test_draws_scatter_as_the_terms_say(model: CountModel) -> None:
    """Where counts are many, the covariance of the pull is the information."""
    rng = np.random.default_rng(3)
    p = np.array([[0.5, 0.3, 0.2]])
    counts = np.array([[300.0, 0.0, 0.0]])
    drawn = [model.draw(counts, p, rng) for _ in range(1500)]
    assert all(c.sum() == 300 for c in drawn)
    terms = [model.terms(c, np.log(p)) for c in drawn]
    information = np.mean([t.information[0] for t in terms], axis=0)
    direction = np.array([1.0, -1.0, -1.0])  # centred under p
    pulls = np.array([t.pull[0] @ direction for t in terms])
    # The mean of 1500 squares has a relative error of 0.037.
    assert np.mean(pulls**2) == pytest.approx(direction**2 @ information, rel=0.2)


def test_many_individuals_of_a_high_concentration_are_multinomial() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(6), 2)
    counts = rng.multinomial(200, p[0], 2).astype(float)
    plain, wide = Multinomial(), Overdispersed(1e9)
    assert wide.deviance(counts, p) == pytest.approx(plain.deviance(counts, p), rel=1e-4)
    assert wide.design_effect(200.0) == pytest.approx(1.0, abs=1e-6)


def test_overdispersed_counts_get_honest_errors_through_the_regressor(tmp_path: Path) -> None:
    kernel, times, p = _population(1)
    truth = Overdispersed(300.0).draw(5000 * p, p, np.random.default_rng(2))
    seen = Snapshots.from_counts(times, truth)
    plain = FreeEnergyRegressor().fit(kernel, seen)
    model = FreeEnergyRegressor(observation="overdispersed").fit(kernel, seen)
    assert plain.diagnostics_["p_value"] < 1e-3  # a landscape is there, and is rejected
    assert model.diagnostics_["p_value"] > 0.01
    # 8 x 5 cells less about 11 parameters: the concentration is known to a factor of 1.3.
    assert 100 < model.diagnostics_["concentration"] < 900
    # The plain fit's own errors are too small; once widened for the misfit, they are about right.
    assert np.median(model.potential_stderr_ / plain.fitted_.source.potential_stderr) > 2
    assert 0.4 < np.median(model.potential_stderr_ / plain.potential_stderr_) < 2.5
    model.save(tmp_path / "m.thalweg")
    noise = load(tmp_path / "m.thalweg").fitted_.noise
    assert isinstance(noise, Overdispersed)
    assert noise.concentration == pytest.approx(model.diagnostics_["concentration"])


def test_a_model_of_counts_may_be_handed_in() -> None:
    kernel, times, p = _population(1)
    seen = Snapshots.from_counts(times, 5000 * p)
    found = FreeEnergyRegressor(observation=Overdispersed(500.0)).fit(kernel, seen)
    assert found.diagnostics_["concentration"] == 500.0
    assert isinstance(found.fitted_.noise, Overdispersed)


def test_a_model_file_does_not_turn_one_model_of_counts_into_another(tmp_path: Path) -> None:
    class Pairs(Multinomial):
        pass

    kernel, times, p = _population(1)
    model = FreeEnergyRegressor(observation=Pairs())
    model.fit(kernel, Snapshots.from_counts(times, 5000 * p))
    with pytest.raises(InputError, match="observation is a Pairs, which a model file cannot hold"):
        model.save(tmp_path / "m.thalweg")
    assert not (tmp_path / "m.thalweg").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"observation": "clumpy"}, "observation is 'clumpy'; choose"),
        ({"observation": "overdispersed", "discretization": "frozen"}, "leave out"),
    ],
)
def test_what_no_model_of_counts_can_do_is_said(arguments: dict[str, str], sentence: str) -> None:
    kernel, times, p = _population(1)
    seen = Snapshots.from_counts(times, 5000 * p)
    with pytest.raises(InputError, match=sentence):
        FreeEnergyRegressor(**arguments).fit(kernel, seen)  # type: ignore[arg-type]


def test_two_snapshots_leave_nothing_to_estimate_the_scatter_from() -> None:
    kernel, times, p = _population(1)
    seen = Snapshots.from_counts(times[[0, 7]], 5000 * p[[0, 7]])
    with pytest.raises(InputError, match="degrees of freedom to estimate the overdispersion"):
        FreeEnergyRegressor(observation="overdispersed").fit(kernel, seen)


def test_replicates_widen_the_errors_by_their_design_effect() -> None:
    kernel, times, p = _population(4)
    rng = np.random.default_rng(5)
    rows = [Overdispersed(100.0).draw(500 * row[None], row[None], rng)[0] for row in p.repeat(6, 0)]
    names = [(k, r) for k in range(8) for r in range(6)]
    seen = Snapshots.from_counts(times.repeat(6), rows, replicates=names)
    pooled = Snapshots.from_counts(seen.times, seen.counts)
    model = FreeEnergyRegressor().fit(kernel, seen)
    plain = FreeEnergyRegressor().fit(kernel, pooled)
    truth = 600.0 / 101.0
    # 40 differences in about 11 directions: a relative error of a tenth.
    assert model.diagnostics_["design_effect"] == pytest.approx(truth, rel=0.5)
    assert model.diagnostics_["p_value"] > 0.01 > plain.diagnostics_["p_value"]
    assert np.median(model.potential_stderr_ / plain.fitted_.source.potential_stderr) > 1.5


def test_independent_replicates_have_no_design_effect() -> None:
    kernel, times, p = _population(6)
    rng = np.random.default_rng(7)
    rows = [rng.multinomial(500, row) for row in p.repeat(4, 0)]
    seen = Snapshots.from_counts(times.repeat(4), rows, replicates=[0, 1, 2, 3] * 8)
    model = FreeEnergyRegressor().fit(kernel, seen)
    assert model.diagnostics_["design_effect"] < 1.8
    with pytest.raises(InputError, match="one replicate only"):
        one = Snapshots.from_counts(times, 500 * p, replicates=["a"] * 8)
        FreeEnergyRegressor().fit(kernel, one)


def test_replicates_survive_selection_and_resampling(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "day": [0, 0, 0, 1, 1, 2, 2],
            "state": ["a", "b", "a", "b", "a", "b", "b"],
            "n": [3, 4, 5, 1, 2, 6, 7],
            "mouse": ["x", "x", "y", "x", "y", "y", "x"],
        }
    )
    seen = Snapshots.from_frame(
        frame, time="day", state="state", count="n", states=["a", "b"], replicate="mouse"
    )
    assert seen.counts.tolist() == [[8, 4], [2, 1], [0, 13]]
    assert seen.replicates is not None
    assert seen.replicates.count == 2
    assert seen.replicates.counts[:2].tolist() == [[3, 4], [5, 0]]
    last = seen.drop(0).replicates
    assert last is not None
    assert last.times.tolist() == [0, 0, 1, 1]
    drawn = seen.resample(rng=np.random.default_rng(0))
    assert drawn.replicates is not None
    assert (drawn.replicates.pooled(3) == drawn.counts).all()
    frame.to_csv(tmp_path / "long.csv", index=False)
    read = read_snapshots(tmp_path / "long.csv", states=["a", "b"], replicate="mouse").snapshots
    assert read.counts.tolist() == seen.counts.tolist()
    assert read.replicates is not None
    assert read.replicates.counts.tolist() == seen.replicates.counts.tolist()
    wide = frame.pivot_table(index=["day", "mouse"], columns="state", values="n", fill_value=0)
    wide.reset_index().to_csv(tmp_path / "wide.csv", index=False)
    read = read_snapshots(tmp_path / "wide.csv", states=["a", "b"], replicate="mouse").snapshots
    assert read.counts.tolist() == seen.counts.tolist()
    with pytest.raises(InputError, match="no column 'rat' for the replicate"):
        read_snapshots(tmp_path / "wide.csv", states=["a", "b"], replicate="rat")
