"""The strength of a prior that the evidence chooses, against the density of the data itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from thalweg.learn.likelihood.priors import Prior


@pytest.mark.parametrize("size", [3.0, 0.3, 0.0])
def test_a_firmer_prior_is_the_one_under_which_linear_data_are_most_likely(size: float) -> None:
    rng = np.random.default_rng(5)
    part = slice(2, 10)
    base = np.eye(10)
    base[part, part] += 0.3
    base[:2, :2] = 0.0  # the potential's own part
    prior = Prior(1.0, np.eye(2), base, np.zeros(10), 1.0)
    columns = rng.normal(size=(40, 10))
    truth = np.concatenate([[1.0, -1.0], size * rng.normal(size=8)])
    seen = columns @ truth + rng.normal(size=40)
    data = columns.T @ columns
    theta = np.linalg.solve(data + prior.precision, columns.T @ seen)
    tried = np.geomspace(1.0, 1e6, 25)

    def evidence(factor: float) -> float:
        covariance = np.linalg.inv(prior.with_firmer(part, factor).precision)
        scatter = np.eye(40) + columns @ covariance @ columns.T
        return float(multivariate_normal.logpdf(seen, np.zeros(40), scatter))

    best = tried[np.argmax([evidence(f) for f in tried])]
    assert prior.firmer(theta, data, part) == pytest.approx(best)
