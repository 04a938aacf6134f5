"""Marquardt's method with Nielsen's update, for an objective whose curvature is at hand.

The curvature leaves out the second derivatives of the flow. Where that is too little, in narrow
bent valleys (states that hardly anybody visits, a beta near zero), the steps become short; a BFGS
matrix that starts at the curvature then learns the rest from the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from thalweg._types import Array
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.objective import Evaluation, KinkedObjective, Objective
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.status import Status

LONGEST_STEP = 8.0
"""Longest step: in units of the potential's scale, and of one for logarithms."""
_MOST_REJECTIONS = 14
_SLOW = 25
"""Number of Marquardt iterations after which BFGS takes over."""
SHORTEST = 1e-5
"""Smallest share of a step that is tried."""
LEAST_DAMPING = 1e-10
_CREEP = 0.01
"""Gain of log likelihood in `_WATCHED` iterations below which a search among kinks has stalled: the
Newton step keeps predicting gains that the next kink cuts off."""
_WATCHED = 8


class Penalty(Protocol):
    """A prior, added to the objective."""

    @property
    def units(self) -> Array:
        """Typical size of a change of each parameter."""

    def quadratic(self, theta: Array) -> tuple[float, Array, Array]:
        """Value, gradient and Hessian."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """End of a search."""

    theta: Array
    value: float
    """Objective plus prior."""
    evaluation: Evaluation
    status: Status
    n_iterations: int
    point: Any = None
    """The flow there, for searches nearby; None if the method keeps none."""


class Optimizer(Protocol):
    """A search that can be handed to a likelihood fit in place of the built-in ones."""

    def minimise(
        self,
        objective: Objective,
        prior: Penalty,
        theta: Array,
        mesh: Mesh,
        *,
        max_iterations: int,
        tolerance: float,
    ) -> Minimum | None:
        """The minimum of objective plus prior near `theta`; `None` if there is no flow there.

        `tolerance` is the log likelihood that may be left to gain. `objective.evaluate` gives
        value, gradient and curvature, or `None` where the flow cannot be computed.
        """


def minimise(
    objective: Objective,
    prior: Penalty,
    theta: Array,
    mesh: Mesh,
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
) -> Minimum | None:
    """The minimum of objective plus prior near `theta`; `None` if there is no flow at `theta`.

    Stops when half the squared Newton step, in the metric of the curvature, is below `tolerance`:
    the log likelihood that is left to gain. An interruption gives the best iterate.
    """
    now = _evaluated(objective, prior, theta, mesh)
    if now is None:
        return None
    damping, growth, rejected = 1e-3, 2.0, 0
    status = Status.MAX_ITERATIONS
    iteration = 0
    try:
        while iteration < max_iterations:
            if iteration == _SLOW:
                now, status, used = _learn_curvature(
                    objective, prior, now, mesh, max_iterations - iteration, tolerance
                )
                iteration += used
                break
            if exhausted():
                status = limit_status()
                break
            iteration += 1
            spend()
            curvature, gradient = now.curvature, now.gradient
            full = newton_step(curvature, gradient)
            if full is not None and -0.5 * float(gradient @ full) < tolerance:
                status = Status.CONVERGED
                break
            step = newton_step(curvature, gradient, damping)
            if step is not None and float(np.max(np.abs(step) / prior.units)) <= LONGEST_STEP:
                predicted = -float(gradient @ step) - 0.5 * float(step @ curvature @ step)
                most = now.value - 1e-4 * max(predicted, 1e-300)
                found, _ = _below(objective, prior, now.theta + step, mesh, most)
                if found is not None:
                    ratio = (now.value - found.value) / max(predicted, 1e-300)
                    damping *= max(1.0 / 3.0, 1.0 - (2.0 * ratio - 1.0) ** 3)
                    damping = max(damping, 1e-9)
                    now, growth, rejected = found, 2.0, 0
                    continue
            damping *= growth
            growth *= 2.0
            rejected += 1
            if rejected >= _MOST_REJECTIONS:
                status = Status.STALLED
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return Minimum(now.theta, now.value, now.evaluation, status, iteration)


class _Point(NamedTuple):
    theta: Array
    value: float
    gradient: Array
    curvature: Array
    evaluation: Evaluation


def _learn_curvature(
    objective: Objective,
    prior: Penalty,
    now: _Point,
    mesh: Mesh,
    max_iterations: int,
    tolerance: float,
) -> tuple[_Point, Status, int]:
    """BFGS from the curvature at `now`, with halved steps."""
    matrix = now.curvature.copy()
    floor = np.diag(LEAST_DAMPING * _diagonal(matrix))
    fresh, kinked = True, isinstance(objective, KinkedObjective) and objective.kinked
    watched = now.value
    for iteration in range(1, max_iterations + 1):
        if kinked and iteration % _WATCHED == 0:
            if watched - now.value < _CREEP:
                return now, Status.STALLED, iteration
            watched = now.value
        try:
            step = newton_step(matrix + floor, now.gradient, 0.0)
            left = np.inf if step is None else -0.5 * float(now.gradient @ step)
            if left < tolerance:
                return now, Status.CONVERGED, iteration
            if exhausted():
                return now, limit_status(), iteration
            spend()
            found = None if step is None else _halved(objective, prior, now, step, mesh)
        except KeyboardInterrupt:
            return now, Status.INTERRUPTED, iteration
        if found is None:
            if fresh:
                return now, Status.STALLED, iteration
            matrix, fresh = now.curvature.copy(), True
            continue
        moved, change = found.theta - now.theta, found.gradient - now.gradient
        pull = matrix @ moved
        change, gained = positive_change(moved, change, pull)
        matrix += np.outer(change, change) / gained - np.outer(pull, pull) / float(moved @ pull)
        now, fresh = found, False
    return now, Status.MAX_ITERATIONS, max_iterations


def _halved(
    objective: Objective, prior: Penalty, now: _Point, step: Array, mesh: Mesh
) -> _Point | None:
    """The first of the halved steps that lowers the value enough; `None` if none does."""
    slope = float(now.gradient @ step)
    share = min(1.0, LONGEST_STEP / float(np.max(np.abs(step) / prior.units)))
    while share > SHORTEST:
        theta = now.theta + share * step
        found, value = _below(objective, prior, theta, mesh, now.value + 1e-4 * share * slope)
        if found is not None:
            return found
        share = shortened(share, slope, value - now.value)
    return None


def _below(
    objective: Objective, prior: Penalty, theta: Array, mesh: Mesh, most: float
) -> tuple[_Point | None, float]:
    """The point, if its value is at most `most`, and the value; derivatives only where needed."""
    if isinstance(objective, KinkedObjective) and objective.kinked:
        value = objective.value(theta, mesh) + prior.quadratic(theta)[0]
        if not value <= most:
            return None, value
    found = _evaluated(objective, prior, theta, mesh)
    if found is None:
        return None, np.inf
    return (found if found.value <= most else None), found.value


def _evaluated(objective: Objective, prior: Penalty, theta: Array, mesh: Mesh) -> _Point | None:
    found = objective.evaluate(theta, mesh)
    if found is None:
        return None
    extra, gradient, hessian = prior.quadratic(theta)
    return _Point(
        theta, found.value + extra, found.gradient + gradient, found.curvature + hessian, found
    )


def _diagonal(matrix: Array) -> Array:
    diagonal = np.diag(matrix)
    return np.maximum(diagonal, 1e-12 * diagonal.max())


def cholesky(matrix: Array, damping: float) -> tuple[Array, bool] | None:
    """The factor of a matrix whose diagonal is raised by this share of it; None if not positive."""
    try:
        return cho_factor(matrix + np.diag(damping * _diagonal(matrix)), check_finite=False)
    except LinAlgError:
        return None


def newton_step(curvature: Array, gradient: Array, damping: float = LEAST_DAMPING) -> Array | None:
    """Marquardt's step; None where the damped curvature is not positive."""
    factor = cholesky(curvature, damping)
    if factor is None:
        return None
    step = -cho_solve(factor, gradient, check_finite=False)
    return np.asarray(step) if np.isfinite(step).all() else None


def positive_change(moved: Array, change: Array, pull: Array) -> tuple[Array, float]:
    """The change of the gradient that keeps a BFGS matrix positive (Powell), along with the move.

    Parameters
    ----------
    moved : array
        Step of the parameters.
    change : array
        Change of the gradient over it.
    pull : array
        The change of the gradient that the matrix predicts.
    """
    length, gained = float(moved @ pull), float(moved @ change)
    if gained < 0.2 * length:
        share = 0.8 * length / (length - gained)
        change = share * change + (1 - share) * pull
        gained = float(moved @ change)
    return change, gained


def shortened(share: float, slope: float, rise: float) -> float:
    """A smaller share of a step after one that raised the value by `rise`, infinite if undefined.

    The minimum of the parabola through both values and the slope, within reason.
    """
    if not np.isfinite(rise):
        return 0.25 * share
    bend = rise - share * slope
    return share * (min(0.5, max(0.1, -0.5 * share * slope / bend)) if bend > 0 else 0.5)
