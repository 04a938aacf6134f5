"""`PathProblem`: the discretised action of a path, and `Path`: what every method answers with.

Unknowns are the fluxes at the stages of a `TimeMesh`. The densities follow from them by integration
from the nearer end point, so every iterate is an admissible path, and the action is convex in the
fluxes for a concave mobility.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thalweg._types import Array, Index
from thalweg.edges import kinetic
from thalweg.edges.static import Graph, stage_weights
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.paths.mesh import TimeMesh, gauss
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.paths.end import FreeEnd


_BELOW = -1e-15
"""Density above which a negative value is due to rounding."""


class Length(NamedTuple):
    """The length of the interpolated path, piece by piece, and that of the discretised action."""

    fine: Array
    coarse: Array
    feasible: bool
    """False if the interpolated density leaves the simplex: then `fine` is no upper bound."""

    @property
    def upper(self) -> float:
        return float(self.fine.sum()) if self.feasible else float("inf")

    @property
    def errors(self) -> Array:
        return np.abs(self.fine - self.coarse)


@dataclass(frozen=True, eq=False)
class PathProblem:
    """Minimise `sum_i b_i sum_e F_ie^2 / (c_e m_ie)` over the fluxes that lead to `p1`.

    With a free `end` half of that plus the cost of the end is minimised, and `p1` is where the
    present path ends.
    """

    kernel: MarkovKernel
    spec: Array
    p0: Array
    p1: Array
    mesh: TimeMesh
    solver: LaplacianSolver
    end: FreeEnd | None = None

    def on(self, mesh: TimeMesh) -> PathProblem:
        return replace(self, mesh=mesh)

    def to(self, p1: Array) -> PathProblem:
        return replace(self, p1=p1)

    @cached_property
    def graph(self) -> Graph:
        return Graph(*self.kernel.edges, self.kernel.stationary, self.spec)

    @cached_property
    def gap(self) -> Array:
        return self.p1 - self.p0

    @cached_property
    def base(self) -> Array:
        """The end point's density from which each stage is integrated."""
        pi = self.kernel.stationary
        return np.where(self.mesh.late[:, None], self.p1 / pi, self.p0 / pi)

    def gains(self, flux: Array) -> Array:
        source, target, _ = self.kernel.edges
        return kinetic.flux_gain(source, target, flux, self.kernel.n_states)

    def densities(self, gain: Array) -> Array:
        return np.asarray(self.base + (self.mesh.from_ends @ gain) / self.kernel.stationary)

    def masses(self, piece: Index, place: Array, gain: Array) -> Array:
        """Probabilities at any places of the mesh, from the gains at its stages."""
        late = self.mesh.is_late(piece, place)[:, None]
        start = np.where(late, self.p1, self.p0)
        return np.asarray(start + self.mesh.integral_from_ends(piece, place) @ gain)

    def potentials(self, piece: Index, place: Array, force: Array, middle: Array) -> Array:
        """Potentials there, from the forces at the stages and the potential at the middle."""
        fall = self.mesh.integral_from_middle(piece, place) @ force
        return np.asarray(middle - fall / self.kernel.stationary)

    def weights(self, rho: Array) -> Array:
        """`c m(rho)` of every edge, one row per time."""
        return stage_weights(self.graph, rho)

    def differences(self, psi: Array) -> Array:
        """`psi_x - psi_y` along every edge, one row per time."""
        return np.asarray(psi[:, self.graph.source] - psi[:, self.graph.target])

    def fluxes(self, rho: Array, psi: Array) -> Array:
        """`c m grad psi` of every edge, one row per time."""
        return np.asarray(self.weights(rho) * self.differences(psi))

    def actions(self, rho: Array, flux: Array) -> Array:
        """`sum_e F^2 / (c m)`, one number per time."""
        return kinetic.flux_action(self.graph, rho, flux)

    def forces(self, rho: Array, flux: Array) -> Array:
        """The fall of each state's potential in time, times `pi`, one row per time."""
        return kinetic.flux_force(self.graph, rho, flux)

    def length(self, flux: Array) -> Length:
        """Lengths of the pieces under the interpolating polynomial, by a finer quadrature.

        Length does not depend on the parametrisation of the path, so the sum bounds the distance
        from above, and its difference from the discretised action is of the order of the error.
        """
        mesh, pi = self.mesh, self.kernel.stationary
        place, weight, piece = [], [], []
        for k, order in enumerate(mesh.orders):
            x, w = gauss(int(order) + 2 if mesh.pieces > 4 else 2 * int(order) + 2)
            if mesh.pieces == 1:
                x, w = x * x * (3 - 2 * x), 6 * x * (1 - x) * w
            elif k == 0:
                x, w = x * x, 2 * x * w
            elif k == mesh.pieces - 1:
                x, w = 1 - x * x, 2 * x * w
            place.append(x)
            weight.append(mesh.widths[k] * w)
            piece.append(np.full(x.size, k))
        where, at = np.concatenate(piece), np.concatenate(place)
        fluxes = mesh.interpolate(where, at) @ flux
        gain = self.gains(flux)
        rho, inner = self.masses(where, at, gain) / pi, self.densities(gain)
        if rho.min() <= _BELOW:
            rate = mesh.interpolate(where, at) @ gain
            rho, fluxes = self._lifted(rho, rate, fluxes, inner)
        feasible = bool(rho.min() > _BELOW)
        speed = np.sqrt(np.minimum(self.actions(np.maximum(rho, 1e-300), fluxes), 1e200))
        fine = np.bincount(where, np.concatenate(weight) * speed, mesh.pieces).astype(np.float64)
        action = np.bincount(mesh.piece, mesh.weights * self.actions(inner, flux), mesh.pieces)
        return Length(fine, np.sqrt(action * mesh.widths), feasible)

    def _lifted(self, rho: Array, rate: Array, fluxes: Array, inner: Array) -> tuple[Array, Array]:
        """A path near the interpolated one that stays in the simplex where that one leaves it.

        A state that would fall below half of what it has at any stage waits there until it would
        rise again; its neighbours give it what it lacks meanwhile, in fixed shares. So it remains a
        path between the same ends, and its length a bound. Where a state's neighbours dip as well,
        or have too little to give, densities below zero remain.
        """
        pi = self.kernel.stationary
        source, target, conductance = self.kernel.edges
        low = np.minimum(np.minimum(self.p0, self.p1) / pi, inner.min(axis=0))
        dips = (rho.min(axis=0) <= _BELOW) & (low > 0)
        own = np.flatnonzero(dips[source] != dips[target])
        at_source = dips[source[own]]
        x = np.where(at_source, source[own], target[own])
        y = np.where(at_source, target[own], source[own])
        share = conductance[own] * low[y]
        total = np.bincount(x, share, pi.size)[x]
        share = np.divide(share, total, out=np.zeros_like(share), where=total > 0)
        floor = 0.5 * low[x]
        lack = np.maximum(floor - rho[:, x], 0.0) * (share * pi[x])
        waits = rho[:, x] < floor
        fluxes = fluxes.copy()
        fluxes[:, own] -= np.where(at_source, 1.0, -1.0) * share * rate[:, x] * waits
        rho = rho.copy()
        rho[:, x] = np.where(total > 0, np.maximum(rho[:, x], floor), rho[:, x])
        np.subtract.at(rho.T, y, (lack / pi[y]).T)
        return rho, fluxes


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """A curve on its mesh in time, its length, and what is known about the error."""

    problem: PathProblem
    """Carries the mesh on which the curve is given."""
    flux: Array
    """At the stages of the mesh, per edge."""
    rho: Array
    psi: Array
    distance: float
    upper_bound: float
    """The length of an admissible path between the end points: an upper bound on the distance, up
    to quadrature; infinite if none is known."""
    error_estimate: float
    """Estimated absolute error of `distance`, from discretisation and barrier."""
    status: Status
    steps: int
    """Newton steps."""
    products: int
    """Inner iterations: each costs one Laplacian solve, or a pass over all times."""

    @cached_property
    def force(self) -> Array:
        """The fall of the potential in time, times `pi`, at the stages."""
        return self.problem.forces(np.maximum(self.rho, 1e-300), self.flux)

    @cached_property
    def middle(self) -> Array:
        """The potential at the middle of time: the mean over the mass of what each stage says."""
        mesh, pi = self.problem.mesh, self.problem.kernel.stationary
        weight = mesh.weights[:, None] * self.rho * pi
        candidates = self.psi + (mesh.from_middle @ self.force) / pi
        return np.asarray((weight * candidates).sum(axis=0) / weight.sum(axis=0))

    def curve(self, t: Array) -> tuple[Array, Array]:
        """Probabilities, and potentials of mean zero, at the given times."""
        problem, pi = self.problem, self.problem.kernel.stationary
        there = problem.mesh.locate(t)
        p = np.maximum(problem.masses(*there, problem.gains(self.flux)), 0.0)
        p[t == 0], p[t == 1] = problem.p0, problem.p1
        psi = problem.potentials(*there, self.force, self.middle)
        return p, np.asarray(psi - (psi @ pi)[:, None])
