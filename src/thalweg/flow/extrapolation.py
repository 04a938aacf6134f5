"""Implicit Euler in entropy variables, extrapolated to high order, for flows near the boundary.

A basic step of length `H` is done with `n = 1, 2, 3, ...` implicit Euler steps; Neville's scheme
combines the results, whose errors are power series in `H / n`, to order `k` after `k` of them. The
difference to order `k - 1` is the error estimate; step and order are chosen for the least work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.flow.explicit import Accuracy, Run
from thalweg.flow.implicit_euler import ImplicitEuler

_MAX_ORDER = 7
"""Largest order: rows of the extrapolation table."""
_LEAST = 1e-20
"""Mass below which the error of a growing state is not relative to itself."""
_PATIENCE, _CRAWL = 200, 0.1
"""Give up if this many steps in a row, at ten times their pace, would not reach the end in time."""
# Work, in Euler steps, of all rows up to the k-th.
_WORK = np.cumsum(np.arange(_MAX_ORDER + 1)).astype(np.float64)


class _Attempt(NamedTuple):
    """One basic step: the order at which it was accepted (0: rejected) and what comes next."""

    order: int
    u: Array
    errors: Array
    solved: bool
    n_solves: int


def extrapolated_euler(
    euler: ImplicitEuler, times: Array, run: Run, out: Array, accuracy: Accuracy, *, step: float
) -> Run:
    """Go on from where `run` ended, in `u = log rho`, writing rows of `out`."""
    k, time, u, steps, solves, _ = run
    rtol, atol, max_steps = accuracy
    target, mark, first = 3, time, steps
    while k < times.size:
        if steps >= max_steps:
            return Run(k, time, u, steps, solves, True)
        remaining = float(times[k]) - time
        lands = step >= remaining * (1 - 1e-10)
        h = remaining if lands else (0.5 * remaining if 2 * step > remaining else step)
        attempt = _basic_step(euler, u, h, target, rtol, atol)
        steps += 1
        solves += attempt.n_solves
        if attempt.order:
            u = attempt.u
            if lands:
                time = float(times[k])
                out[k] = euler.probabilities(u)
                k += 1
            else:
                time += h
            proposed, target = _next_step(h, attempt)
            # A step cut to land on an output time is no evidence against the longer step.
            step = max(step, proposed) if h < step else proposed
        elif attempt.solved:
            proposed, target = _next_step(h, attempt)
            step = min(proposed, 0.5 * h)
        else:
            step, target = 0.25 * h, 3
        crawls = False
        if (steps - first) % _PATIENCE == 0:
            left = float(times[-1]) - time
            crawls, mark = (time - mark) * (max_steps - first) < _CRAWL * _PATIENCE * left, time
        if crawls or time + 1e-3 * step == time:
            break
    return Run(k, time, u, steps, solves, False)


def _next_step(h: float, attempt: _Attempt) -> tuple[float, int]:
    """The step and the order with the least work per unit of time, from the errors so far."""
    errors = attempt.errors.copy()
    last = int(np.flatnonzero(np.isfinite(errors))[-1])
    if attempt.order and 3 <= last < _MAX_ORDER:
        # What one more row would give, if it gains as much as the last one did.
        errors[last + 1] = errors[last] * max(errors[last] / (errors[last - 1] + 1e-300), 1e-3)
    best, length, order = np.inf, h, 3
    for k in range(3, _MAX_ORDER + 1):
        if np.isfinite(errors[k]):
            factor = min(6.0, max(0.1, 0.85 * (0.7 / max(errors[k], 1e-14)) ** (1 / k)))
            if _WORK[k] / factor < best:
                best, length, order = _WORK[k] / factor, h * factor, k
    return length, order


def _basic_step(
    euler: ImplicitEuler, u0: Array, h: float, target: int, rtol: float, atol: float
) -> _Attempt:
    n_states = u0.size
    tolerance = max(0.01 * rtol / np.sqrt(n_states), 1e-14 * (1 + h))
    errors = np.full(_MAX_ORDER + 1, np.inf)
    p0 = euler.masses(u0)
    previous: list[Array] = []
    previous_log: list[Array] = []
    coarser: list[Array] = []
    solves = 0
    for row in range(1, min(target + 1, _MAX_ORDER) + 1):
        u, path = u0, [u0]
        for i in range(1, row + 1):
            # The previous row took the same path in longer steps: start Newton there.
            guess = _along(coarser, i * (row - 1) / row) if coarser else None
            result = euler.step(u, h / row, tolerance=tolerance, guess=guess)
            solves += result.n_solves
            if not result.converged:
                return _Attempt(0, u0, errors, False, solves)
            u = result.u
            path.append(u)
        coarser = path
        finest = euler.masses(u)
        table, table_log = [finest], [u]
        for j in range(1, row):
            weight = 1.0 / (row / (row - j) - 1.0)
            table.append(table[-1] + weight * (table[-1] - previous[j - 1]))
            table_log.append(table_log[-1] + weight * (table_log[-1] - previous_log[j - 1]))
        previous, previous_log = table, table_log
        if row == 1:
            continue
        new = _positive(table[-1], finest, table_log[-1] + euler.log_pi)
        scale = atol + rtol * np.maximum(p0, new)
        if euler.vanishing:
            # Masses that grow from nearly zero need a small relative error.
            scale = np.where((new > p0) & (new < atol), 10 * rtol * np.maximum(new, _LEAST), scale)
        errors[row] = float(np.max(abs(new - table[-2]) / scale))
        if errors[row] <= 1.0 and row >= max(target - 1, 3):
            return _Attempt(row, _state(new, finest, u, euler, atol), errors, True, solves)
    return _Attempt(0, u0, errors, True, solves)


def _along(path: list[Array], position: float) -> Array:
    """Linear interpolation between the members of a path."""
    k = min(int(position), len(path) - 2)
    return np.asarray(path[k] + (position - k) * (path[k + 1] - path[k]))


def _positive(value: Array, finest: Array, log_value: Array) -> Array:
    """The extrapolated masses, taken in the logarithm where they would leave the simplex."""
    doubtful = value < 0.1 * finest
    if not doubtful.any():
        return value
    with np.errstate(over="ignore"):
        return np.where(doubtful, np.minimum(np.exp(np.minimum(log_value, 0.0)), finest), value)


def _state(new: Array, finest: Array, u: Array, euler: ImplicitEuler, atol: float) -> Array:
    """`u` of the accepted masses; tiny ones keep the value that balances their neighbours."""
    tiny = (finest < 1e-3 * atol) | (new < 1e-3 * atol)
    with np.errstate(divide="ignore"):
        state = np.where(tiny, u, np.log(np.where(tiny, 1.0, new)) - euler.log_pi)
    return np.asarray(state - np.log(euler.masses(state).sum()))
