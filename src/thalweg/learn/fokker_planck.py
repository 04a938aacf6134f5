"""A rival with a landscape but without the transport geometry: a discrete Fokker-Planck chain.

The rates `Q_xy = b K_xy exp(g_x - g_y)` are reversible with respect to `pi e^{-2 g}`: individuals
jump downhill more often than uphill, independently of each other. The gradient flow of the
logarithmic mean has the same equilibrium, but another path to it. There are `N` free numbers, and
the start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn import rivals
from thalweg.snapshots.density import smoothed

MOST_STATES = 300
"""Largest number of states, since matrices are dense."""
_RIDGE = 0.01
"""Weight of `|g|^2 / 2` beside the log-likelihood: holds states that were never seen."""


@single_threaded
def fokker_planck(
    kernel: MarkovKernel, times: ArrayLike, counts: ArrayLike, *, at: ArrayLike | None = None
) -> Array:
    """Predicted probabilities at the times `at` of the likeliest chain with such rates.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> p = fokker_planck(kernel, [0.0, 1.0, 50.0], [[900, 100], [500, 500], [200, 800]])
    >>> p[2].round(2)
    array([0.2, 0.8])
    """
    if kernel.n_states > MOST_STATES:
        raise InputError(
            f"the Fokker-Planck chain is fitted up to {MOST_STATES} states, not {kernel.n_states}."
        )
    when, table, target = rivals._check(kernel, times, counts, at)
    source, end, c = kernel.edges
    n, e = kernel.n_states, source.size
    log_k = np.log(np.r_[c / kernel.stationary[source], c / kernel.stationary[end]])
    tail, head = np.r_[source, end], np.r_[end, source]

    def log_rates(z: Array) -> Array:
        return np.asarray(log_k + z[0] + z[1 : n + 1][tail] - z[1 : n + 1][head])

    def objective(z: Array) -> tuple[float, Array]:
        value, slope = rivals.ctmc_objective(kernel, when, table, np.r_[log_rates(z), z[n + 1 :]])
        by_rate, g = slope[: 2 * e], z[1 : n + 1]
        by_g = np.bincount(tail, by_rate, n) - np.bincount(head, by_rate, n)
        gradient = np.r_[by_rate.sum(), by_g + _RIDGE * g, slope[2 * e :]]
        return value + 0.5 * _RIDGE * float(g @ g), gradient

    start = np.r_[np.log(0.1), np.zeros(n), np.log(smoothed(table[0]))]
    fastest = np.log(100.0 / float(np.diff(when).min()))
    lower = np.r_[-12.0, np.full(n, -15.0), np.full(n, -60.0)]
    upper = np.r_[fastest, np.full(n, 15.0), np.full(n, 60.0)]
    best = rivals._minimise(objective, start, lower=lower, upper=upper)
    rates = np.exp(np.minimum(log_rates(best), fastest))
    q = rivals._generator(kernel, rates)
    return rivals._chain(q, when[0], target, rivals._softmax(best[n + 1 :]))
