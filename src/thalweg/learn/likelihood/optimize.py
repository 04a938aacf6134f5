"""Marquardt's method with Nielsen's update, for an objective whose curvature is at hand.

The curvature leaves out the second derivatives of the flow. Where that is too little, in narrow
bent valleys (states that hardly anybody visits, a beta near zero), the steps become short; a BFGS
matrix that starts at the curvature then learns the rest from the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.objective import Evaluation, Objective
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.status import Status

__all__ = ["LONGEST_STEP", "Minimum", "Optimizer", "Penalty", "minimise"]

Array = NDArray[np.float64]

LONGEST_STEP = 8.0  # in units of the potential's scale, and of logarithms
_MOST_REJECTIONS = 14
_SLOW = 25
"""Iterations after which Marquardt's steps are taken to be too short."""
_SHORTEST = 1e-5  # of a step, where halving it gives up


class Penalty(Protocol):
    """What is added to the objective: a prior."""

    @property
    def units(self) -> Array:
        """The ordinary size of a change of each parameter."""

    def quadratic(self, theta: Array) -> tuple[float, Array, Array]:
        """Value, gradient and Hessian."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the search ended."""

    theta: Array
    value: float
    """With the prior."""
    evaluation: Evaluation
    status: Status
    n_iterations: int
    point: Any = None
    """The flow there, for searches nearby; None where the method keeps none."""


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
    now = objective.evaluate(theta, mesh)
    if now is None:
        return None
    value, gradient, curvature = _with_prior(now, prior, theta)
    damping, growth, rejected = 1e-3, 2.0, 0
    status = Status.MAX_ITERATIONS
    units = prior.units
    iteration = 0
    try:
        while iteration < max_iterations:
            if iteration == _SLOW:
                start = _Point(theta, value, gradient, curvature, now)
                point, status, used = _learn_curvature(
                    objective, prior, start, mesh, max_iterations - iteration, tolerance
                )
                return Minimum(point.theta, point.value, point.evaluation, status, iteration + used)
            if exhausted():
                status = limit_status()
                break
            iteration += 1
            spend()
            diagonal = np.maximum(np.diag(curvature), 1e-12 * np.diag(curvature).max())
            full = _newton_step(curvature, 1e-10 * diagonal, gradient)
            if full is not None and -0.5 * float(gradient @ full) < tolerance:
                status = Status.CONVERGED
                break
            step = _newton_step(curvature, damping * diagonal, gradient)
            trial = None
            if step is not None:
                longest = float(np.max(np.abs(step) / units))
                if longest <= LONGEST_STEP:
                    trial = objective.evaluate(theta + step, mesh)
            if trial is not None and step is not None:
                new_value, new_gradient, new_curvature = _with_prior(trial, prior, theta + step)
                predicted = -float(gradient @ step) - 0.5 * float(step @ curvature @ step)
                ratio = (value - new_value) / max(predicted, 1e-300)
                if new_value < value and ratio > 1e-4:
                    theta, now = theta + step, trial
                    value, gradient, curvature = new_value, new_gradient, new_curvature
                    damping *= max(1.0 / 3.0, 1.0 - (2.0 * ratio - 1.0) ** 3)
                    damping = max(damping, 1e-9)
                    growth, rejected = 2.0, 0
                    continue
            damping *= growth
            growth *= 2.0
            rejected += 1
            if rejected >= _MOST_REJECTIONS:
                status = Status.STALLED
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return Minimum(theta, value, now, status, iteration)


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
    floor = 1e-10 * np.diag(np.maximum(np.diag(matrix), 1e-12 * np.diag(matrix).max()))
    fresh = True
    for iteration in range(1, max_iterations + 1):
        try:
            step = _newton_step(matrix + floor, np.zeros(len(matrix)), now.gradient)
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
        length, gained = float(moved @ pull), float(moved @ change)
        if gained < 0.2 * length:  # Powell's damping keeps the matrix positive
            share = 0.8 * length / (length - gained)
            change = share * change + (1 - share) * pull
            gained = float(moved @ change)
        matrix += np.outer(change, change) / gained - np.outer(pull, pull) / length
        now, fresh = found, False
    return now, Status.MAX_ITERATIONS, max_iterations


def _halved(
    objective: Objective, prior: Penalty, now: _Point, step: Array, mesh: Mesh
) -> _Point | None:
    """The first of the halved steps that lowers the value enough; `None` if none does."""
    slope = float(now.gradient @ step)
    share = min(1.0, LONGEST_STEP / float(np.max(np.abs(step) / prior.units)))
    while share > _SHORTEST:
        theta = now.theta + share * step
        trial = objective.evaluate(theta, mesh)
        if trial is not None:
            value, gradient, curvature = _with_prior(trial, prior, theta)
            if value <= now.value + 1e-4 * share * slope:
                return _Point(theta, value, gradient, curvature, trial)
            # The parabola through both values and the slope, within reason.
            rise = value - now.value - share * slope
            share *= min(0.5, max(0.1, -0.5 * share * slope / rise)) if rise > 0 else 0.5
        else:
            share *= 0.25
    return None


def _with_prior(evaluation: Evaluation, prior: Penalty, theta: Array) -> tuple[float, Array, Array]:
    extra, gradient, hessian = prior.quadratic(theta)
    return (
        evaluation.value + extra,
        evaluation.gradient + gradient,
        evaluation.curvature + hessian,
    )


def _newton_step(curvature: Array, diagonal: Array, gradient: Array) -> Array | None:
    try:
        factor = cho_factor(curvature + np.diag(diagonal), check_finite=False)
        step = -cho_solve(factor, gradient, check_finite=False)
    except LinAlgError:
        return None
    return np.asarray(step) if np.isfinite(step).all() else None
