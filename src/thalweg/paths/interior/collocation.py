"""Geodesics between end points inside the simplex, from coarse meshes in time to fine ones.

The collocation equations are solved on a few stages first; the densities and potentials of that
solution, polynomials in time, start the next mesh, where one or two Newton steps remain. The mesh
grows until the length of the interpolated path and the discretised action agree.

Unknowns of the equations are the densities `R` and the potentials `P = middle + Q` at the stages,
independent of each other, with the residuals

    r1 = rho_end + J_ends (M(R) P) / pi - R,   r2 = -J_mid force(R, P) / pi - Q,
    r3 = p1 - p0 - sum_i b_i M_i P_i.

The loop is that of `paths.newton`. Directions come from GMRES, preconditioned by one solve with the
averaged Laplacian. The few states that nearly empty on the way are solved for by themselves before
each step (`emptying`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.laplacian import Factor, balanced
from thalweg.paths.interior.system import CollocationSystem, inverse
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.newton import Pace, bent, newton, norm
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.paths.interior.emptying import Clusters, Local


Iterate = tuple[Array, Array, Array]
"""Densities and potentials (states, stages), less the potential at the middle; this one."""

_PACE = Pace(last_barrier=3e-3, stale=8)
_FAST = 10.0
"""Rate at which a state reacts to its own density, per duration of the path, above which it leaves
Newton's system."""
_ASTRAY = 0.5
"""Relative error of the density that a state's fluxes would give it, above which it is, too."""
_COARSE = 0.02
"""Relative residual to which a mesh is solved that only starts the next."""
_FAR = 2.5
"""Distance above which the coarse mesh does not help the fine one."""
_FIRST_BARRIER = 0.1
"""Barrier at the straight line, relative to the squared distance."""
_BARRIER = 0.003
"""Barrier of the coarse solution, relative to the squared distance."""
_PAST = 1e-6
"""Share of its weight that an edge keeps where it should carry nothing more."""
_ROUNDING = 2e-13
"""Relative error of the distance that is rounding."""
_MAX_ROUNDS = 12
"""Largest number of meshes."""


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


