"""Marquardt's method with Nielsen's update, for an objective whose curvature is at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.objective import Evaluation, Objective
from thalweg.learn.likelihood.priors import Prior
from thalweg.status import Status

__all__ = ["Minimum", "minimise"]

Array = NDArray[np.float64]

_LONGEST_STEP = 8.0  # in units of the potential's scale, and of logarithms
_MOST_REJECTIONS = 14


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the search ended."""

    theta: Array
    value: float
    """With the prior."""
    evaluation: Evaluation
    status: Status
    n_iterations: int


def minimise(
    objective: Objective,
    prior: Prior,
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
            iteration += 1
            diagonal = np.maximum(np.diag(curvature), 1e-12 * np.diag(curvature).max())
            full = _newton_step(curvature, 1e-10 * diagonal, gradient)
            if full is not None and -0.5 * float(gradient @ full) < tolerance:
                status = Status.CONVERGED
                break
            step = _newton_step(curvature, damping * diagonal, gradient)
            trial = None
            if step is not None:
                longest = float(np.max(np.abs(step) / units))
                if longest <= _LONGEST_STEP:
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


def _with_prior(evaluation: Evaluation, prior: Prior, theta: Array) -> tuple[float, Array, Array]:
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
