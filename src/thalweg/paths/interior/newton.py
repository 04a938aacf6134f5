"""Newton on the collocation equations of a geodesic, for end points inside the simplex.

Unknowns are the densities `R` and the potentials `P = middle + Q` at the stages, independent of
each other, with the residuals

    r1 = rho_end + J_ends (M(R) P) / pi - R,   r2 = -J_mid force(R, P) / pi - Q,
    r3 = p1 - p0 - sum_i b_i M_i P_i.

Because `R` is an unknown of its own, a step that would empty a state is bent at that state alone,
and the rest of the path takes the whole step. Directions come from GMRES, preconditioned by one
solve with the averaged Laplacian, whose factor serves several steps. The few states that all but
empty are solved for by themselves before each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import packed
from thalweg.laplacian import Factor
from thalweg.paths.interior.emptying import (
    Clusters,
    Local,
    Response,
    find_clusters,
    refresh,
    settle,
    urgency,
)
from thalweg.paths.interior.system import CollocationSystem
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

__all__ = ["Collocation", "solve_collocation"]

Array = NDArray[np.float64]
Iterate = tuple[Array, Array, Array]
"""Densities and potentials (states, stages), less the potential at the middle; this one."""

_NEAR = 0.15
"""The relative residual below which a barrier may fall."""
_LAST = 3e-3
"""A barrier below this, relative to the squared length, falls to nothing at once."""
_LOOSE = 0.05
"""How well directions are solved for while there is a barrier."""


class Collocation(NamedTuple):
    """Densities and potentials at the stages, one row a stage; how it ended; what it cost."""

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
    """Relative to the length of the path."""
    factor: Factor


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the status tells
def solve_collocation(
    problem: PathProblem,
    rho: Array,
    psi: Array,
    middle: Array,
    *,
    tolerance: float,
    factor: Factor | None = None,
    barrier: float = 0.0,
    barrier_end: float = 0.0,
    forcing: float = 0.03,
    max_steps: int = 25,
    max_iterations: int = 60,
) -> Collocation:
    """The collocation solution next to `rho, psi`; `tolerance` bounds the relative residual.

    A `barrier`, the weight of `-log rho` in half the action, keeps a long path away from the
    boundary at first; it falls tenfold whenever the residual allows, to `barrier_end`. Directions
    are solved for up to `forcing` or better.
    """
    equations = _Equations.of(problem)
    at = (rho.T.copy(), np.ascontiguousarray((psi - middle).T), middle.copy())
    previous, products, age, last = np.inf, 0, 0, 0
    kept: Iterate | None = None
    step = at
    length, size, status = 1.0, np.inf, Status.MAX_ITERATIONS
    steps = 0
    while steps < max_steps:
        steps += 1
        here = equations.linearise(at)
        found = equations.residuals(at, here, barrier)
        found, clusters = equations.settled(at, here, found, barrier, tolerance)
        size = found.size / here.speed
        if barrier > barrier_end and length == 1.0 and size <= max(tolerance, _NEAR):
            barrier = 0.1 * barrier if barrier > _LAST * here.speed**2 else 0.0
            barrier = max(barrier, barrier_end)
            found = equations.residuals(at, here, barrier)
            size = found.size / here.speed
            previous = np.inf
        if size <= tolerance and barrier <= barrier_end:
            status = Status.CONVERGED
            break
        worse = not size < 1.5 * previous
        if worse and kept is not None and (length > 0.05 or not np.isfinite(size)):
            # Back, and a shorter step in the same direction.
            length *= 0.3 if np.isfinite(size) else 0.1
            if length < 1e-3:
                status = Status.STALLED
                break
            at = _move(kept, step, length)
            continue
        if not np.isfinite(size):
            status = Status.NOT_FINITE
            break
        if factor is None or (last > 8 and age > 0):
            factor, age = problem.solver.factor(here.average), 0
        age += 1
        most = _LOOSE if barrier > barrier_end else forcing
        enough = min(max(0.3 * tolerance / size, 1e-3, min(0.3 * size, most)), 0.3)
        try:
            system = equations.system(at, clusters, barrier)
            step, last = system.direction(found[:3], factor, enough, max_iterations)
        except np.linalg.LinAlgError:
            status = Status.NOT_FINITE
            break
        products += last + 1
        kept, previous, length = at, size, 1.0
        at = _move(kept, step, length)
    assert factor is not None or status is Status.CONVERGED
    if factor is None:
        factor = problem.solver.factor(here.average)
    r, q, middle = at
    return Collocation(
        np.ascontiguousarray(r.T),
        np.ascontiguousarray(q.T) + middle,
        middle,
        np.ascontiguousarray(here.gain.T),
        np.ascontiguousarray(here.force.T),
        status,
        steps,
        products,
        float(size),
        factor,
    )


class _Linearised(NamedTuple):
    """Gains and forces (states, stages), the length of the path, the average of the weights."""

    gain: Array
    force: Array
    speed: float
    average: Array


class _Residuals(NamedTuple):
    """Of the densities (relative), of the potentials, of the balance; their size."""

    r1: Array
    r2: Array
    r3: Array
    size: float


@dataclass(frozen=True, eq=False)
class _Equations:
    """The equations with what does not change while they are solved; `table` is overwritten."""

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

    def linearise(self, at: Iterate) -> _Linearised:
        r, q, middle = at
        kernel, b = self.problem.kernel, self.problem.mesh.weights
        gain, force, action, average = packed.linearise(
            *kernel.edges, r, q + middle[:, None], self.problem.spec, b, self.table
        )
        return _Linearised(gain, force, max(float(np.sqrt(b @ action)), 1e-300), average)

    def residuals(self, at: Iterate, here: _Linearised, barrier: float) -> _Residuals:
        r, q, _ = at
        pi, b = self.problem.kernel.stationary[:, None], self.problem.mesh.weights
        scale = np.sqrt(b * pi * r)
        r1 = (self.base + here.gain @ self.ends / pi - r) / r
        r2 = -((here.force / pi + barrier / r) @ self.mid) - q
        r3 = self.problem.gap - here.gain @ b
        size = max(_norm(r1 * scale), _norm(r2 * scale), float(np.abs(r3).sum()))
        return _Residuals(r1, r2, r3, size)

    def settled(
        self,
        at: Iterate,
        here: _Linearised,
        found: _Residuals,
        barrier: float,
        tolerance: float,
    ) -> tuple[_Residuals, Clusters | None]:
        """Solve for the states that all but empty, in place, if that helps; the residuals then.

        Far from the solution it may not: a state then settles to neighbours that are to change.
        """
        source, target, _ = self.problem.kernel.edges
        r, q, middle = at
        if not np.isfinite(found.size):
            return found, None
        _, slope, _ = packed.diagonals(source, target, self.table, r.shape[0])
        mass = self.problem.kernel.stationary[:, None] * r
        clusters = find_clusters(source, target, urgency(slope, mass, found.r1))
        if clusters is None:
            return found, None
        local, few = self._local(barrier), clusters.states
        before = r[few], q[few], middle[few]
        settle(clusters, local, 0.01 * tolerance * here.speed, *at)
        self._refresh(clusters, local, at, here)
        better = self.residuals(at, here, barrier)
        if better.size <= max(found.size, tolerance * here.speed):
            return better, clusters
        r[few], q[few], middle[few] = before
        self._refresh(clusters, local, at, here)
        return found, None

    def _refresh(self, clusters: Clusters, local: Local, at: Iterate, here: _Linearised) -> None:
        r, q, middle = at
        psi = q + middle[:, None]
        refresh(clusters, local, r, psi, self.table, here.gain, here.force)

    def system(self, at: Iterate, clusters: Clusters | None, barrier: float) -> CollocationSystem:
        """Newton's system, the clusters taken out."""
        source, target, _ = self.problem.kernel.edges
        pi = self.problem.kernel.stationary[:, None]
        m, a, k = packed.diagonals(source, target, self.table, at[0].shape[0])
        response = None
        if clusters is not None:
            response = Response.of(clusters, self._local(barrier), self.table, *at)
        return CollocationSystem(
            self.problem,
            self.table,
            at[0],
            self.ends,
            self.mid,
            barrier,
            (m, a, k - barrier * pi),
            response,
        )

    def _local(self, barrier: float) -> Local:
        return Local.of(self.problem, self.base, self.ends, self.mid, barrier)


def _move(
    at: tuple[Array, Array, Array], step: tuple[Array, Array, Array], length: float
) -> tuple[Array, Array, Array]:
    """The step, bent where it would empty a state or let it grow more than fourfold."""
    r, q, middle = at
    w, dq, dm = step
    w = length * w
    factor = np.where(w < -0.5, 0.25 / np.maximum(-w, 0.5), 1.0 + w)
    high = w > 3.0
    if high.any():
        factor[high] = 4.0 + 4.0 * np.log((1.0 + w[high]) / 4.0)
    return r * factor, q + length * dq, middle + length * dm


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))
