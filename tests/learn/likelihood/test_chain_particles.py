"""Particles carried along a horizon: the right law, several optima, bounds on the work."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.learn.likelihood.chain.particles import carry
from thalweg.learn.limits import work_limit
from thalweg_bench.comparison import ENERGY_METHODS, draw
from thalweg_bench.sweep import cell_generator


def test_normal_likelihoods_give_the_normal_posterior() -> None:
    """Each interval sees the parameters with unit noise: the posterior is known."""
    rng = np.random.default_rng(3)
    seen = np.array([1.0, -2.0]) + rng.normal(size=(12, 2))

    def log_likelihood(k, x):
        return -0.5 * float(((x - seen[:k]) ** 2).sum())

    ends = []
    for seed in range(8):
        found = carry(
            log_likelihood, 12, np.zeros(2), 4.0 * np.eye(2),
            rng=np.random.default_rng(seed), most=1e6,
        )  # fmt: skip
        assert found is not None
        ends.append(found)
    x = np.concatenate(ends)
    precision = 12 + 0.25
    # 800 particles: the standard error of a mean is 0.01 if they are independent.
    np.testing.assert_allclose(x.mean(axis=0), seen.sum(axis=0) / precision, atol=0.06)
    np.testing.assert_allclose(x.std(axis=0), precision**-0.5, rtol=0.25)


def test_the_deeper_of_two_wells_is_found_from_the_other() -> None:
    def log_likelihood(k, x):
        return -10.0 * k * float((x[0] ** 2 - 1) ** 2 + 0.2 * (x[0] - 1) ** 2 + x[1] ** 2)

    for seed in range(5):
        found = carry(
            log_likelihood, 40, np.array([-1.0, 0.0]), np.eye(2),
            rng=np.random.default_rng(seed), most=1e6,
        )  # fmt: skip
        assert found is not None
        assert abs(found[0] - [1.0, 0.0]).max() < 0.2


def test_parameters_without_a_flow_are_left() -> None:
    def log_likelihood(k, x):
        return -float("inf") if x[0] < 0 else -50.0 * k * float((x[0] - 1) ** 2)

    found = carry(log_likelihood, 5, np.zeros(1), np.eye(1), rng=np.random.default_rng(0), most=1e6)
    assert found is not None
    assert (found > 0).all()


def test_work_and_time_are_bounded() -> None:
    calls = 0

    def log_likelihood(k, x):
        nonlocal calls
        calls += 1
        return -1e6 * k * float((x[0] - 0.3) ** 2)

    law = (np.zeros(1), np.eye(1))
    assert carry(log_likelihood, 1, *law, rng=np.random.default_rng(0), most=500) is None
    assert 500 < calls < 1500
    with work_limit(seconds=0.0):
        assert carry(log_likelihood, 1, *law, rng=np.random.default_rng(0), most=1e6) is None


@pytest.mark.slow
def test_a_chain_whose_descents_end_in_the_wrong_valley_is_followed_to_its_end() -> None:
    """Descents end SHORTER_HORIZON, with half a deviance 60 above the truth's."""
    cell = {
        "beta": 0.01, "family": "complete", "horizon": 2.0, "instance": 1,
        "methods": ["likelihood", "likelihood_free", "weak", "truth"], "n": 10_000, "n_states": 6,
        "problem": "T = 2, beta = 0.01", "reading": "mean-field", "steps": 20,
    }  # fmt: skip
    data = draw(cell, cell_generator("limit", 52077, cell))
    fit = ENERGY_METHODS["likelihood"](data)
    assert fit.status == "CONVERGED"
    assert fit.likelihood.deviance_per_degree < 1.3
