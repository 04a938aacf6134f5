"""The conic program formerly used to compute W_K (cvxpy, Clarabel), for comparison only.

The logarithmic mean is `integral_0^1 s^x t^(1-x) dx`; Gauss-Legendre nodes turn it into power
cones, and each kinetic term `c f^2 / m` into a rotated quadratic cone. The unknowns are densities
and fluxes over conductance, `f = F / c`, so that all coefficients are of order one.
"""

from __future__ import annotations

import time
import warnings
from typing import NamedTuple

import numpy as np
from scipy import sparse

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

__all__ = ["ConicDistance", "conic_distance"]


class ConicDistance(NamedTuple):
    distance: float
    """NaN where the solver gave nothing."""
    seconds: float
    """CPU time of the solver, without the time to set the program up."""
    status: str
    n_cones: int


def conic_distance(
    kernel: MarkovKernel,
    p: Array,
    q: Array,
    *,
    n_steps: int = 10,
    n_nodes: int = 8,
    time_limit: float = 600.0,
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
    columns = np.arange(edges)
    rate = sparse.csr_array(
        (
            np.concatenate([c / pi[source], -c / pi[target]]),
            (np.concatenate([source, target]), np.concatenate([columns, columns])),
        ),
        shape=(n, edges),
    )
    rho = cp.Variable((n_steps + 1, n))
    flux = cp.Variable((n_steps, edges))
    cost = cp.Variable((n_steps, edges))
    constraints = [rho[0] == p / pi, rho[n_steps] == q / pi]
    for k in range(n_steps):
        middle = 0.5 * (rho[k] + rho[k + 1])
        constraints.append(rho[k + 1] - rho[k] == (rate / n_steps) @ flux[k])
        left, right = middle[source], middle[target]
        parts = cp.Variable((n_nodes, edges))
        for j in range(n_nodes):
            constraints.append(cp.PowCone3D(left, right, parts[j], float(nodes[j])))
        mean = weights @ parts
        # f^2 <= m cost as |(2 f, m - cost)| <= m + cost.
        constraints.append(cp.SOC(mean + cost[k], cp.vstack([2 * flux[k], mean - cost[k]]), axis=0))
    problem = cp.Problem(cp.Minimize(cp.sum(cost @ c) / n_steps), constraints)
    problem.get_problem_data(cp.CLARABEL)  # the set-up, kept for the solve
    size = n_steps * edges * (n_nodes + 1)
    options = {"time_limit": time_limit, "max_threads": 1, "accept_unknown": True}
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=cp.CLARABEL, **options)
        except cp.SolverError:
            return ConicDistance(np.nan, time.process_time() - start, "failed", size)
    seconds = time.process_time() - start
    value = np.nan if problem.value is None else float(problem.value)
    distance = float(np.sqrt(value)) if value >= 0 else float("nan")
    return ConicDistance(distance, seconds, str(problem.status), size)
