"""Newton on the collocation equations of a geodesic, for end points inside the simplex.

Unknowns are the densities `R` and the potentials `P = middle + Q` at the stages, independent of
each other, with the residuals

    r1 = rho_end + J_ends (M(R) P) / pi - R,   r2 = -J_mid force(R, P) / pi - Q,
    r3 = p1 - p0 - sum_i b_i M_i P_i.

The loop is that of `paths.newton`. Directions come from GMRES, preconditioned by one solve with the
averaged Laplacian. The few states that nearly empty on the way are solved for by themselves before
each step (`emptying`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.laplacian import Factor
from thalweg.paths.interior.system import CollocationSystem
from thalweg.paths.newton import Pace, bent, newton, norm
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.paths.interior.emptying import Clusters, Local


Iterate = tuple[Array, Array, Array]
"""Densities and potentials (states, stages), less the potential at the middle; this one."""

_PACE = Pace(last_barrier=3e-3, stale=8)
_FAST = 10.0
"""States that react faster than this to their own density, in units of the path's duration, are
taken out,"""
_ASTRAY = 0.5
"""and those whose fluxes would give them a density off by more than this, relatively."""
_ITERATIONS = 60
"""Iterations of GMRES per direction, at most."""


class Collocation(NamedTuple):
    """Densities and potentials, one row per stage; how the loop ended; its cost."""

    rho: Array
    psi: Array
    middle: Array
    """The potential at the middle of [0, 1]."""
    gain: Array
    """`M psi` at the stages."""
    force: Array
    """Half the derivative of `psi^T M psi` in the density, at the stages."""
    status: Status
    steps: int
    products: int
    residual: float
    """Residual relative to the length of the path."""
    factor: Factor


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by the status
def solve_collocation(
    problem: PathProblem,
    rho: Array,
    psi: Array,
    middle: Array,
    *,
    tolerance: float,
    factor: Factor | None = None,
    barriers: tuple[float, float] = (0.0, 0.0),
    max_steps: int = 25,
) -> Collocation:
    """The collocation solution next to `rho, psi`; for the rest see `paths.newton.newton`."""
    equations = _Equations.of(problem)
    ended = newton(
        equations,
        (rho.T.copy(), np.ascontiguousarray((psi - middle).T), middle.copy()),
        _PACE,
        tolerance=tolerance,
        factor=factor,
        barriers=barriers,
        max_steps=max_steps,
    )
    (r, q, middle), here = ended.at, ended.here
    return Collocation(
        np.ascontiguousarray(r.T),
        np.ascontiguousarray(q.T) + middle,
        middle,
        np.ascontiguousarray(here.gain.T),
        np.ascontiguousarray(here.force.T),
        ended.status,
        ended.steps,
        ended.iterations + ended.directions,
        float(here.size),
        equations.factor(here) if ended.factor is None else ended.factor,
    )


class _Here(NamedTuple):
    """Gains and forces (states, stages), the average of the weights, the residuals."""

    gain: Array
    force: Array
    speed: float
    average: Array
    r1: Array
    """Residuals of the densities, relative to them."""
    r2: Array
    """Residuals of the potentials."""
    r3: Array
    """The mass that the fluxes lack at the end point."""
    rest: float
    """The size of the residuals."""
    clusters: Clusters | None = None
    """States to be taken out of Newton's system."""

    @property
    def size(self) -> float:
        return self.rest / self.speed


