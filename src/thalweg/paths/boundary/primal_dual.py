"""Primal-dual Newton steps on a staggered curve: as the barrier falls it becomes a geodesic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.paths.boundary.space_time import SpaceTime
from thalweg.paths.boundary.staggered import Curve, Staggered
from thalweg.status import Status

Solve = Callable[[SpaceTime, Array, Array, Array], tuple[Array, Array, int]]
"""The solution of a system for two right-hand sides, from a first guess of `psi`; its cost."""

_TO_BOUNDARY = 0.99
"""Share of the way to the boundary that a step may take."""
_GROWTH = 1.0
"""Relative growth of a density beyond which a step to a free end is not near the central path."""
_STILL = 1e-4
"""Relative change of densities below which the decrement is lost in rounding."""
_CENTRAL = 1e4
"""Multipliers stay within this factor of `mu / rho`."""


class Centred(NamedTuple):
    """A curve near the minimum of the barrier function, and what it cost."""

    curve: Curve
    psi: Array
    status: Status
    steps: int
    products: int
    decrement: float
    """Newton's estimate of the excess of half the action over its minimum."""


def centre(
    problem: Staggered,
    curve: Curve,
    solve: Solve,
    *,
    mu: float,
    mu_end: float,
    tolerance: float,
    max_steps: int,
    psi: Array,
) -> Centred:
    """The minimiser of the barrier function at `mu_end`, reached by reducing `mu` tenfold.

    `tolerance`: the decrement of half the action at which to stop.
    """
    pi, h, spans = problem.kernel.stationary, problem.widths, problem.spans
    value = problem.value(curve, mu)
    z = mu / problem.moving(curve.rho)
    products, stuck, decrement = 0, 0, np.inf
    for step in range(1, max_steps + 1):
        system, right_x, right_psi, downhill = problem.linearise(curve, mu, z)
        x, new_psi, cost = solve(system, right_x, right_psi, psi)
        products += cost
        goal = problem.fluxes(system.table, x, new_psi)
        if not (np.isfinite(goal).all() and np.isfinite(x).all()):
            return Centred(curve, psi, Status.NOT_FINITE, step, products, decrement)
        inner = problem.moving(curve.rho)
        move, ratio = goal - curve.flux, x / inner
        kinetic = h @ (curve.flux / system.table[:, :, 0] * move).sum(axis=1)
        decrement = abs(float(kinetic - (downhill * x).sum()))
        length = min(1.0, _TO_BOUNDARY / max(float(-ratio.min()), 1e-300))

        def moved(length: float, curve: Curve = curve, x: Array = x, move: Array = move) -> Curve:
            rho = curve.rho.copy()
            problem.moving(rho)[:] += length * x
            return Curve(rho, curve.flux + length * move)

        # The potential prices the mass that an inexact step leaves unbalanced; with that price the
        # step goes downhill from any curve.
        price = float((new_psi * (problem.defect(curve) - problem.defect(moved(1.0)))).sum())
        # Next to the minimum the value's rounding hides what is left to gain.
        slack = 1e-12 * abs(value) + (0.5 * decrement if decrement < 0.01 * mu else 0.0)
        trial = moved(length)
        trial_value = problem.value(trial, mu)
        while not trial_value + length * price <= value + slack and length > 1e-6:
            length *= 0.5
            trial = moved(length)
            trial_value = problem.value(trial, mu)
        if not np.isfinite(trial_value):
            return Centred(curve, psi, Status.STALLED, step, products, decrement)
        aim = mu / inner - z * ratio
        shrink = float(((z - aim) / z).max())
        z = z + min(1.0, _TO_BOUNDARY / max(shrink, 1e-300)) * (aim - z)
        curve, value, psi = trial, trial_value, new_psi
        central = mu / problem.moving(curve.rho)
        z = np.clip(z, central / _CENTRAL, central * _CENTRAL)
        size = float(np.sqrt(spans @ (ratio**2 @ pi)))
        settled = float(ratio.max()) < _GROWTH
        if mu <= mu_end:
            still = float(np.abs(ratio).max()) < _STILL
            if (decrement <= tolerance or still) and length > 0.5 and settled:
                return Centred(curve, psi, Status.CONVERGED, step, products, decrement)
            stuck = stuck + 1 if length < 1e-4 else 0
            if stuck >= 3:
                return Centred(curve, psi, Status.STALLED, step, products, decrement)
        elif length > 0.5 and settled and (size < 0.5 or decrement < mu):
            mu = max(0.1 * mu, mu_end)
            value = problem.value(curve, mu)
    return Centred(curve, psi, Status.MAX_ITERATIONS, max_steps, products, decrement)
