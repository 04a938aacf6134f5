"""`Geodesic`: the answer, and `solve_geodesic`, which chooses the method that finds it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg.errors import InputError
from thalweg.geometry import stages
from thalweg.geometry.block_elimination import solve_blocks
from thalweg.geometry.fixed_point import solve_fixed_point
from thalweg.geometry.interior_point import AdaptivePath, solve_adaptive
from thalweg.geometry.mesh import TimeMesh
from thalweg.geometry.newton_path import DirectionSolver
from thalweg.geometry.newton_system import Direction, Linearisation, balanced, solve_krylov
from thalweg.geometry.path_problem import PathProblem
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import Mobility
from thalweg.status import Status

__all__ = ["Geodesic", "GeodesicMethod", "GeodesicPoints", "solve_geodesic"]

Array = NDArray[np.float64]
GeodesicMethod = Literal["auto", "fixed-point", "interior-point"]

_DENSE_STATES = 400
"""Up to this many states Newton's systems are solved by dense elimination."""
_SINGULAR = 1e-3
"""An end point with a density below this needs a mesh graded towards it."""


class GeodesicPoints(NamedTuple):
    """Points of a geodesic, one row a time; `fluxes` per edge of the kernel; `speeds` of W_K."""

    times: Array
    probabilities: Array
    potentials: Array
    fluxes: Array
    speeds: Array


@dataclass(frozen=True, eq=False)
class Geodesic:
    """A constant-speed geodesic on [0, 1], known at all times through `at`."""

    kernel: MarkovKernel
    mobility: Mobility
    times: Array
    probabilities: Array
    potentials: Array
    distance: float
    status: Status
    error_estimate: float
    """Estimated error of `distance`, absolute."""
    upper_bound: float
    """The length of the interpolated path: the distance is not larger, up to quadrature."""
    method: str
    steps: int
    """Newton steps or sweeps."""
    products: int
    """Sweeps and inner iterations: each costs one Laplacian solve, or one elimination."""
    _problem: PathProblem
    _flux: Array
    _force: Array
    _middle: Array

    def at(self, times: ArrayLike) -> GeodesicPoints:
        """Probabilities, potentials, fluxes and speeds at any times in [0, 1]."""
        t = np.atleast_1d(_checks.as_array(times, "times"))
        if t.ndim != 1 or np.any((t < 0) | (t > 1)):
            raise InputError("times of a geodesic must be a list of numbers between 0 and 1.")
        return _points(self._problem, self._flux, self._force, self._middle, t)

    @property
    def initial_potential(self) -> Array:
        """`log(p, q)`: the potential with which the geodesic leaves `p`."""
        return self._ends.potentials[0]

    @property
    def final_potential(self) -> Array:
        """The potential with which the geodesic arrives at `q`; minus `log(q, p)`."""
        return self._ends.potentials[1]

    @cached_property
    def _ends(self) -> GeodesicPoints:
        return self.at([0.0, 1.0])


def _points(
    problem: PathProblem, flux: Array, force: Array, middle: Array, t: Array
) -> GeodesicPoints:
    mesh, kernel, pi = problem.mesh, problem.kernel, problem.kernel.stationary
    piece, place = mesh.locate(t)
    late = mesh.is_late(piece, place)
    p = np.where(late[:, None], problem.p1, problem.p0)
    p = p + mesh.integral_from_ends(piece, place) @ problem.gains(flux)
    p = np.maximum(p, 0.0)
    p[t == 0], p[t == 1] = problem.p0, problem.p1
    psi = middle - (mesh.integral_from_middle(piece, place) @ force) / pi
    psi = psi - (psi @ pi)[:, None]
    fluxes = mesh.interpolate(piece, place) @ flux
    speeds = np.sqrt(stages.flux_action(*kernel.edges, p / pi, fluxes, problem.spec))
    return GeodesicPoints(t, p, psi, fluxes, speeds)


