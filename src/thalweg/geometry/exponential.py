"""The exponential map: the geodesic equations as an initial value problem.

`p' = M(rho) psi`, `psi' = -(1/2) d/dp (psi^T M(rho) psi)`: Hamilton's equations of the kinetic
energy, integrated by an explicit method of order eight. They break down where a density reaches
zero; the integration stops there and the status says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from thalweg._types import Array
from thalweg.edges.kinetic import stage_forces
from thalweg.edges.static import Graph, edge_divergence, stage_weights
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility
from thalweg.status import Status

_FLOOR = 1e-12
"""Densities below this end the integration."""


class Shot(NamedTuple):
    """Probabilities and potentials along a geodesic, up to the last time it could be followed."""

    times: Array
    probabilities: Array
    potentials: Array
    status: Status


def shoot(
    kernel: MarkovKernel,
    mobility: Mobility,
    p: Array,
    psi: Array,
    times: Array,
    *,
    tolerance: float = 1e-12,
) -> Shot:
    """The geodesic that leaves `p` with potential `psi`, at increasing times from zero."""
    graph, n = Graph.of(kernel, mobility), kernel.n_states
    source, target, _, pi, _ = graph

    def slope(_: float, y: Array) -> Array:
        rho, potential = np.maximum(y[:n], 1e-300), y[n:]
        fall = (potential[source] - potential[target])[None]
        gain = edge_divergence(source, target, (stage_weights(graph, rho[None]) * fall)[0], n)
        force = stage_forces(graph, rho[None], fall)[0]
        return np.concatenate([gain / pi, -force / pi])

    def emptied(_: float, y: Array) -> float:
        return float(y[:n].min()) - _FLOOR

    emptied.terminal = True  # type: ignore[attr-defined]
    emptied.direction = -1  # type: ignore[attr-defined]
    psi = psi - pi @ psi
    scale = max(1.0, float(np.abs(psi).max()))
    solution = solve_ivp(
        slope,
        (0.0, float(times[-1])),
        np.concatenate([p / pi, psi]),
        method="DOP853",
        t_eval=times,
        rtol=max(tolerance, 1e-13),
        atol=np.concatenate([np.full(n, 0.01 * tolerance), np.full(n, tolerance * scale)]),
        events=emptied,
    )
    reached = solution.t
    rho, potentials = solution.y[:n].T, solution.y[n:].T
    status = Status.CONVERGED
    if solution.status == 1:
        status = Status.LEFT_SIMPLEX
    elif solution.status != 0:
        status = Status.STEP_TOO_SMALL
    return Shot(reached, rho * pi, potentials, status)
