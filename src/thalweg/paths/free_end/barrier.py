"""JKO steps from anywhere: a primal-dual interior point in the fluxes of a path with a free end.

Half the action plus `tau F` at the end is convex in the fluxes (where `F` is convex), so a line
search cannot go astray. Barriers `-mu log rho` on the path and on its end let every density fall
with `mu`, all of them in step: without one, Newton's step in a nearly empty state is cut off at the
boundary, and the whole path's step with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import packed
from thalweg.paths.free_end.system import FreeEnd, Linear, State, solve_linear
from thalweg.status import Status

__all__ = ["Approached", "approach"]

Array = NDArray[np.float64]

_TO_BOUNDARY = 0.95
_CENTRAL = 1e4
"""Multipliers stay within this factor of `mu / rho`."""
_FALL = 0.1
_FINEST = 1e-7
"""Directions are not solved for better than this."""
_HEALTHY, _EARLY = 1e-3, 1e-3
"""A path whose densities stay above the first is led only to the second barrier, relative to `W^2`:
Newton takes it from there."""
_LEAN = 0.5
"""The first path goes this far towards the stationary distribution."""


class Approached(NamedTuple):
    """A path near the minimum with the last barrier, and what it cost."""

    state: State
    status: Status
    mu: float
    value: float
    """Half the action plus `tau F`."""
    factorisations: int
    iterations: int


class _Path(NamedTuple):
    flux: Array
    gain: Array
    end: Array
    rho: Array
    value: float


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the status tells
def approach(
    problem: FreeEnd, *, mu: float, mu_end: float, max_steps: int = 60, forcing: float = 3e-4
) -> Approached:
    """The minimiser with barrier `mu_end`, reached from `mu` by tenfold falls."""
    pi, b, edges = problem.kernel.stationary[:, None], problem.mesh.weights, problem.kernel.edges
    n, count = pi.size, b.size
    flux, first, loosest = _first_flux(problem), mu, forcing
    path = _path(problem, flux, mu)
    psi, last = np.zeros((n, count)), np.zeros(n)
    zeros = np.zeros((n, count))
    moved, push = np.empty((n, count)), np.empty((n, count))
    z, z_end = mu / path.rho, mu * pi[:, 0] / path.end
    iterations, status, stuck, step = 0, Status.MAX_ITERATIONS, 0, 0
    while step < max_steps:
        step += 1
        rho, end = path.rho, path.end
        table, force, action, average = packed.linearise_flux(
            *edges, rho, path.flux, problem.spec, b
        )
        packed.product(edges.source, edges.target, table, psi, zeros, moved, push)
        extra = moved - path.gain
        y = np.log(end / pi[:, 0])
        give = 1.0 / (problem.slope(y) + z_end)
        r4 = last + problem.tau * problem.first_variation(end, y) - mu * pi[:, 0] / end
        lin = Linear(
            table,
            rho,
            end,
            give,
            z,
            extra @ problem.ends / pi / rho,
            ((push / rho - force) / pi + mu / rho) @ problem.to_end - (psi - last[:, None]),
            extra @ b,
            r4,
        )
        factor = problem.solver.factor(average, diagonal=end * give)
        change = solve_linear(
            problem, lin, factor, forcing=forcing, max_iterations=200, strict=forcing < loosest
        )
        iterations += change.iterations
        last = last + change.last
        psi = psi + change.q + change.last[:, None]
        goal = packed.weighted_flux(edges.source, edges.target, table, psi, change.w)
        source, target, _ = edges
        for _ in range(2):
            aim = end * (1.0 + change.y)
            defect = aim - problem.p - packed.divergence(source, target, goal, n) @ b
            lift = factor.solve(defect, tolerance=1e-6).x
            goal += table[:, 0] * (lift[source] - lift[target])[:, None]
        if not np.isfinite(goal).all():
            status = Status.NOT_FINITE
            break
        move = goal - path.flux
        gain = packed.divergence(edges.source, edges.target, move, n)
        ratio = gain @ problem.mesh.forward.T / pi / rho
        ratio_end = gain @ b / end
        least = min(float(ratio.min()), float(ratio_end.min()))
        whole = length = min(1.0, _TO_BOUNDARY / max(-least, 1e-300))
        trial = _path(problem, path.flux + length * move, mu)
        while not trial.value <= path.value + 1e-12 * abs(path.value) and length > 1e-7:
            length *= 0.5
            trial = _path(problem, path.flux + length * move, mu)
        if (length < 0.2 * whole or (whole < 0.5 and mu < first)) and forcing > _FINEST:
            # A convex function falls along its Newton step, and near the central path it does not
            # end at the boundary: this was none. Solve for it better.
            forcing = max(0.1 * forcing, _FINEST)
            continue
        if not np.isfinite(trial.value):
            status = Status.STALLED
            break
        z = _multiplier(z, mu / rho - z * ratio, mu / trial.rho)
        z_end = _multiplier(
            z_end, mu * pi[:, 0] / end - z_end * ratio_end, mu * pi[:, 0] / trial.end
        )
        path = trial
        stuck = stuck + 1 if length < 1e-4 else 0
        if stuck == 3:
            status = Status.STALLED
            break
        size = float(np.sqrt(b @ (ratio**2).T @ pi[:, 0] + ratio_end**2 @ pi[:, 0]))
        if length > 0.5 and size < 0.5:
            enough = mu_end if rho.min() < _HEALTHY else _EARLY
            if mu <= enough * min(1.0, float(b @ action)):
                status = Status.CONVERGED
                break
            mu *= _FALL if size > 0.15 else _FALL**2
            path = _path(problem, path.flux, mu)
    y = np.log(path.end / pi[:, 0])
    state = State(path.rho, psi - last[:, None], last, y)
    value = _path(problem, path.flux, 0.0).value
    return Approached(state, status, mu, value, step + 1, iterations)


def _multiplier(z: Array, aim: Array, central: Array) -> Array:
    shrink = float(((z - aim) / z).max())
    z = z + min(1.0, _TO_BOUNDARY / max(shrink, 1e-300)) * (aim - z)
    return np.clip(z, central / _CENTRAL, central * _CENTRAL)


def _path(problem: FreeEnd, flux: Array, mu: float) -> _Path:
    """Densities and end of a path with these fluxes, and the barrier function."""
    kernel, b = problem.kernel, problem.mesh.weights
    pi = kernel.stationary[:, None]
    gain = packed.divergence(kernel.edges.source, kernel.edges.target, flux, pi.size)
    end = problem.p + gain @ b
    rho = (problem.p[:, None] + gain @ problem.mesh.forward.T) / pi
    if not (rho.min() > 0 and end.min() > 0):
        return _Path(flux, gain, end, rho, np.inf)
    action = packed.flux_action(*kernel.edges, rho, flux, problem.spec)
    value = 0.5 * float(b @ action) + problem.tau * problem.energy_at(end)
    value -= mu * float(pi[:, 0] @ (np.log(rho) @ b) + pi[:, 0] @ np.log(end / pi[:, 0]))
    return _Path(flux, gain, end, rho, value)


def _first_flux(problem: FreeEnd) -> Array:
    """Constant fluxes along a straight line that leads away from the boundary."""
    kernel, b = problem.kernel, problem.mesh.weights
    source, target, _ = kernel.edges
    pi = kernel.stationary
    aim = (1 - _LEAN) * problem.p + _LEAN * pi
    t = problem.mesh.times
    rho = (problem.p[:, None] * (1 - t) + aim[:, None] * t) / pi[:, None]
    flux = np.zeros((source.size, b.size))
    _, _, _, average = packed.linearise_flux(*kernel.edges, rho, flux, problem.spec, b)
    factor = problem.solver.factor(average, diagonal=1e-6 * pi)
    psi = factor.solve(aim - problem.p, tolerance=1e-6).x
    flux[:] = (average * (psi[source] - psi[target]))[:, None]
    return flux
