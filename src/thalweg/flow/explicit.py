"""Dormand and Prince's explicit method of order 5(4) on `p`, for flows away from the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thalweg._compile import njit
from thalweg._types import Array

_A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = np.array(
    [71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40], dtype=np.float64
)
_WEIGHTS = [np.array(row, dtype=np.float64) for row in _A]
_MAX_REJECTIONS = 8
"""Steps rejected in a row after which the method gives up."""
_PATIENCE = 40
"""Signs of stiffness after which the method gives up."""


class Accuracy(NamedTuple):
    """Tolerances of a step, whose error is kept below `atol + rtol p`, and a bound on the steps."""

    rtol: float
    atol: float
    max_steps: int


class Run(NamedTuple):
    """How far a method came: `reached` outputs, and `state` at `time`."""

    reached: int
    time: float
    state: Array
    n_steps: int
    n_evaluations: int
    """Right-hand sides of explicit steps, linear systems of implicit ones."""
    limit: bool
    """Whether it ended at the largest number of steps."""


@njit(cache=True)
def _combine(p: Array, slopes: Array, weights: Array, h: float, out: Array) -> None:
    """`out = p + h sum_j w_j k_j`."""
    for x in range(p.size):
        total = 0.0
        for j in range(weights.size):
            total += weights[j] * slopes[j, x]
        out[x] = p[x] + h * total


@njit(cache=True)
def _error_norm(
    p: Array, new: Array, slopes: Array, weights: Array, h: float, rtol: float, atol: float
) -> tuple[float, float]:
    """The largest error against `atol + rtol max(p, new)`, and the least `new / p`."""
    worst, least = 0.0, 1.0
    for x in range(p.size):
        total = 0.0
        for j in range(weights.size):
            total += weights[j] * slopes[j, x]
        scale = atol + rtol * max(abs(p[x]), abs(new[x]))
        worst = max(worst, abs(h * total) / scale)
        if new[x] < least * p[x]:
            least = new[x] / p[x]
        if new[x] < 0.0 or not np.isfinite(new[x]):
            least = -1.0
    return worst, least


def dormand_prince(
    rhs: Callable[[Array, Array], None],
    times: Array,
    p0: Array,
    out: Array,
    accuracy: Accuracy,
    *,
    persist: bool = False,
    minimum_step: float = 0.0,
    longest_step: Callable[[Array], float] | None = None,
) -> Run:
    """Integrate over `times`, writing rows of `out`; stop early if the flow needs another method.

    It gives up, with the state at the last good step, when a state is about to run empty, after
    several rejections in a row, or when too many steps fall below `minimum_step`, except with
    `persist`, for callers who insist on an explicit method. `longest_step(p)` limits the steps
    until it exceeds one tenth of the whole time.
    """
    n = p0.size
    rtol, atol, max_steps = accuracy
    slopes = np.empty((7, n))
    rows = list(slopes)
    stage, p = np.empty(n), p0.copy()
    rhs(p, rows[0])
    evaluations, steps, rejections, signs = 1, 0, 0, 0
    time = float(times[0])
    step = _first_step(p, slopes[0], float(times[-1]) - time, rtol, atol)
    k = 1
    while k < times.size:
        if steps >= max_steps:
            return Run(k, time, p, steps, evaluations, True)
        if longest_step is not None:
            limit = longest_step(p)
            step = min(step, limit)
            if limit > 0.1 * (float(times[-1]) - float(times[0])):
                longest_step = None
        remaining = float(times[k]) - time
        lands = step >= remaining * (1 - 1e-10)
        h = remaining if lands else (0.5 * remaining if 2 * step > remaining else step)
        for j in range(1, 7):
            _combine(p, slopes, _WEIGHTS[j - 1], h, stage)
            rhs(stage, rows[j])
        evaluations += 6
        steps += 1
        error, least = _error_norm(p, stage, slopes, _ERROR, h, rtol, atol)
        if error <= 1.0 and least >= 0.0:
            p = stage / stage.sum()
            slopes[0] = slopes[6]
            rejections = 0
            factor = 5.0 if error == 0 else min(5.0, max(0.3, 0.9 * error**-0.2))
            # A step cut to land on an output time is no evidence against the longer step.
            step = max(step, h * factor) if h < step else h * factor
            if lands:
                time = float(times[k])
                out[k] = p
                k += 1
            else:
                time += h
        else:
            rejections += 1
            step = h * (0.2 if not np.isfinite(error) or least < 0 else max(0.2, 0.9 * error**-0.2))
        # A short step that was not cut to land on an output, or a state losing most of its mass.
        signs += 1 if step < minimum_step else 0
        signs += _PATIENCE // 3 if least < 0.1 else 0
        stiff = rejections >= _MAX_REJECTIONS or signs > _PATIENCE
        if time + step == time or (stiff and not persist and k < times.size):
            break
    return Run(k, time, p, steps, evaluations, False)


def _first_step(p: Array, slope: Array, span: float, rtol: float, atol: float) -> float:
    """A step over which the first slope changes `p` by about the cube root of the tolerance."""
    scale = atol + rtol * abs(p)
    speed = float(np.max(abs(slope) / scale))
    if speed == 0.0:
        return span
    return min(span, 0.1 / (speed * max(rtol, 1e-14) ** 0.8) if rtol > 0 else 0.01 * span)
