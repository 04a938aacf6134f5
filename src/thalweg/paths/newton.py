"""Damped Newton on the discretised action with a logarithmic barrier: the core of both methods.

Primal-dual: `z` stands for `mu / rho`; directions come from block elimination (exact, small graphs)
or from GMRES. The barrier function is convex, so a step that does not reduce it is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import stages
from thalweg.paths.newton_system import Direction, Linearisation, balanced
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

__all__ = ["NewtonPath", "minimise"]

Array = NDArray[np.float64]
DirectionSolver = Callable[[Linearisation, float], Direction]

_TO_BOUNDARY = 0.99
_FORCING = 0.03
"""How well an iterative direction solves its system, relative to the residual it starts from."""


class NewtonPath(NamedTuple):
    """Fluxes, densities and potentials at the stages; how it ended; what it cost."""

    flux: Array
    rho: Array
    psi: Array
    status: Status
    steps: int
    products: int
    decrement: float
    """Newton's estimate of how far half the action is above its minimum."""


def minimise(
    problem: PathProblem,
    flux: Array,
    direction: DirectionSolver,
    *,
    mu: float,
    mu_end: float,
    tolerance: float,
    max_steps: int = 100,
    psi: Array | None = None,
) -> NewtonPath:
    """The minimiser of the barrier function at `mu_end`, reached by reducing `mu` tenfold.

    `tolerance`: the absolute decrement of half the action at which to stop.
    """
    kernel, pi = problem.kernel, problem.kernel.stationary
    weights = problem.mesh.weights
    value, rho, gain = problem.value(flux, mu)
    z = mu / rho
    psi = np.zeros_like(rho) if psi is None else psi
    middle = (problem.mesh.interpolate(*problem.mesh.locate(np.array([0.5]))) @ psi)[0]
    products, decrement, stuck = 0, np.inf, 0
    for step in range(1, max_steps + 1):
        table, force, _ = stages.linearise(*kernel.edges, rho, flux, problem.spec)
        lin = Linearisation(
            kernel,
            problem.mesh,
            problem.gap,
            rho,
            gain,
            table,
            pi * mu / rho - force,
            pi * z / rho,
            psi,
            middle,
        )
        new = direction(lin, _FORCING)
        products += new.iterations
        if not np.isfinite(new.flux).all():
            return NewtonPath(flux, rho, psi, Status.NOT_FINITE, step, products, decrement)
        goal, extra = _to_end_point(problem, new, table)
        psi, middle = new.psi + extra, new.middle + extra
        move = goal - flux
        change = problem.mesh.from_ends @ (problem.gains(goal) - gain) / pi
        edge = flux / table[:, :, 0] * move
        slope = float(weights @ (edge.sum(axis=1) - ((force + pi * mu / rho) * change).sum(axis=1)))
        decrement = abs(slope)
        if new.residual > 0:
            # An inexact direction may be level by accident; the length of the step may not.
            decrement = max(
                decrement, 0.5 * float(weights @ (move**2 / table[:, :, 0]).sum(axis=1))
            )
        ratio = change / rho
        length = min(1.0, _TO_BOUNDARY / max(float(-ratio.min()), 1e-300))
        trial = problem.value(flux + length * move, mu)
        while not trial[0] <= value + 1e-13 * abs(value) and length > 1e-7:
            length *= 0.5
            trial = problem.value(flux + length * move, mu)
        if not np.isfinite(trial[0]):
            return NewtonPath(flux, rho, psi, Status.STALLED, step, products, decrement)
        if mu > 0:
            target = mu / rho - z * ratio
            shrink = float(((z - target) / z).max())
            z = z + min(1.0, _TO_BOUNDARY / max(shrink, 1e-300)) * (target - z)
        flux = flux + length * move
        value, rho, gain = trial
        if mu > 0:
            # Far from mu / rho the multipliers lose their meaning; keep them within a factor.
            z = np.clip(z, 1e-4 * mu / rho, 1e4 * mu / rho)
        size = float(np.sqrt(weights @ (ratio**2 @ pi)))
        if mu <= mu_end:
            if decrement <= tolerance and length > 0.5:
                return NewtonPath(flux, rho, psi, Status.CONVERGED, step, products, decrement)
            stuck = stuck + 1 if length < 1e-5 else 0
            if stuck >= 3:
                return NewtonPath(flux, rho, psi, Status.STALLED, step, products, decrement)
        elif length > 0.5 and (size < 0.5 or decrement < mu):
            mu = max(0.1 * mu, mu_end)
            value, _, _ = problem.value(flux, mu)
    return NewtonPath(flux, rho, psi, Status.MAX_ITERATIONS, max_steps, products, decrement)


def _to_end_point(problem: PathProblem, new: Direction, table: Array) -> tuple[Array, Array]:
    """The flux that ends at `p1` exactly, and the potential by which it had to change."""
    source, target, _ = problem.kernel.edges
    weights = problem.mesh.weights
    flux = new.flux
    factor = new.factor or problem.solver.factor(stages.newton_average(table, weights))
    total = np.zeros(problem.gap.size)
    for _ in range(2):
        defect = problem.gap - weights @ problem.gains(flux)
        psi = factor.solve(balanced(defect), tolerance=1e-4).x
        total += psi
        flux = flux + table[:, :, 0] * (psi[source] - psi[target])
    return flux, total
