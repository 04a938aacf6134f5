"""Method A: fixed point with one averaged Laplacian a sweep, for end points inside the simplex.

With `J` the integrals of the mesh, a sweep maps densities `R` and potentials `P` at the stages to

    Q = -J_mid force(R, P) / pi,   (sum_k b_k M_k) q = p1 - p0 - sum_k b_k M_k Q_k,
    P = q + Q,                     R = rho_end + J_ends (M_k P_k) / pi.

Anderson's mixing makes it converge in a handful of sweeps for near pairs, and the solves may be
loose, because each corrects the last. Where it is slow, Newton with GMRES takes over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.geometry import stages
from thalweg.geometry.newton_path import minimise
from thalweg.geometry.newton_system import Direction, Linearisation, balanced, solve_krylov
from thalweg.geometry.path_problem import PathProblem
from thalweg.status import Status

__all__ = ["FixedPoint", "solve_fixed_point"]

Array = NDArray[np.float64]

_MEMORY = 8


class FixedPoint(NamedTuple):
    """Fluxes, densities and potentials at the stages; how it ended; what it cost."""

    flux: Array
    rho: Array
    psi: Array
    status: Status
    sweeps: int
    products: int
    residual: float


def solve_fixed_point(
    problem: PathProblem,
    *,
    tolerance: float,
    rho: Array | None = None,
    psi: Array | None = None,
    max_sweeps: int = 40,
    newton: bool = True,
) -> FixedPoint:
    """The discretised geodesic; `tolerance` bounds the relative change of a last sweep."""
    pi, mesh = problem.kernel.stationary, problem.mesh
    source, target, conductance = problem.kernel.edges
    if rho is None:
        t = mesh.times[:, None]
        rho = ((1 - t) * problem.p0 + t * problem.p1) / pi
    if psi is None:
        psi = np.zeros_like(rho)
    middle = np.zeros(pi.size) if not psi.any() else mesh_middle(problem, psi)
    weights = mesh.weights[:, None]
    rest = psi - middle
    inputs: list[Array] = []
    outputs: list[Array] = []
    residual, best, sweep = np.inf, np.inf, 0
    loose = 1e-2
    x = np.stack([rho, rest])
    scale = np.stack([np.sqrt(weights * pi / rho), np.sqrt(weights * pi * rho)])
    status = Status.MAX_ITERATIONS
    factor = None
    rate = 1.0
    while sweep < max_sweeps:
        sweep += 1
        force, edge, average = stages.sweep(
            source, target, conductance, x[0], x[1] + middle, problem.spec, mesh.weights
        )
        rest = -(mesh.from_middle @ force) / pi
        gain, _ = stages.weighted_gain(source, target, edge, rest + middle)
        if factor is None or sweep == 2 or rate > 0.3:
            # An old factor still points the right way; a new one is worth its cost when slow.
            factor = problem.solver.factor(average)
        step = factor.solve(balanced(problem.gap - mesh.weights @ gain), tolerance=loose).x
        middle = middle + step
        gain, action = stages.weighted_gain(source, target, edge, rest + middle)
        new = np.stack([problem.densities(gain), rest])
        size = max(float(np.sqrt(mesh.weights @ action)), 1e-300)
        defect = float(np.abs(problem.gap - mesh.weights @ gain).sum())
        previous = residual
        residual = max(float(np.linalg.norm((new - x) * scale)), defect) / size
        rate = residual / previous
        if not np.isfinite(residual) or residual > 5 * max(best, 0.5):
            status = Status.STALLED
            break
        if residual <= tolerance and new[0].min() > 0:
            x = new
            status = Status.CONVERGED
            break
        slow = sweep > 8 and residual > 0.5 * best
        best = min(best, residual)
        loose = float(np.clip(0.1 * residual, 1e-6, 1e-2))
        inputs.append(x)
        outputs.append(new)
        inputs, outputs = inputs[-_MEMORY:], outputs[-_MEMORY:]
        x = _inside(_mix(inputs, outputs, scale), inputs[-1])
        if newton and slow:
            break
    if status is Status.CONVERGED or not newton:
        flux = _flux(problem, x[0], x[1] + middle)
        return FixedPoint(flux, x[0], x[1] + middle, status, sweep, sweep, residual)
    if status is Status.STALLED:
        return _newton(problem, problem.chord_flux(), tolerance, sweep)
    return _newton(problem, _flux(problem, x[0], x[1] + middle), tolerance, sweep)


def _newton(problem: PathProblem, flux: Array, tolerance: float, sweeps: int) -> FixedPoint:
    value, rho, _ = problem.value(flux, 0.0)
    if not np.isfinite(value):
        flux = problem.chord_flux()
        value, rho, _ = problem.value(flux, 0.0)
        if not np.isfinite(value):
            return FixedPoint(flux, rho, rho, Status.STALLED, sweeps, sweeps, np.inf)

    def direction(lin: Linearisation, forcing: float) -> Direction:
        return solve_krylov(lin, problem.solver, tolerance=forcing, max_iterations=120)

    path = minimise(
        problem,
        flux,
        direction,
        mu=0.0,
        mu_end=0.0,
        tolerance=0.5 * tolerance**2 * value,
        max_steps=20,
    )
    residual = float(np.sqrt(max(path.decrement, 0.0) / value))
    total = sweeps + path.products
    return FixedPoint(path.flux, path.rho, path.psi, path.status, sweeps, total, residual)


def _flux(problem: PathProblem, rho: Array, psi: Array) -> Array:
    """`c m grad psi`, brought to end at `p1` exactly."""
    source, target, conductance = problem.kernel.edges
    weights = problem.mesh.weights
    edge = stages.stage_weights(source, target, conductance, rho, problem.spec)
    flux = edge * (psi[:, source] - psi[:, target])
    defect = problem.gap - weights @ problem.gains(flux)
    step = problem.solver.factor(weights @ edge).solve(balanced(defect), tolerance=1e-6).x
    return np.asarray(flux + edge * (step[source] - step[target]))


def mesh_middle(problem: PathProblem, psi: Array) -> Array:
    """The potential halfway, by interpolation."""
    mesh = problem.mesh
    return np.asarray((mesh.interpolate(*mesh.locate(np.array([0.5]))) @ psi)[0])


def _mix(inputs: list[Array], outputs: list[Array], scale: Array) -> Array:
    """Anderson's mixing: the combination of outputs whose combined residual is least."""
    if len(inputs) == 1:
        return outputs[-1]
    residuals = np.array([((o - i) * scale).ravel() for i, o in zip(inputs, outputs, strict=True)])
    differences = residuals[1:] - residuals[:-1]
    # Scaled normal equations with a cut-off: ten times cheaper than the long least squares.
    size = np.linalg.norm(differences, axis=1)
    # Between end points equal to rounding, residuals repeat: such a pair has no say.
    size = np.where(size > 0, size, 1.0)
    differences = differences / size[:, None]
    gamma = (
        np.linalg.lstsq(differences @ differences.T, differences @ residuals[-1], rcond=1e-13)[0]
        / size
    )
    new = outputs[-1].copy()
    for k, g in enumerate(gamma):
        new -= g * (outputs[k + 1] - outputs[k])
    return new


def _inside(x: Array, old: Array) -> Array:
    """The point 9/10 of the way to the boundary, where the step would cross it."""
    worst = float(((old[0] - x[0]) / old[0]).max())
    if worst < 0.9:
        return x
    return np.asarray(old + (0.9 / worst) * (x - old))
