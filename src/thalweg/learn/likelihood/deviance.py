"""Mean and variance of a deviance when the model is true, also at small counts.

For a Poisson count with mean `mu`, `d = 2 (C log(C / mu) - C + mu)`. Its first two moments are
summed once on a grid of `mu` and interpolated; they tend to 1 and 2 only for large `mu`, which is
why chi-square tables mislead when states are nearly empty.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import xlogy
from scipy.stats import poisson

from thalweg._types import Array


@cache
def _table() -> tuple[Array, Array, Array]:
    log_mu = np.linspace(np.log(1e-10), np.log(1e3), 400)
    mean, variance = np.empty(400), np.empty(400)
    for i, mu in enumerate(np.exp(log_mu)):
        top = int(mu + 12 * np.sqrt(mu) + 20)
        c = np.arange(top + 1, dtype=np.float64)
        weight = poisson.pmf(c, mu)
        d = 2.0 * (xlogy(c, c / mu) - c + mu)
        mean[i] = weight @ d
        variance[i] = weight @ (d - mean[i]) ** 2
    return log_mu, mean, variance


def expected_deviance(sizes: Array, probabilities: Array) -> tuple[float, float]:
    """Mean and variance of the deviance of multinomial counts from their true distribution.

    Cells are treated as Poisson; fixing the size of each snapshot takes one degree of freedom.

    >>> mean, variance = expected_deviance(np.array([1e6]), np.full((1, 5), 0.2))
    >>> round(mean, 2), round(variance, 1)
    (4.0, 8.0)
    """
    log_mu, mean, variance = _table()
    expected = np.log(np.maximum(sizes[:, None] * probabilities, 1e-300))
    total = float(np.interp(expected, log_mu, mean, left=0.0).sum()) - sizes.size
    spread = float(np.interp(expected, log_mu, variance, left=0.0).sum()) - 2 * sizes.size
    return total, max(spread, 1.0)


def fitted_deviance(moments: tuple[float, float] | None, used: float) -> tuple[float, float]:
    """Mean and standard deviation after a fit that used that many parameters; nan if unknown.

    >>> fitted_deviance((20.0, 40.0), 4.0)
    (16.0, 5.656854249492381)
    """
    mean, variance = (np.nan, np.nan) if moments is None else moments
    spread = np.sqrt(np.maximum(variance - 2.0 * used, 0.25 * variance))
    return float(np.maximum(mean - used, 1.0)), float(spread)
