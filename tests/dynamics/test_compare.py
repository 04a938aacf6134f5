"""Comparison of two landscapes: the level of the test, its power, and who is named."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    InputError,
    MarkovKernel,
    Snapshots,
    gradient_flow,
    make_graph,
)
from thalweg.dynamics import compare, compare_globally
from thalweg.dynamics.compare import _state_differences
from thalweg.dynamics.joint import quadratic_tail


def snapshots(kernel, energy, n, rng, times=None):
    times = np.linspace(0, 3, 6) if times is None else times
    p0 = rng.dirichlet(np.full(kernel.n_states, 2.0))
    flow = gradient_flow(kernel, energy, p0, times).probabilities
    return Snapshots.from_counts(times, [rng.multinomial(n, p / p.sum()) for p in flow])


def case(seed, n_states=8):
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n_states, rng=rng)
    return kernel, FreeEnergy(0.7 * rng.normal(size=n_states), 0.3), rng


def test_one_pushed_state_is_the_one_that_lights_up():
    kernel, energy, rng = case(1)
    v = energy.potential.copy()
    v[3] += 0.6
    pushed = FreeEnergy(v, energy.beta)
    answer = compare(
        snapshots(kernel, energy, 30_000, rng), snapshots(kernel, pushed, 30_000, rng), kernel
    )
    assert answer.status
    assert answer.p_value < 0.005
    assert answer.same_beta.p_value > 0.01
    assert answer.states.significant(0.001).tolist() == [3]
    assert answer.states.value[3] == pytest.approx(-0.6, abs=0.15)
    touching = (kernel.edges.source == 3) | (kernel.edges.target == 3)
    assert set(answer.edges.significant(0.001)) <= set(np.flatnonzero(touching))
    assert answer.edges.significant(0.001).size > 0
    assert answer.to_frame().query("q_value < 0.001")["state"].tolist() == [3]
    named = answer.edges_to_frame().query("q_value < 0.001")
    assert len(named) > 0
    assert ((named["source"] == 3) | (named["target"] == 3)).all()


def test_the_constant_does_not_matter():
    rng = np.random.default_rng(0)
    gap, rows = rng.normal(size=9), 0.1 * rng.normal(size=(12, 9))
    one, first = _state_differences(gap, rows)
    other, second = _state_differences(gap + 5.0, rows + rng.normal(size=(12, 1)))
    assert first.tolist() == second.tolist()
    assert np.allclose(one.value, other.value)
    assert np.allclose(one.stderr, other.stderr)
    # The reference is the mean of many states: none has an error much below the others'.
    assert one.stderr.min() > 0.3 * np.median(one.stderr)


def test_other_beta_is_seen_as_such():
    kernel, energy, rng = case(4)
    warm = FreeEnergy(energy.potential, 0.6)
    answer = compare(
        snapshots(kernel, energy, 20_000, rng), snapshots(kernel, warm, 20_000, rng), kernel
    )
    assert answer.p_value < 0.005
    assert answer.same_beta.p_value < 0.005


@pytest.mark.slow
def test_level_over_few_null_data_sets():
    """24 null data sets of few counts: at most 5 rejections (binomial, 2e-3 beyond)."""
    rejected = 0
    for seed in range(24):
        kernel, energy, rng = case(100 + seed, 5)
        times = np.array([0.0, 1.0, 3.0])
        a, b = (snapshots(kernel, energy, 40, rng, times) for _ in range(2))
        rejected += compare(a, b, kernel).p_value <= 0.05
    assert rejected <= 5


def test_the_order_of_the_data_sets_does_not_matter():
    """A prior on only one of them would bias the test of beta."""
    kernel, energy, rng = case(8, 12)
    a, b = (snapshots(kernel, energy, 60, rng) for _ in range(2))
    one, other = compare_globally(a, b, kernel), compare_globally(b, a, kernel)
    for first, second in zip(one, other, strict=True):
        assert first is not None
        assert second is not None
        assert first.p_value == pytest.approx(second.p_value, abs=1e-4)


def test_tail_of_a_quadratic_form():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 5, 5))
    weight, covariance, mean = a @ a.T, b @ b.T, rng.normal(size=5)
    drawn = rng.multivariate_normal(mean, covariance, 200_000)
    squares = np.einsum("ni,ij,nj->n", drawn, weight, drawn)
    for level in (0.5, 0.1, 0.05, 0.01):
        found = quadratic_tail(float(np.quantile(squares, 1 - level)), weight, covariance, mean)
        assert found == pytest.approx(level, rel=0.06)
    # A score that cannot vary, and one direction alone: exact.
    assert quadratic_tail(2.0, np.eye(2), np.zeros((2, 2)), np.ones(2)) == 1.0
    assert quadratic_tail(3.8415, np.eye(1), np.eye(1), np.zeros(1)) == pytest.approx(
        0.05, abs=1e-5
    )


def test_the_score_form_is_the_likelihood_ratio_where_counts_are_many():
    """Twice the gain of two fits over one, of data sets with so many counts that priors vanish."""
    kernel, energy, rng = case(7, 5)
    a, b = (snapshots(kernel, energy, 30_000, rng) for _ in range(2))
    found = compare(a, b, kernel)
    apart = sum(FreeEnergyRegressor().fit(kernel, one)._fit.source.deviance for one in (a, b))
    assert found.same.degrees == pytest.approx(5, abs=0.2)
    gain = 2 * found.joint.value - apart
    assert found.same.statistic == pytest.approx(gain, rel=0.1, abs=0.1)


def test_bad_input_gets_one_sentence():
    kernel, energy, rng = case(5, 5)
    seen = snapshots(kernel, energy, 100, rng)
    model = FreeEnergyRegressor().fit(kernel, seen)
    with pytest.raises(InputError, match="two Snapshots and their kernel"):
        compare(seen, seen)
    with pytest.raises(InputError, match="different graphs"):
        other = MarkovKernel.from_weights(np.ones((5, 5)) - np.eye(5))
        compare(model, FreeEnergyRegressor().fit(other, seen))
    with pytest.raises(InputError, match="no error bars"):
        compare(model, FreeEnergyRegressor(method="weak").fit(kernel, seen))
    with pytest.raises(InputError, match="already fitted"):
        compare(model, model, beta=0.3)
