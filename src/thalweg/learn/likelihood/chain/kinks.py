"""Minima at kinks: where no Newton step descends, probe along the axes of the curvature.

Frozen rates hold `[f_x - f_y]_+`, so the objective has a kink wherever two neighbours have the same
first variation at the start of an interval. A minimum can sit on such a kink: the gradient does not
vanish there, every Newton step ends uphill, and the search stalls although nothing is left to gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from thalweg._types import Array
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.objective import KinkedObjective
from thalweg.learn.likelihood.optimize import Minimum, Penalty
from thalweg.status import Status

_WIDTHS = (0.03, 0.15, 0.6, 2.0)
"""Lengths of the probes in standard errors along each axis."""
_FEWER_WIDTHS = (0.15, 0.6)
_MANY = 24
"""Number of parameters above which fewer lengths are probed: each costs two chains per axis."""
_GAIN = 0.02
"""Log likelihood that a probe must gain to be followed: a fifth of a standard error."""
_ROUNDS = 6
_LONGEST = 1.0  # longest probe, in units of the potential's scale: flat axes have no standard error


def certify(
    objective: KinkedObjective,
    prior: Penalty,
    found: Minimum,
    mesh: Mesh,
    again: Callable[[Array], Minimum | None],
) -> Minimum:
    """Continue a stalled search from the best probe that gains; converged if none does.

    Parameters
    ----------
    objective : KinkedObjective
        The objective that was minimised.
    prior : Penalty
        The prior that was added to it.
    found : Minimum
        Where the search stalled; a minimum with another status is returned as it is.
    mesh : Mesh
        The time steps of the objective.
    again : callable
        Minimises from other parameters.
    """
    for _ in range(_ROUNDS):
        if found.status not in (Status.STALLED, Status.MAX_ITERATIONS):
            break
        best = _best_probe(objective, prior, found, mesh)
        if best is None:
            return replace(found, status=Status.CONVERGED)
        following = again(best)
        if following is None or following.value >= found.value:
            break
        steps = found.n_iterations + following.n_iterations
        found = replace(following, n_iterations=steps)
    return found


def _best_probe(
    objective: KinkedObjective, prior: Penalty, found: Minimum, mesh: Mesh
) -> Array | None:
    curvature = found.evaluation.curvature + prior.quadratic(found.theta)[2]
    values, axes = np.linalg.eigh(curvature)
    values = np.maximum(values, 1e-12 * values.max())
    least, best = found.value - _GAIN, None
    widths = _WIDTHS if values.size <= _MANY else _FEWER_WIDTHS
    for axis, value in zip(axes.T, values, strict=True):
        unit = axis / np.sqrt(value)
        unit /= max(1.0, float(np.max(np.abs(unit) / prior.units)) / _LONGEST)
        for width in widths:
            for sign in (-1.0, 1.0):
                theta = found.theta + sign * width * unit
                total = objective.value(theta, mesh) + prior.quadratic(theta)[0]
                if total < least:
                    least, best = total, theta
    return best
