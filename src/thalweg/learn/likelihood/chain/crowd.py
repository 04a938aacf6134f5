"""A crowd of parameters that gathers where the mean-field chain describes all intervals best.

While the population is pulled towards the counts the likelihood has one optimum, and the right
parameters lie within a few of its standard deviations. Let go, it has many optima there, and
descending from one place finds the nearest. A crowd drawn around the pulled optimum, whose better
part is the centre and spread of the next, follows the likelihood's large features first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from thalweg._types import Array
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.optimize import Penalty, minimise
from thalweg.learn.likelihood.tracked import FLOOR, TrackedObjective

_GAIN, _VARIANCE = 0.5, 30.0
"""Pull towards the counts, and variance added to each, around whose optimum the crowd is drawn."""
_WIDTH = 1.5
_WIDEST = 0.5
"""Standard deviations of the first crowd: in units of the posterior's, and an upper bound."""
_SIZE, _BETTER = 40, 10
_LEARNING = 0.4
"""Weight of the newest crowd in the running estimate of the spread."""
_CROWDS = 30
_GATHERED = 0.5


def held_law(
    objective: TrackedObjective,
    prior: Penalty,
    theta: Array,
    mesh: Mesh,
    *,
    gain: float,
    width: float,
    widest: float,
) -> tuple[Array, Array] | None:
    """A normal law around the optimum of a pulled population: centre and covariance.

    Parameters
    ----------
    objective : TrackedObjective
        The mean-field chain of frozen rates.
    prior : Penalty
        The fit's prior.
    theta : array
        Near the optimum of a pulled population.
    mesh : Mesh
        Passed on to the objective.
    gain : float
        Pull towards the counts.
    width, widest : float
        Standard deviations of the law: in units of the posterior's, and an upper bound.

    Returns
    -------
    `None` where the pulled population has no flow there.
    """
    pulled = replace(objective, gain=gain, floor=FLOOR + _VARIANCE)
    curvature: Array | None = None
    for _ in range(2):
        weighted = pulled.reweighted(theta, mesh)
        found = weighted and minimise(
            weighted, prior, theta, mesh, max_iterations=12, tolerance=1e-2
        )
        if not found:
            break
        theta, curvature = found.theta, found.evaluation.curvature
    if curvature is None:
        return None
    values, axes = np.linalg.eigh(curvature + prior.quadratic(theta)[2])
    spread = np.minimum(width / np.sqrt(np.maximum(values, 1e-300)), widest) ** 2
    return theta, (axes * spread) @ axes.T


def gathered(
    objective: TrackedObjective,
    prior: Penalty,
    theta: Array,
    mesh: Mesh,
    *,
    rng: np.random.Generator,
) -> tuple[Array, int] | None:
    """The best parameters that a crowd found, and how many were tried.

    The first four parameters are those of `held_law`; `rng` draws the crowd.

    Returns
    -------
    `None` where the pulled population has no flow there.
    """
    law = held_law(objective, prior, theta, mesh, gain=_GAIN, width=_WIDTH, widest=_WIDEST)
    if law is None:
        return None
    centre, covariance = law
    theta = centre
    ranks = np.log(_BETTER + 0.5) - np.log(np.arange(1, _BETTER + 1))
    ranks /= ranks.sum()
    least, best, tried = np.inf, theta, 0
    for _ in range(_CROWDS):
        values, axes = np.linalg.eigh(covariance)
        root = axes * np.sqrt(np.maximum(values, 0.0))
        crowd = centre + rng.normal(size=(_SIZE, theta.size)) @ root.T
        merits = np.array([objective.judge(one, mesh).merit for one in crowd])
        merits[~np.isfinite(merits)] = np.finfo(np.float64).max
        order = np.argsort(merits)[:_BETTER]
        tried += _SIZE
        if merits[order[0]] < least:
            least, best = float(merits[order[0]]), crowd[order[0]]
        away = crowd[order] - centre
        covariance = (1 - _LEARNING) * covariance + _LEARNING * (away.T * ranks) @ away
        centre = centre + ranks @ away
        if merits[order[-1]] - merits[order[0]] < _GATHERED:
            break
    return best, tried