def solve_geodesic(
    kernel: MarkovKernel,
    mobility: Mobility,
    p0: Array,
    p1: Array,
    *,
    solver: LaplacianSolver,
    tolerance: float = 1e-8,
    n_steps: int = 16,
    method: GeodesicMethod = "auto",
    max_stages: int | None = None,
    potential_tolerance: float | None = None,
) -> Geodesic:
    """The geodesic from `p0` to `p1`, with a relative error of the distance below `tolerance`.

    Method A (fixed point, then Newton and GMRES) where both ends are well inside the simplex and
    not far apart; method B (interior point) otherwise, and where A does not converge.
    """
    if method not in get_args(GeodesicMethod):
        raise InputError(
            f"method is {method!r}; choose one of {', '.join(get_args(GeodesicMethod))}."
        )
    problem = PathProblem(kernel, mobility.spec, p0, p1, TimeMesh.uniform(1, 3), solver)
    times = np.linspace(0, 1, n_steps + 1)
    if np.abs(problem.gap).max() == 0.0:
        return _constant(problem, mobility, times)
    lowest = (float((p0 / kernel.stationary).min()), float((p1 / kernel.stationary).min()))
    singular = (lowest[0] < _SINGULAR, lowest[1] < _SINGULAR)
    found: AdaptivePath | None = None
    used = "fixed-point"
    inside = min(lowest) > 1e-8
    if method == "fixed-point" and not inside:
        raise InputError(
            f"the least density of the end points is {min(lowest):.3g}; the fixed point needs "
            "densities above 1e-8: use method='auto'."
        )
    if method == "fixed-point" or (method == "auto" and inside and not any(singular)):
        found = _method_a(problem, tolerance, max_stages, potential_tolerance)
    if found is None or (method == "auto" and not found.status):
        used = "interior-point"
        other = _method_b(problem, tolerance, singular, max_stages)
        if found is None or other.status or other.error < found.error:
            found = other
        else:
            used = "fixed-point"
    return _package(found, mobility, times, used)


def _directions(problem: PathProblem, max_iterations: int) -> DirectionSolver:
    def by_blocks(lin: Linearisation, forcing: float) -> Direction:
        return solve_blocks(lin)

    def by_krylov(lin: Linearisation, forcing: float) -> Direction:
        return solve_krylov(lin, problem.solver, tolerance=forcing, max_iterations=max_iterations)

    return by_blocks if problem.kernel.n_states <= _DENSE_STATES else by_krylov


def _method_a(
    problem: PathProblem,
    tolerance: float,
    max_stages: int | None,
    potential_tolerance: float | None,
) -> AdaptivePath | None:
    pi = problem.kernel.stationary
    middle = 0.5 * (problem.p0 + problem.p1) / pi
    weights = stages.stage_weights(*problem.kernel.edges, middle[None], problem.spec)[0]
    psi = problem.solver.factor(weights).solve(balanced(problem.gap), tolerance=1e-3).x
    reach = float(np.sqrt(problem.gap @ psi))
    if reach > 0.6:
        return None
    mesh = TimeMesh.uniform(1, 3 if reach < 0.1 or tolerance > 1e-7 else 4)
    problem = problem.on(mesh)
    # The action is stationary: its error is the square of the path's.
    wanted = 0.01 * np.sqrt(tolerance) if potential_tolerance is None else potential_tolerance
    accuracy = float(np.clip(wanted, 1e-11, 1e-4))
    start = solve_fixed_point(
        problem, tolerance=accuracy, psi=np.broadcast_to(psi, (mesh.size, psi.size)).copy()
    )
    if not start.status:
        return None
    length = problem.length(start.flux)
    if _error(problem, start.rho, start.flux, length) <= tolerance * length.fine.sum():
        return _from_fixed_point(problem, start)
    found = solve_adaptive(
        problem,
        _directions(problem, 150),
        tolerance=tolerance,
        order=int(mesh.orders[0]),
        singular=(False, False),
        max_stages=200 if max_stages is None else max_stages,
        start=start.flux,
        psi=start.psi,
        barrier=False,
        max_steps=25,
    )
    return found._replace(products=found.products + start.products)


