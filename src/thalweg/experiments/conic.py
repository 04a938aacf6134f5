"""The conic program that W_K was computed with before: cvxpy and Clarabel, for comparison only.

The logarithmic mean is `integral_0^1 s^x t^(1-x) dx`; Gauss-Legendre nodes turn it into power
cones, and each kinetic term `F^2 / m` into a rotated quadratic cone.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.kernel import MarkovKernel

__all__ = ["ConicDistance", "conic_distance"]

Array = NDArray[np.float64]


class ConicDistance(NamedTuple):
    distance: float
    seconds: float


def conic_distance(
    kernel: MarkovKernel, p: Array, q: Array, *, n_steps: int = 10, n_nodes: int = 8
) -> ConicDistance | None:
    """The midpoint discretisation of W_K as a conic program; `None` if cvxpy is missing."""
    try:
        import cvxpy as cp
    except ImportError:
        return None
    if "CLARABEL" not in cp.installed_solvers():
        return None
    source, target, c = kernel.edges
    pi, n, edges = kernel.stationary, kernel.n_states, kernel.n_edges
    x, w = np.polynomial.legendre.leggauss(n_nodes)
    nodes, weights = 0.5 * (1 + x), 0.5 * w
    incidence = np.zeros((n, edges))
    incidence[source, np.arange(edges)] = 1.0
    incidence[target, np.arange(edges)] = -1.0
    rho = cp.Variable((n_steps + 1, n), nonneg=True)
    flux = cp.Variable((n_steps, edges))
    cost = cp.Variable((n_steps, edges))
    constraints = [rho[0] == p / pi, rho[n_steps] == q / pi]
    for k in range(n_steps):
        middle = 0.5 * (rho[k] + rho[k + 1])
        step = incidence @ flux[k] / n_steps
        constraints.append(cp.multiply(pi, rho[k + 1] - rho[k]) == step)
        left, right = middle[source], middle[target]
        parts = cp.Variable((n_nodes, edges))
        for j in range(n_nodes):
            constraints.append(cp.PowCone3D(left, right, parts[j], float(nodes[j])))
        mean = weights @ parts
        # F^2 <= c m cost as |(2 F, c m - cost)| <= c m + cost.
        scaled = cp.multiply(c, mean)
        constraints.append(
            cp.SOC(scaled + cost[k], cp.vstack([2 * flux[k], scaled - cost[k]]), axis=0)
        )
    problem = cp.Problem(cp.Minimize(cp.sum(cost) / n_steps), constraints)
    start = time.perf_counter()
    problem.solve(solver=cp.CLARABEL)
    seconds = time.perf_counter() - start
    return ConicDistance(float(np.sqrt(max(problem.value, 0.0))), seconds)
