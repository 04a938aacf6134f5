"""Newton on the equations of a JKO step, from a start that is not too far.

All unknowns are independent, so a step is bent where it would empty a state and whole elsewhere.
The end density moves in its logarithm where it falls: Newton in the density itself would go past
zero as soon as `f` asks for less than `1 / e` of it, and to `exp(-V / beta)` it may be far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import wrightomega

from thalweg.edges import packed
from thalweg.laplacian import Factor
from thalweg.paths.free_end.system import Change, FreeEnd, Linear, State, solve_linear
from thalweg.status import Status

__all__ = ["Solved", "newton"]

Array = NDArray[np.float64]

_SMALL = 1e-4
"""Below this density single precision is not enough for a Newton step."""
_FINEST = 1e-8
"""Directions are not solved for better than this."""
_STILL = 1e-7
"""A path shorter than this does not move: residuals are relative to it."""
_FREE = 0.05
"""The first steps may end with this residual: that of a start may be small by its weights alone."""
_MANY = 10
"""More GMRES iterations than this, and the next step makes its own factorisation."""


class Solved(NamedTuple):
    """Where Newton ended, how, and what it cost."""

    state: State
    status: Status
    residual: float
    """Relative to the length of the path."""
    distance: float
    steps: int
    factorisations: int
    iterations: int


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the status tells
def newton(
    problem: FreeEnd,
    state: State,
    *,
    tolerance: float,
    barrier: float = 0.0,
    max_steps: int = 40,
    forcing: float = 0.03,
) -> Solved:
    """The solution next to `state`; `tolerance` bounds the relative residual.

    A `barrier`, the weight of `-log rho` in half the action, falls tenfold whenever the residual
    allows, and vanishes.
    """
    pi, b, edges = problem.kernel.stationary[:, None], problem.mesh.weights, problem.kernel.edges
    previous, length, size, speed = np.inf, 1.0, np.inf, 0.0
    kept: tuple[State, Change, Array] | None = None
    factor: Factor | None = None
    age, last, factorisations, iterations, steps, taken = 0, 0, 0, 0, 0, 0
    status, careful = Status.MAX_ITERATIONS, False
    table: NDArray[np.floating] = np.empty((problem.kernel.n_edges, 6, b.size), np.float32)
    while steps < max_steps:
        steps += 1
        if not careful and (forcing < 0.01 or state.rho.min() < _SMALL):
            careful, table, forcing = True, table.astype(np.float64), min(forcing, 1e-3)
        gain, force, action, average = packed.linearise(
            *edges, state.rho, state.psi, problem.spec, b, table
        )
        rho, y = state.rho, state.y
        end = pi[:, 0] * np.exp(y)
        scale = np.sqrt(b * pi * rho)
        r1 = (problem.base(end) + gain @ problem.ends / pi - rho) / rho
        r3 = problem.p + gain @ b - end
        r4 = state.last + problem.tau * problem.first_variation(end, y)
        speed = float(np.sqrt(b @ action))
        give = 1.0 / problem.slope(y)
        # Where the potential asks for more mass it counts with that mass, not with what is there.
        wanted = pi[:, 0] * np.exp(np.maximum(y, np.minimum(y - r4 * give, 0.0)))
        rest = max(_norm(r1 * scale), float(np.abs(r3).sum()), _norm(r4 * np.sqrt(wanted)))
        # Mass that is lacking where there is little of it is an error of the first variation.
        lacking = np.sqrt(end) * np.log1p(np.abs(r3) / np.maximum(end, 1e-300))
        rest = max(rest, _norm(lacking * problem.slope(y)) / max(1.0, problem.tau))
        r2 = (force / pi + barrier / rho) @ problem.to_end - state.q
        size = max(rest, _norm(r2 * scale)) / max(speed, _STILL)
        if barrier > 0 and length == 1.0 and size <= 0.15:
            barrier = 0.1 * barrier if barrier > 1e-4 * speed**2 else 0.0
            r2 = (force / pi + barrier / rho) @ problem.to_end - state.q
            size = max(rest, _norm(r2 * scale)) / max(speed, _STILL)
            previous = np.inf
        if size <= tolerance and barrier == 0:
            status = Status.CONVERGED
            break
        worse = not size < 1.5 * (previous if taken > 2 else max(previous, _FREE))
        if kept is not None and not size < 0.5 * previous and length == 1.0:
            # Newton's step should have done more: solve for it better, with a factor of its own.
            forcing, last, age = max(0.1 * forcing, _FINEST), _MANY + 1, 1
        if worse and kept is not None and (length > 0.05 or not np.isfinite(size)):
            # Back, and a shorter step in the same direction.
            length *= 0.3 if np.isfinite(size) else 0.1
            if length < 1e-3:
                status = Status.STALLED
                break
            state = _moved(*kept, length)
            continue
        if not np.isfinite(size):
            status = Status.NOT_FINITE
            break
        if factor is None or (last > _MANY and age > 0):
            factor, age = problem.solver.factor(average, diagonal=end * give), 0
            factorisations += 1
        age += 1
        enough = float(
            np.clip(0.3 * size, min(max(1e-3, 0.3 * tolerance / size), forcing), forcing)
        )
        lin = Linear(table, rho, end, give, barrier / rho, r1, r2, r3, r4)
        change = solve_linear(
            problem,
            lin,
            factor,
            forcing=enough,
            max_iterations=150 if careful else 60,
            strict=careful,
        )
        last = change.iterations
        iterations += last
        stiffness = _diagonal(problem, average) / np.maximum(end * give, 1e-300)
        kept, previous, length = (state, change, stiffness), size, 1.0
        taken += 1
        state = _moved(*kept, length)
    return Solved(state, status, float(size), speed, steps, factorisations, iterations)


def _moved(state: State, change: Change, stiffness: Array, length: float) -> State:
    """The step, bent where it would empty a state or let it grow more than fourfold."""
    w = length * change.w
    factor = np.where(w < -0.5, 0.25 / np.maximum(-w, 0.5), 1.0 + w)
    high = w > 3.0
    if high.any():
        factor[high] = 4.0 + 4.0 * np.log((1.0 + w[high]) / 4.0)
    return State(
        state.rho * factor,
        state.q + length * change.q,
        state.last + length * change.last,
        state.y + _log_step(length * change.y, stiffness),
    )


def _log_step(dy: Array, stiffness: Array) -> Array:
    """`x` with `exp(x) + k x = 1 + dy + k dy`: the step of an end density whose rest is linear.

    The end's mass obeys `r3`, linear in `exp(x)`, and its potential `r4`, linear in `x`; `k` is how
    much stiffer the potential holds than the mass. A step of Newton's is one of the two limits.
    """
    k = np.clip(stiffness, 1e-12, 1e12)
    right = 1.0 + dy + k * dy
    u = wrightomega(right / k - np.log(k))
    return np.where(k > 1.0, right / k - u, np.log(np.maximum(k * u, 1e-300)))


def _diagonal(problem: FreeEnd, average: Array) -> Array:
    source, target, _ = problem.kernel.edges
    n = problem.kernel.n_states
    return np.asarray(np.bincount(source, average, n) + np.bincount(target, average, n), float)


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))
