"""The JKO step: `argmin_q F(q) + W_K(p, q)^2 / (2 tau)`, exact in the transport metric.

A JKO step is a path with a free end: path and end point are found together, by minimising half the
action of a path that starts at `p`, plus `tau F` at its end (`thalweg.paths.free_end`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.trajectory import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import Mobility, as_mobility
from thalweg.paths.end import FreeEnd
from thalweg.paths.free_end.step import solve_free_end
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status


@dataclass(frozen=True, eq=False)
class JkoResult:
    """The minimiser of a JKO step, its path, and how the computation ended."""

    probability: Array
    status: Status
    first_order_residual: float
    """Root mean square of `psi(1) / tau + f(q)` minus its mean under `q`, plus the defect of mass.

    The second part is `beta log(1 + |defect| / q)` for the mass that the fluxes leave elsewhere."""
    distance: float
    energy: float
    potential: Array
    """The potential with which the geodesic leaves `p`."""
    final_potential: Array
    """The potential with which it arrives: `-tau f(q)` up to a constant; above it if empty."""
    factorisations: int
    iterations: int
    """GMRES iterations."""
    smoothing: float = 0.0
    """The share of the stationary distribution that was mixed into `p` first, as requested."""
    path_error: float = 0.0
    """The estimated relative error of `distance`, from the mesh in time; 1 or more where the mesh
    is too coarse for an estimate, as it may be next to the boundary of the simplex."""


@single_threaded
@checked
def jko_step(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p: ArrayLike,
    tau: float,
    *,
    mobility: Mobility | None = None,
    tolerance: float = 1e-9,
    path_tolerance: float = 1e-6,
    max_steps: int = 60,
    smoothing: float = 0.0,
    solver: LaplacianSolver | None = None,
) -> JkoResult:
    """One step of the minimising-movement scheme from `p`, for any `tau > 0`.

    An interaction that makes `F` concave may have several minimisers, or defeat Newton's method:
    see the status.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy
        The energy `F` to be lowered.
    p : array
        The start of the step. It may have empty states, and so may the result if `beta` is zero or
        its density underflows. (After a step from empty states the smallest densities, which have
        no effect on the first-order condition at `tolerance`, are bounds left by a barrier.)
    tau : float
        Length of the step.
    mobility : Mobility, optional
        By default the logarithmic mean.
    tolerance : float
        Bound on the residual of the first-order condition.
    path_tolerance : float
        Relative error of the distance to which the mesh in time is refined, until 40
        factorisations are spent; `path_error` is the error reached.
    max_steps : int
        Bound on the Newton steps of the first, coarse curve.
    smoothing : float
        Share of the stationary distribution that is mixed into `p` first.
    solver : LaplacianSolver, optional
        A grounded solver of the kernel, to share its analysis between steps.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> step = jko_step(kernel, FreeEnergy([0.0, 1.0], beta=1.0), [0.5, 0.5], tau=0.1)
    >>> step.probability.round(6), bool(step.status)
    (array([0.541597, 0.458403]), True)
    """
    mobility = as_mobility(mobility)
    tau = _checks.positive(tau, "tau")
    p = _checks.as_probability(p, kernel.n_states)
    energy._check(kernel)
    if smoothing:
        if not 0 < smoothing < 1:
            raise InputError(f"smoothing is {smoothing:g}; give a share between 0 and 1.")
        p = (1 - smoothing) * p + smoothing * kernel.stationary
    grounded = LaplacianSolver.for_kernel(kernel, grounded=True) if solver is None else solver
    mesh, end = TimeMesh.uniform(1, 3), FreeEnd(kernel, energy, tau)
    found = solve_free_end(
        PathProblem(kernel, mobility.spec, p, p, mesh, grounded, end),
        tolerance=tolerance,
        path_tolerance=path_tolerance,
        max_steps=max_steps,
    )
    pi = kernel.stationary
    q = pi * np.exp(found.y)
    q = q / q.sum()
    return JkoResult(
        q,
        found.status,
        found.residual,
        found.distance,
        energy(kernel, q),
        found.first - pi @ found.first,
        found.final - pi @ found.final,
        found.factorisations,
        found.iterations,
        smoothing,
        found.error,
    )


@checked
def jko_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    tau: float,
    n_steps: int,
    *,
    mobility: Mobility | None = None,
    tolerance: float = 1e-9,
    smoothing: float = 0.0,
) -> Trajectory:
    """`n_steps` JKO steps of length `tau`: a trajectory at times `0, tau, 2 tau, ...`.

    Its status is that of the first step that failed, after which the last point is repeated.
    `smoothing` applies to `p0` alone; the other arguments are those of `jko_step`.
    """
    n_steps = _checks.whole(n_steps, "n_steps", 1)
    solver = LaplacianSolver.for_kernel(kernel, grounded=True)
    p = _checks.as_probability(p0, kernel.n_states)
    rows = [p]
    status = Status.CONVERGED
    for k in range(n_steps):
        if status:
            result = jko_step(
                kernel,
                energy,
                p,
                tau,
                mobility=mobility,
                tolerance=tolerance,
                smoothing=smoothing if k == 0 else 0.0,
                solver=solver,
            )
            p, status = result.probability, result.status
        rows.append(p)
    return Trajectory(np.asarray(tau * np.arange(n_steps + 1.0)), np.array(rows), status)