@dataclass(frozen=True, eq=False)
class _Equations:
    """The equations and what stays fixed while they are solved; `table` is overwritten."""

    problem: PathProblem
    base: Array
    ends: Array
    mid: Array
    table: NDArray[np.float32]

    @classmethod
    def of(cls, problem: PathProblem) -> _Equations:
        mesh = problem.mesh
        table = np.empty((problem.kernel.n_edges, 6, mesh.size), np.float32)
        base = np.ascontiguousarray(problem.base.T)
        return cls(problem, base, mesh.from_ends.T.copy(), mesh.from_middle.T.copy(), table)

    def look(self, at: Iterate, barrier: float, tolerance: float) -> _Here:
        r, q, middle = at
        kernel, b = self.problem.kernel, self.problem.mesh.weights
        gain, force, action, average = kinetic.linearise(
            *kernel.edges, r, q + middle[:, None], self.problem.spec, b, self.table
        )
        speed = max(float(np.sqrt(b @ action)), 1e-300)
        here = _Here(gain, force, speed, average, r, r, middle, np.inf)
        return self._settled(at, self.with_barrier(at, here, barrier), barrier, tolerance)

    def with_barrier(self, at: Iterate, here: _Here, barrier: float) -> _Here:
        r, q, _ = at
        pi, b = self.problem.kernel.stationary[:, None], self.problem.mesh.weights
        scale = np.sqrt(b * pi * r)
        r1 = (self.base + here.gain @ self.ends / pi - r) / r
        r2 = -((here.force / pi + barrier / r) @ self.mid) - q
        r3 = self.problem.gap - here.gain @ b
        rest = max(norm(r1 * scale), norm(r2 * scale), float(np.abs(r3).sum()))
        return here._replace(r1=r1, r2=r2, r3=r3, rest=rest)

    def _settled(self, at: Iterate, here: _Here, barrier: float, tolerance: float) -> _Here:
        """Solve for the states that nearly empty, in place, if that helps; return the residuals.

        Far from the solution it may not help: a state then adapts to neighbours that will change.
        """
        if not np.isfinite(here.rest):
            return here
        source, target, _ = self.problem.kernel.edges
        r, q, middle = at
        _, slope, _ = kinetic.diagonals(source, target, self.table, r.shape[0])
        mass = self.problem.kernel.stationary[:, None] * r
        urge = _urgency(slope, mass, here.r1)
        if not (urge > 1.0).any():
            return here
        from thalweg.paths.interior import emptying

        clusters = emptying.find_clusters(source, target, urge)
        if clusters is None:
            return here
        local, few = self._local(barrier), clusters.states
        before = r[few], q[few], middle[few]
        emptying.settle(clusters, local, 0.01 * tolerance * here.speed, *at)
        self._refresh(clusters, local, at, here)
        better = self.with_barrier(at, here, barrier)
        if better.rest <= max(here.rest, tolerance * here.speed):
            return better._replace(clusters=clusters)
        r[few], q[few], middle[few] = before
        self._refresh(clusters, local, at, here)
        return here

    def _refresh(self, clusters: Clusters, local: Local, at: Iterate, here: _Here) -> None:
        from thalweg.paths.interior.emptying import refresh

        r, q, middle = at
        refresh(clusters, local, r, q + middle[:, None], self.table, here.gain, here.force)

    def factor(self, here: _Here) -> Factor:
        return self.problem.solver.factor(here.average)

    def direction(
        self, at: Iterate, here: _Here, factor: Factor, barrier: float, forcing: float
    ) -> tuple[Iterate, int]:
        source, target, _ = self.problem.kernel.edges
        pi = self.problem.kernel.stationary[:, None]
        m, a, k = kinetic.diagonals(source, target, self.table, at[0].shape[0])
        response = None
        if here.clusters is not None:
            from thalweg.paths.interior.emptying import Response

            response = Response.of(here.clusters, self._local(barrier), self.table, *at)
        system = CollocationSystem(
            self.problem,
            self.table,
            at[0],
            self.ends,
            self.mid,
            barrier,
            (m, a, k - barrier * pi),
            response,
        )
        return system.direction((here.r1, here.r2, here.r3), factor, forcing, _ITERATIONS)

    def move(self, at: Iterate, step: Iterate, length: float) -> Iterate:
        (r, q, middle), (w, dq, dm) = at, step
        return bent(r, length * w), q + length * dq, middle + length * dm

    def sharpened(self, at: Iterate, forcing: float) -> float:
        return forcing

    def _local(self, barrier: float) -> Local:
        from thalweg.paths.interior.emptying import Local

        return Local.of(self.problem, self.base, self.ends, self.mid, barrier)


def _urgency(slope: Array, mass: Array, r1: Array) -> Array:
    """A number per state, above one for those to be taken out.

    `slope` is the change of a state's gain with its own density, `r1` its relative residual.
    """
    rates = np.abs(slope / mass).max(axis=1) / _FAST
    return np.asarray(np.maximum(rates, np.abs(r1).max(axis=1) / _ASTRAY))