class Start(NamedTuple):
    """A problem on its mesh, with densities and potentials to start from, and a barrier."""

    problem: PathProblem
    rho: Array
    psi: Array
    middle: Array
    barrier: float = 0.0


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by the status
def solve_collocation(
    start: Start, *, tolerance: float, factor: Factor | None = None, barrier_end: float = 0.0
) -> Collocation:
    """The collocation solution next to `start`; for the rest see `paths.newton.newton`."""
    equations, middle = CollocationEquations(start.problem), start.middle
    ended = newton(
        equations,
        (start.rho.T.copy(), np.ascontiguousarray((start.psi - middle).T), middle.copy()),
        _PACE,
        tolerance=tolerance,
        factor=factor,
        barriers=(start.barrier, barrier_end),
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
    taken: tuple[Clusters, Local] | None = None
    """The states to be taken out of Newton's system, and their equations."""

    @property
    def size(self) -> float:
        return self.rest / self.speed


class CollocationEquations:
    """The equations on one mesh; `table` holds the coefficients at the last iterate evaluated."""

    def __init__(self, problem: PathProblem) -> None:
        mesh = problem.mesh
        self.problem = problem
        self.base = np.ascontiguousarray(problem.base.T)
        self.ends, self.mid = mesh.from_ends.T.copy(), mesh.from_middle.T.copy()
        self.table = np.empty((problem.kernel.n_edges, 6, mesh.size), np.float32)

    def look(self, at: Iterate, barrier: float, tolerance: float) -> _Here:
        r, q, middle = at
        b = self.problem.mesh.weights
        gain, force, action, average = kinetic.linearise(
            self.problem.graph, r, q + middle[:, None], b, self.table
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
        problem, (r, q, middle) = self.problem, at
        # How fast a state's gain changes with its own density, and how far off that is.
        _, slope, _ = kinetic.diagonals(problem.graph, self.table)
        rate = np.abs(slope / (problem.kernel.stationary[:, None] * r)).max(axis=1)
        urge = np.maximum(rate / _FAST, np.abs(here.r1).max(axis=1) / _ASTRAY)
        if not (urge > 1.0).any():
            return here
        from thalweg.paths.interior import emptying

        clusters = emptying.find_clusters(problem.kernel.adjacency, urge)
        if clusters is None:
            return here
        weights, few = problem.mesh.weights, clusters.states
        local = emptying.Local(
            problem.graph, problem.gap, self.base, self.ends, self.mid, weights, barrier
        )
        before = r[few], q[few], middle[few]
        emptying.settle(clusters, local, 0.01 * tolerance * here.speed, *at)
        emptying.refresh(clusters, local, *at, self.table, here.gain, here.force)
        better = self.with_barrier(at, here, barrier)
        if better.rest <= max(here.rest, tolerance * here.speed):
            return better._replace(taken=(clusters, local))
        r[few], q[few], middle[few] = before
        emptying.refresh(clusters, local, *at, self.table, here.gain, here.force)
        return here

    def factor(self, here: _Here) -> Factor:
        return self.problem.solver.factor(here.average)

    def direction(
        self, at: Iterate, here: _Here, factor: Factor, barrier: float, forcing: float
    ) -> tuple[Iterate, int]:
        response = None
        if here.taken is not None:
            clusters, local = here.taken
            response = clusters.response(local._replace(barrier=barrier), self.table, *at)
        system = CollocationSystem(self, at[0], barrier, response, inverse(factor, 0.1 * forcing))
        return system.direction((here.r1, here.r2, here.r3), forcing)

    def move(self, at: Iterate, step: Iterate, length: float) -> Iterate:
        (r, q, middle), (w, dq, dm) = at, step
        return bent(r, length * w), q + length * dq, middle + length * dm

    def sharpened(self, at: Iterate, forcing: float) -> float:
        return forcing


# ---------------------------------------------------------------- finer and finer meshes


def solve_inside(
    problem: PathProblem,
    *,
    tolerance: float,
    accuracy: float,
    max_stages: int,
) -> Path | None:
    """The path whose estimated relative error of the distance is below `tolerance`.

    `accuracy` bounds the relative residual, which is that of the potentials; the distance's error
    is its square. `None` if Newton does not converge from the straight line; otherwise the best
    path found, with its status.
    """
    problem = problem.on(TimeMesh.uniform(1, 3))
    chord = _chord(problem, problem.mesh)
    factor = problem.solver.factor(problem.mesh.weights @ problem.weights(chord))
    middle = inverse(factor, 1e-3)(problem.gap)
    reach = float(np.sqrt(max(float(problem.gap @ middle), 0.0)))
    settings = _Settings(tolerance, accuracy, max_stages)

    def straight(mesh: TimeMesh) -> Start:
        rho = _chord(problem, mesh)
        barrier = _FIRST_BARRIER * reach**2 if reach > 0.3 else 0.0
        return Start(problem.on(mesh), rho, np.broadcast_to(middle, rho.shape), middle, barrier)

    if reach <= 0.3:
        mesh = TimeMesh.uniform(1, 3 if reach < 0.1 or tolerance > 1e-7 else 4)
        return _refine(mesh, straight, factor, settings)
    mesh = TimeMesh.uniform(1, 5 if tolerance > 1e-6 else 7)
    if reach < _FAR:
        start = straight(problem.mesh)
        barrier = _BARRIER * reach**2
        coarse = solve_collocation(start, tolerance=_COARSE, factor=factor, barrier_end=barrier)

        def carried(mesh: TimeMesh) -> Start:
            return _carry(problem, coarse, mesh)._replace(barrier=barrier)

        if coarse.status:
            found = _refine(mesh, carried, factor, settings)
            if found is not None:
                steps, products = found.steps + coarse.steps, found.products + coarse.products
                return replace(found, steps=steps, products=products)
    return _refine(mesh, straight, factor, settings, rough=np.sqrt(tolerance))


class _Settings(NamedTuple):
    """The arguments of `solve_inside`."""

    tolerance: float
    accuracy: float
    max_stages: int


def _refine(
    mesh: TimeMesh,
    fresh: Callable[[TimeMesh], Start],
    factor: Factor,
    settings: _Settings,
    rough: float = 0.0,
) -> Path | None:
    """Solve on finer and finer meshes until the error is small; `fresh` makes a new start.

    `rough` is the relative residual at which the first mesh is judged.
    """
    tolerance, accuracy, max_stages = settings
    start = fresh(mesh)
    steps = products = 0
    best: Path | None = None
    renewed = True
    previous = np.inf
    for _ in range(_MAX_ROUNDS):
        problem = start.problem
        solved = solve_collocation(start, tolerance=max(accuracy, rough), factor=factor)
        factor = solved.factor
        steps, products = steps + solved.steps, products + solved.products
        if not solved.status and not solved.residual < 0.1:
            if renewed:
                break
            # Where there is hardly any mass, the values a finer mesh inherits may be far off.
            start, renewed = fresh(problem.mesh), True
            continue
        found, errors, factor = _assess(problem, solved, steps, products, previous)
        if not np.isfinite(found.distance):
            # Where there is hardly any mass, the fluxes need more digits to keep it positive.
            accuracy, rough = 0.1 * accuracy if rough <= accuracy else accuracy, 0.0
            start = Start(problem, solved.rho, solved.psi, solved.middle)
            if accuracy < 1e-9:
                break
            continue
        previous = found.distance
        if best is None or found.error_estimate < best.error_estimate:
            best = found
        target = tolerance * found.distance
        finer = problem.mesh.finer(errors, 0.5 * target)
        last = float(errors.sum()) <= target or finer.size > max_stages
        if last and solved.residual > accuracy and rough > accuracy:
            # This mesh is fine enough to be solved to the full accuracy.
            rough = 0.0
            start = Start(problem, solved.rho, solved.psi, solved.middle)
            continue
        if solved.status and found.error_estimate <= target:
            return replace(found, status=Status.CONVERGED)
        if found.error_estimate <= _ROUNDING * found.distance or finer.size > max_stages:
            break
        start, renewed, rough = _carry(problem, solved, finer), False, 0.0
    if best is None:
        return None
    return replace(best, status=Status.STALLED, steps=steps, products=products)


def _chord(problem: PathProblem, mesh: TimeMesh) -> Array:
    t = mesh.times[:, None]
    return np.asarray(((1 - t) * problem.p0 + t * problem.p1) / problem.kernel.stationary)


def _carry(problem: PathProblem, solved: Collocation, mesh: TimeMesh) -> Start:
    """Densities and potentials of the collocation polynomials on another mesh."""
    pi, there = problem.kernel.stationary, problem.mesh.locate(mesh.times)
    low = np.minimum(np.minimum(problem.p0, problem.p1) / pi, solved.rho.min(axis=0))
    rho = np.maximum(problem.masses(*there, solved.gain) / pi, 0.3 * low)
    psi = problem.potentials(*there, solved.force, solved.middle)
    return Start(problem.on(mesh), rho, psi, solved.middle)


def _assess(
    problem: PathProblem, solved: Collocation, steps: int, products: int, previous: float
) -> tuple[Path, Array, Factor]:
    """The admissible path of a collocation solution, its distance, its errors by piece, a factor.

    If the interpolated path leaves the simplex between stages, its length is not usable, and the
    change from the `previous` mesh's distance is the estimate.
    """
    flux, factor = _flux(problem, solved.rho, solved.psi, solved.factor)
    rho = problem.densities(problem.gains(flux))
    action = float(problem.mesh.weights @ problem.actions(rho, flux)) if rho.min() > 0 else np.inf
    distance = float(np.sqrt(action))
    length = problem.length(flux)
    # The action is stationary: the residual enters squared.
    decrement = 0.5 * solved.residual**2 * action
    pace = max(distance - float(length.coarse.sum()), 0.0)
    error = float(length.errors.sum()) + pace
    errors = length.errors
    if not length.feasible:
        error = abs(distance - previous)
        errors = error * problem.mesh.widths
    error += decrement / max(distance, 1e-300)
    ended = length.upper, error, solved.status, steps, products
    return Path(problem, flux, rho, solved.psi, distance, *ended), errors, factor


def _flux(problem: PathProblem, rho: Array, psi: Array, factor: Factor) -> tuple[Array, Factor]:
    """`c m grad psi`, corrected to end at `p1` exactly, and to avoid states that it would empty.

    Also returns the factorisation used, refreshed if it was stale.
    """
    source, target, _ = problem.kernel.edges
    edge = problem.weights(rho)
    rough = edge * problem.differences(psi)
    flux, factor = _balance(problem, rough, edge, factor)
    for _ in range(2):
        spoilt = np.any(problem.densities(problem.gains(flux)) < 0.5 * rho, axis=0)
        if not spoilt.any():
            break
        edge[:, spoilt[source] | spoilt[target]] *= _PAST
        past = problem.solver.factor(problem.mesh.weights @ edge)
        flux, _ = _balance(problem, rough, edge, past)
    return flux, factor


def _balance(
    problem: PathProblem, flux: Array, edge: Array, factor: Factor
) -> tuple[Array, Factor]:
    """The flux with the mass its end lacks sent along the edges by their weights."""
    before, fresh = np.inf, False
    enough = 1e-13 * float(np.abs(problem.gap).sum())
    for _ in range(6):
        lack = problem.gap - problem.mesh.weights @ problem.gains(flux)
        defect = float(np.abs(lack).sum())
        if defect <= enough:
            break
        if defect > 1e-3 * before:
            if fresh:
                break
            # The factor is that of an earlier iterate: its solve leaves too much.
            factor, fresh = problem.solver.factor(problem.mesh.weights @ edge), True
        before = defect
        # The factor's age leaves about 1e-5 of the defect; what little remains needs few digits.
        wanted = float(np.clip(0.03 * enough / defect, 1e-6, 1e-3))
        step = factor.solve(balanced(lack), tolerance=wanted).x
        flux = flux + edge * problem.differences(step[None])
    return np.asarray(flux), factor
