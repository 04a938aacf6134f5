"""Particles of parameters, carried along a horizon that grows: sequential Monte Carlo.

Over all intervals the likelihood of the mean-field chain has many optima, over the first few it has
one. Particles drawn widely around the optimum of a pulled population are weighted by the likelihood
of the first intervals, drawn again by their weights, moved by Metropolis steps of their own
covariance, and so on with more intervals. An interval enters by fractional powers of its
likelihood, each as large as possible while half of the particles keep their weight. Particles at
several optima remain until the data decide between these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.learn.limits import exhausted

_PARTICLES = 100
_STEPS = (1.0, 0.35, 0.1)
"""Lengths of the Metropolis steps, relative to those best for a normal law; the short ones are for
bent valleys. `thalweg bench limit` counts the chains that are still not followed to their end."""
_KEPT = 0.5
"""Share of the particles that must keep their weight when a power of the likelihood is added."""
_SHARE = 4  # a stage adds at most 1/4 of the intervals
_SMALLEST = 1e-6  # smallest power of a likelihood that is added, whatever the weights are
_WORST = -1e30  # log likelihood of parameters without a flow


def carry(
    log_likelihood: Callable[[int, Array], float],
    n_intervals: int,
    centre: Array,
    covariance: Array,
    *,
    rng: np.random.Generator,
    most: float,
) -> Array | None:
    """Particles of the whole horizon, likeliest first.

    `None` if the time limit of the fit or `most` was reached first.

    Parameters
    ----------
    log_likelihood : callable
        Log likelihood of the first `k` intervals; not finite without a flow.
    n_intervals : int
        Number of intervals of the whole horizon.
    centre, covariance : array
        Mean and covariance of the normal law from which the first particles are drawn.
    rng : numpy.random.Generator
        Draws of the particles and of their moves.
    most : float
        Largest amount of work, in chains over the whole horizon.

    Examples
    --------
    >>> def two_wells(k, x):
    ...     return -50.0 * k * float((x[0] ** 2 - 1) ** 2 + 0.1 * (x[0] - 1) ** 2)
    >>> found = carry(
    ...     two_wells, 9, np.array([-1.0]), np.eye(1), rng=np.random.default_rng(0), most=1e5
    ... )
    >>> abs(found[0] - 1).max() < 0.1
    np.True_
    """
    size = centre.size
    values, axes = np.linalg.eigh(covariance)
    root = axes * np.sqrt(np.maximum(values, 0.0))
    inverse = (axes / np.maximum(values, 1e-12 * values.max())) @ axes.T
    spent = 0.0

    def judge(k: int, points: Array) -> Array:
        nonlocal spent
        spent += len(points) * k / n_intervals
        found = np.array([log_likelihood(k, point) for point in points])
        return np.where(np.isfinite(found), found, _WORST)

    def drawn(points: Array) -> Array:
        away = points - centre
        return np.asarray(-0.5 * np.sum((away @ inverse) * away, axis=1))

    x = centre + rng.normal(size=(_PARTICLES, size)) @ root.T
    first, before, reached = drawn(x), np.zeros(_PARTICLES), 0
    while reached < n_intervals:
        k = min(n_intervals, reached + max(1, reached // _SHARE))
        now, power = judge(k, x), 0.0
        while power < 1.0:
            if spent > most or exhausted():
                return None
            added = _power(now - before, 1.0 - power)
            power = 1.0 if added >= 1.0 - power else power + added
            weights = _weights(added * (now - before))
            mean = weights @ x
            spread = (weights[:, None] * (x - mean)).T @ (x - mean)
            spread += 1e-12 * max(float(np.trace(spread)), 1e-300) * np.eye(size)
            factor = np.linalg.cholesky(spread) * (2.38 / np.sqrt(size))
            kept = _resampled(weights, rng)
            x, now, before, first = x[kept], now[kept], before[kept], first[kept]
            for step in _STEPS:
                y = x + step * rng.normal(size=x.shape) @ factor.T
                y_now, y_first = judge(k, y), drawn(y)
                y_before = judge(reached, y) if reached and power < 1.0 else np.zeros(len(y))
                rise = power * (y_now - now) + y_first - first
                if power < 1.0:
                    rise += (1.0 - power) * (y_before - before)
                moved = np.log(rng.random(len(y))) < rise
                x[moved], now[moved] = y[moved], y_now[moved]
                before[moved], first[moved] = y_before[moved], y_first[moved]
        reached, before = k, now.copy()
    return np.asarray(x[np.argsort(-before)])


def _weights(logarithms: Array) -> Array:
    raw = np.exp(logarithms - logarithms.max())
    return np.asarray(raw / raw.sum())


def _power(rise: Array, most: float) -> float:
    """The largest power, up to `most`, that leaves enough particles their weight."""

    def alike(power: float) -> bool:
        return 1.0 / float(np.sum(_weights(power * rise) ** 2)) >= _KEPT * rise.size

    if alike(most):
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if alike(middle) else (low, middle)
    return min(max(low, _SMALLEST), most)


def _resampled(weights: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices drawn by weight, as evenly as possible."""
    marks = (np.arange(weights.size) + rng.random()) / weights.size
    return np.minimum(np.searchsorted(np.cumsum(weights), marks), weights.size - 1)
