"""`Geodesic`: the answer, and `solve_geodesic`, which chooses the method that finds it.

`distance_gradient` gives the derivatives of `W_K^2` from the geodesic itself: the action is
stationary along it, so only its data are differentiated (envelope theorem). `d W^2 / dp = -2
psi(0)`, `d W^2 / dq = 2 psi(1)` (up to a constant: mass is fixed), and for the conductance of an
edge, at fixed `pi`, `d W^2 / dc_e = -integral F_e^2 / (c_e^2 m_e) dt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility
from thalweg.paths.interior.method import solve_inside
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


GeodesicMethod = Literal["auto", "collocation", "interior-point"]

_SMALL = 400
"""Number of states up to which the interior point is tried if collocation misses its tolerance."""
_TOLERANCE, _FAR_TOLERANCE = 1e-8, 1e-3
"""Default relative errors: of most pairs, and of pairs that need second-order staggered curves."""
_SINGULAR = 1e-3
"""An end point with a density below this needs a mesh graded towards it."""


class GeodesicPoints(NamedTuple):
    """Points of a geodesic, one row per time; `fluxes` per edge of the kernel; `speeds` of W_K."""

    times: Array
    probabilities: Array
    potentials: Array
    fluxes: Array
    speeds: Array


class _Curve(NamedTuple):
    """A path with its forces and its potential in the middle of time, to be evaluated anywhere."""

    problem: PathProblem
    flux: Array
    force: Array
    middle: Array

    def at(self, t: Array) -> tuple[Array, Array]:
        """Probabilities and potentials at the given times."""
        problem, mesh, pi = self.problem, self.problem.mesh, self.problem.kernel.stationary
        piece, place = mesh.locate(t)
        p = np.where(mesh.is_late(piece, place)[:, None], problem.p1, problem.p0)
        p = p + mesh.integral_from_ends(piece, place) @ problem.gains(self.flux)
        p = np.maximum(p, 0.0)
        p[t == 0], p[t == 1] = problem.p0, problem.p1
        psi = self.middle - (mesh.integral_from_middle(piece, place) @ self.force) / pi
        return p, np.asarray(psi - (psi @ pi)[:, None])

    def points(self, t: Array) -> GeodesicPoints:
        problem, mesh = self.problem, self.problem.mesh
        p, psi = self.at(t)
        fluxes = mesh.interpolate(*mesh.locate(t)) @ self.flux
        speeds = np.sqrt(problem.actions(p / problem.kernel.stationary, fluxes))
        return GeodesicPoints(t, p, psi, fluxes, speeds)


@dataclass(frozen=True, eq=False, repr=False)
class Geodesic:
    """A constant-speed geodesic on [0, 1], known at all times through `at`."""

    kernel: MarkovKernel
    mobility: Mobility
    times: Array
    probabilities: Array
    potentials: Array
    distance: float
    status: Status
    tolerance: float
    """The requested relative error of `distance`."""
    error_estimate: float
    """Estimated absolute error of `distance`."""
    upper_bound: float
    """The length of an admissible path between the end points: an upper bound on the distance."""
    method: str
    steps: int
    """Newton steps or sweeps."""
    products: int
    """Sweeps and inner iterations: each costs one Laplacian solve, or a pass over all times."""
    _curve: _Curve

    def __repr__(self) -> str:
        return (
            f"Geodesic(distance={self.distance:.6g} ± {self.error_estimate:.1g}, "
            f"{self.kernel.n_states} states, {self.status.name})"
        )

    def to_frame(self) -> pd.DataFrame:
        """A data frame with one row per time (the index) and one column per state."""
        from thalweg._optional import data_frame

        frame = data_frame(self.probabilities, index=self.times, columns=self.kernel.names)
        return frame.rename_axis("time")

    def _repr_html_(self) -> str:
        from thalweg._sketch import sketch

        return sketch(repr(self), self.times, self.probabilities, self.kernel.names)

    def at(self, times: ArrayLike) -> GeodesicPoints:
        """Probabilities, potentials, fluxes and speeds at any times in [0, 1]."""
        t = np.atleast_1d(_checks.as_array(times, "times"))
        if t.ndim != 1 or np.any((t < 0) | (t > 1)):
            raise InputError("times of a geodesic must be a list of numbers between 0 and 1.")
        return self._curve.points(t)

    @property
    def initial_potential(self) -> Array:
        """`log(p, q)`: the potential with which the geodesic leaves `p`."""
        return self._ends.potentials[0]

    @property
    def final_potential(self) -> Array:
        """The potential with which the geodesic arrives at `q`; minus `log(q, p)`."""
        return self._ends.potentials[1]

    @cached_property
    def lower_bound(self) -> float:
        """A lower bound on the distance by duality, up to quadrature; 0 if none is found.

        Sharp for near pairs; where densities are rough it is below the distance by more than
        `error_estimate`. Only for concave one-homogeneous means; computed on first use.
        """
        proper = self.mobility.is_concave and self.mobility.is_homogeneous
        if not proper or self.distance == 0.0:
            return 0.0
        from thalweg.paths.lower_bound import dual_bound

        return dual_bound(*self._curve)

    @cached_property
    def _ends(self) -> GeodesicPoints:
        return self.at([0.0, 1.0])


def solve_geodesic(
    problem: PathProblem,
    mobility: Mobility,
    *,
    tolerance: float | None = None,
    n_steps: int = 16,
    method: GeodesicMethod = "auto",
    max_stages: int | None = None,
    potential_tolerance: float | None = None,
) -> Geodesic:
    """The geodesic of a problem, with a relative error of the distance below `tolerance`.

    By default 1e-8, and 1e-3 for pairs with nearly empty states on more than 120 states.

    By collocation (`paths.interior`) where both ends are well inside the simplex; by an interior
    point (`paths.boundary`) otherwise, and where collocation does not converge.
    """
    if method not in get_args(GeodesicMethod):
        raise InputError(
            f"method is {method!r}; choose one of {', '.join(get_args(GeodesicMethod))}."
        )
    kernel, times = problem.kernel, np.linspace(0, 1, n_steps + 1)
    if np.abs(problem.gap).max() == 0.0:
        wanted = _TOLERANCE if tolerance is None else tolerance
        return _package(_constant(problem), mobility, times, "constant", wanted)
    lowest = tuple(float((p / kernel.stationary).min()) for p in (problem.p0, problem.p1))
    singular = (lowest[0] < _SINGULAR, lowest[1] < _SINGULAR)
    found: Path | None = None
    used = "collocation"
    inside = min(lowest) > 1e-8
    if tolerance is None:
        tolerance = _TOLERANCE
        if any(singular) or method == "interior-point":
            from thalweg.paths.boundary.method import DENSE_STATES

            tolerance = _FAR_TOLERANCE if kernel.n_states > DENSE_STATES else _TOLERANCE
    if method == "collocation" and not inside:
        raise InputError(
            f"the least density of the end points is {min(lowest):.3g}; collocation needs "
            "densities above 1e-8: use method='auto'."
        )
    if method == "collocation" or (method == "auto" and inside and not any(singular)):
        # The action is stationary: its error is the square of the path's.
        wanted = 0.1 * np.sqrt(tolerance) if potential_tolerance is None else potential_tolerance
        found = solve_inside(
            problem,
            tolerance=tolerance,
            accuracy=float(np.clip(wanted, 1e-11, 3e-3)),
            max_stages=120 if max_stages is None else max_stages,
        )
    # On a large graph the other method does not improve on the best path so far.
    settled = found is not None and (bool(found.status) or kernel.n_states > _SMALL)
    if found is None or (method == "auto" and not settled):
        used = "interior-point"
        from thalweg.paths.boundary.method import solve_far

        other = solve_far(problem, tolerance, singular, max_stages)
        if found is None or other.status or other.error < found.error:
            found = other
        else:
            used = "collocation"
    return _package(found, mobility, times, used, tolerance)


def _package(
    found: Path, mobility: Mobility, times: Array, method: str, tolerance: float
) -> Geodesic:
    problem = found.problem
    mesh, kernel, pi = problem.mesh, problem.kernel, problem.kernel.stationary
    flux, rho = found.flux, found.rho
    force = kinetic.flux_force(*kernel.edges, np.maximum(rho, 1e-300), flux, problem.spec)
    # psi_i = middle - (J_mid force)_i / pi at every stage: the mean over the mass is the best one.
    weight = mesh.weights[:, None] * rho * pi
    candidates = found.psi + (mesh.from_middle @ force) / pi
    middle = (weight * candidates).sum(axis=0) / weight.sum(axis=0)
    curve = _Curve(problem, flux, force, middle)
    return Geodesic(
        kernel,
        mobility,
        times,
        *curve.at(times),
        found.distance,
        found.status,
        tolerance,
        found.error,
        found.upper,
        method,
        found.steps,
        found.products,
        curve,
    )


def _constant(problem: PathProblem) -> Path:
    """The path from a point to itself."""
    n, edges, stages = problem.kernel.n_states, problem.kernel.n_edges, problem.mesh.size
    flux, psi = np.zeros((stages, edges)), np.zeros((stages, n))
    return Path(problem, flux, psi + 1.0, psi, 0.0, 0.0, 0.0, Status.CONVERGED, 0, 0)


class DistanceGradient(NamedTuple):
    """`W_K^2` and its derivatives; those in the end points have mean zero under `pi`."""

    squared_distance: float
    first: Array
    second: Array
    conductance: Array
    """Per edge of the kernel, the stationary distribution held fixed."""
    status: Status


def distance_gradient(geodesic: Geodesic) -> DistanceGradient:
    """The derivatives of the squared length of a geodesic."""
    problem, flux = geodesic._curve[:2]
    source, target, conductance = geodesic.kernel.edges
    _, rho, _ = problem.value(flux, 0.0)
    edge = kinetic.stage_weights(source, target, conductance, np.maximum(rho, 1e-300), problem.spec)
    energy = np.where(flux == 0, 0.0, flux**2 / np.maximum(edge, 1e-300))
    by_conductance = -(problem.mesh.weights @ energy) / conductance
    return DistanceGradient(
        geodesic.distance**2,
        -2.0 * geodesic.initial_potential,
        2.0 * geodesic.final_potential,
        by_conductance,
        geodesic.status,
    )