def _error(problem: PathProblem, rho: Array, flux: Array, length: object) -> float:
    from thalweg.geometry.path_problem import Length

    assert isinstance(length, Length)
    distance = float(np.sqrt(problem.mesh.weights @ problem.actions(rho, flux)))
    return float(length.errors.sum()) + max(distance - float(length.coarse.sum()), 0.0)


def _from_fixed_point(problem: PathProblem, start: object) -> AdaptivePath:
    from thalweg.geometry.fixed_point import FixedPoint
    from thalweg.geometry.newton_path import NewtonPath

    assert isinstance(start, FixedPoint)
    length = problem.length(start.flux)
    distance = float(np.sqrt(problem.mesh.weights @ problem.actions(start.rho, start.flux)))
    path = NewtonPath(
        start.flux, start.rho, start.psi, start.status, start.sweeps, start.products, 0.0
    )
    error = _error(problem, start.rho, start.flux, length)
    return AdaptivePath(
        problem, path, distance, length.upper, error, start.status, start.sweeps, start.products
    )


def _method_b(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> AdaptivePath:
    n = problem.kernel.n_states
    pi = problem.kernel.stationary
    order = 4 if n <= 32 else 3 if n <= 100 else 2 if n <= 150 else 1
    limit = max_stages or (1500 if n <= 32 else 600 if n <= 100 else 256)
    pieces, start = 4 if n <= 150 else 8, None
    if not any(singular):
        middle = 0.5 * (problem.p0 + problem.p1) / pi
        weights = stages.stage_weights(*problem.kernel.edges, middle[None], problem.spec)[0]
        psi = problem.solver.factor(weights).solve(balanced(problem.gap), tolerance=1e-3).x
        pieces = int(np.clip(np.ceil(np.sqrt(problem.gap @ psi)), 2, 16))
        order = max(order, 3) if n > _DENSE_STATES else order
        problem = problem.on(TimeMesh.uniform(pieces, order))
        start = problem.chord_flux()
    return solve_adaptive(
        problem,
        _directions(problem, 300),
        tolerance=tolerance,
        order=order,
        singular=singular,
        pieces=pieces,
        max_stages=limit,
        start=start,
    )


def _package(found: AdaptivePath, mobility: Mobility, times: Array, method: str) -> Geodesic:
    problem = found.problem
    mesh, kernel, pi = problem.mesh, problem.kernel, problem.kernel.stationary
    flux = found.path.flux
    _, rho, _ = problem.value(flux, 0.0)
    _, force, _ = stages.linearise(*kernel.edges, np.maximum(rho, 1e-300), flux, problem.spec)
    # psi_i = middle - (J_mid force)_i / pi at every stage: the mean over the mass is the best one.
    weight = mesh.weights[:, None] * rho * pi
    candidates = found.path.psi + (mesh.from_middle @ force) / pi
    middle = (weight * candidates).sum(axis=0) / weight.sum(axis=0)
    points = _points(problem, flux, force, middle, times)
    return Geodesic(
        kernel,
        mobility,
        times,
        points.probabilities,
        points.potentials,
        found.distance,
        found.status,
        found.error,
        found.upper,
        method,
        found.steps,
        found.products,
        problem,
        flux,
        force,
        middle,
    )


def _constant(problem: PathProblem, mobility: Mobility, times: Array) -> Geodesic:
    n, edges = problem.kernel.n_states, problem.kernel.n_edges
    stay = np.tile(problem.p0, (times.size, 1))
    zero = np.zeros((problem.mesh.size, n))
    return Geodesic(
        problem.kernel,
        mobility,
        times,
        stay,
        np.zeros_like(stay),
        0.0,
        Status.CONVERGED,
        0.0,
        0.0,
        "constant",
        0,
        0,
        problem,
        np.zeros((problem.mesh.size, edges)),
        zero,
        np.zeros(n),
    )
