"""The path with a free end: the choice of equations, meshes and start.

A short step from inside the simplex is solved by Newton from the linearised step; a long one starts
from a coarse staggered curve, found under a barrier; the mesh in time is then refined until the
length of the path is accurate enough. A step from the boundary, or one where that fails, uses
staggered curves alone: there the densities, which may span hundreds of decades, are unknowns of
their own, half the action plus `tau F` is convex in them, and Newton's systems are solved by
elimination, so that the barrier may fall until it has no effect. Their mesh is of second order in
time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from thalweg._types import Array
from thalweg.laplacian import LaplacianSolver
from thalweg.paths.boundary.graded import affordable, smooth_length
from thalweg.paths.boundary.incomplete import IncompletePattern, by_incomplete
from thalweg.paths.boundary.staggered import Centred, Curve, Solve, Staggered, centre
from thalweg.paths.end import FreeEnd
from thalweg.paths.free_end.equations import PACE, FreeEquations, State
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.newton import newton
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

_HEALTHY, _NEAR = 1e-3, 1.0
"""Least density, and longest step, at which a step starts without a staggered curve."""
_EMPTY = 1e-6
"""Density below which a step counts as one from the boundary."""
_CRUDE = 1e-3
"""Error of the energy, due to that of the path, above which staggered curves are tried as well."""
_FAR = 2.5
"""Distance above which the last of the meshes below is tried first."""
_MESHES = ((1, 3), (1, 4), (2, 3))
"""Pieces, and stages per piece; if Newton fails on a mesh, the next is tried."""
_ENOUGH, _TOO_MANY = 40, 60
"""Factorisations after which the mesh is not refined further, and no other mesh is tried."""
_STAGES, _UNKNOWNS = 64, 2_500_000
"""Most stages, and most densities of a path, which takes about a hundred times their memory."""
_FIRST, _LEAST, _MOST = 6, 12, 48
"""Intervals of staggered curves: the first, the least worth a solution, the most."""
_FLOPS, _ENTRIES = 3e10, 2e8
"""Bounds on the operations of ten eliminations, and on the numbers stored for one."""
_LINEAR = 1e-8
"""Relative error of Newton's systems: looser, steps fail where densities are tiny."""
_COARSE, _LED = 1e-2, 1e-4
"""Barriers at which the mesh is refined (a lower one spoils the finer start), and at which a
staggered curve starts Newton's loop."""
_LONGER = 0.1
"""Relative excess above which the length of a smooth curve is no estimate of the staggered one."""
_FALL, _NONE = 1e-3, 1e-36
"""Factor of each fall of the barrier on the last mesh, and its least value."""


class FreeStep(NamedTuple):
    """The end, the path's potentials there and at the start, and their errors."""

    y: Array
    """The logarithm of the end density."""
    first: Array
    final: Array
    """The potentials with which the path leaves and arrives."""
    residual: float
    """Residual of the first-order condition."""
    distance: float
    error: float
    """Relative error of the distance; that of the end point is of the same order."""
    status: Status
    factorisations: int
    iterations: int


def solve_free_end(
    problem: PathProblem, *, tolerance: float, path_tolerance: float, max_steps: int
) -> FreeStep:
    """The path from `p0` to where its free end costs least.

    Parameters
    ----------
    problem
        With a free end and a grounded solver.
    tolerance
        Bound on the residual of the first-order condition.
    path_tolerance
        Bound on the relative error of the distance, unless the work is limited.
    max_steps
        Bound on the Newton steps of the first, staggered curve.
    """
    end = _end(problem)
    empty = float((problem.p0 / problem.kernel.stationary).min()) < _EMPTY
    limits = {"tolerance": tolerance, "path_tolerance": path_tolerance}
    found = solve_staggered(problem, **limits) if empty else None
    if found is None or not found.status:
        other = _collocated(problem, tolerance, path_tolerance, max_steps)
        doubt = other.error * other.distance**2 / end.tau
        if not empty and not (other.status and doubt < _CRUDE * end.size):
            found = solve_staggered(problem, **limits)
        found = other if found is None or not found.status else found
    return found


def _end(problem: PathProblem) -> FreeEnd:
    assert problem.end is not None
    return problem.end


# ---------------------------------------------------------------- collocation


@dataclass(frozen=True, eq=False)
class _Solved:
    """A solution of the collocation equations, and the cost so far."""

    equations: FreeEquations
    state: State
    status: Status
    residual: float
    distance: float
    factorisations: int
    iterations: int

    @property
    def end(self) -> Array:
        return np.asarray(self.equations.problem.kernel.stationary * np.exp(self.state.y))

    def after(self, factorisations: int, iterations: int) -> _Solved:
        return replace(
            self,
            factorisations=self.factorisations + factorisations,
            iterations=self.iterations + iterations,
        )

    def length_errors(self) -> tuple[float, Array]:
        """The estimated relative error of the length, and the errors of the pieces."""
        problem, state = self.equations.problem.to(self.end), self.state
        length = problem.length(problem.fluxes(np.ascontiguousarray(state.rho.T), state.psi.T))
        total = max(float(length.fine.sum()), 1e-300)
        return float(length.errors.sum()) / total, length.errors

    def on(self, mesh: TimeMesh) -> State:
        """Densities and potentials of the collocation polynomials on another mesh."""
        problem, state = self.equations.problem.to(self.end), self.state
        pi, old = problem.kernel.stationary, problem.mesh
        gain, force, _, _ = self.equations.rates(state)
        there = old.locate(mesh.times)
        low = np.minimum(problem.p0, problem.p1) / pi
        low = np.minimum(np.where(low > 0, low, np.inf), state.rho.min(axis=1))
        rho = np.maximum(problem.masses(*there, gain.T) / pi, 0.3 * low)
        q = (force / pi[:, None]) @ (old.weights - old.integral_to(*there)).T
        return State(np.ascontiguousarray(rho.T), q, state.last, state.y)

    def answer(self, error: float) -> FreeStep:
        problem, state = self.equations.problem, self.state
        pi, mesh = problem.kernel.stationary, problem.mesh
        gain, force, _, _ = self.equations.rates(state)
        # The potential of the path, not the one that the first-order condition prescribes.
        weight = mesh.weights * state.rho * pi[:, None]
        guess = state.psi - (force / pi[:, None]) @ self.equations.to_end
        final = (weight * guess).sum(axis=1) / weight.sum(axis=1)
        return FreeStep(
            state.y,
            final + (force @ mesh.weights) / pi,
            final,
            _end(problem).residual(state.y, final, problem.p0 + gain @ mesh.weights - self.end),
            self.distance,
            error,
            self.status,
            self.factorisations,
            self.iterations,
        )


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by the status
def _solve(
    problem: PathProblem,
    state: State,
    *,
    tolerance: float,
    barrier: float = 0.0,
    max_steps: int = 40,
) -> _Solved:
    equations = FreeEquations(problem)
    ended = newton(
        equations, state, PACE, tolerance=tolerance, barriers=(barrier, 0.0), max_steps=max_steps
    )
    return _Solved(
        equations,
        ended.at,
        ended.status,
        ended.here.size,
        ended.here.speed,
        ended.factorisations,
        ended.iterations,
    )


def _collocated(
    problem: PathProblem, tolerance: float, path_tolerance: float, max_steps: int
) -> FreeStep:
    """The step on a coarse mesh of high order, refined until its length is known."""
    found = _first(problem, 0.1 * tolerance, max_steps)
    error, errors = found.length_errors()
    limit = min(_STAGES, max(3, _UNKNOWNS // problem.kernel.n_states))
    while found.status and error > path_tolerance and found.factorisations < _ENOUGH:
        here = found.equations.problem
        mesh = here.mesh.finer(errors, 0.5 * path_tolerance * found.distance)
        if mesh.size > limit or mesh.size == here.mesh.size:
            break
        refined = _solve(here.on(mesh), found.on(mesh), tolerance=0.1 * tolerance, max_steps=12)
        if not refined.status:
            found = found.after(refined.factorisations, refined.iterations)
            break
        change = abs(refined.distance - found.distance) / max(refined.distance, 1e-300)
        found = refined.after(found.factorisations, found.iterations)
        error, errors = found.length_errors()
        if error > 0.05:
            # Between stages the interpolated path leaves the simplex: its length is not usable.
            error = change
    return found.answer(error)


def _first(problem: PathProblem, tolerance: float, max_steps: int) -> _Solved:
    """The solution on a coarse mesh, by Newton alone if it is near, otherwise from a curve."""
    end = _end(problem)
    problem = problem.on(TimeMesh.uniform(*_MESHES[0]))
    state, reach = _linear_start(problem)
    cost, iterations = 1, 0
    healthy = float((problem.p0 / problem.kernel.stationary).min()) >= _HEALTHY
    if healthy and reach <= _NEAR and end.extras == (0.0,):
        barrier = 0.1 * reach**2 if reach > 0.3 else 0.0
        found = _solve(problem, state, tolerance=tolerance, barrier=barrier, max_steps=25)
        cost, iterations = cost + found.factorisations, found.iterations
        if found.status:
            return replace(found, factorisations=cost)
    lead = _Lead.of(problem, max_steps)
    cost, iterations = cost + lead.centred.steps, iterations + lead.centred.products
    for pieces, order in _MESHES if reach < _FAR else _MESHES[::-1]:
        mesh = TimeMesh.uniform(pieces, order)
        state, barrier = lead.on(mesh), lead.mu
        for extra in end.extras:
            here = replace(problem, mesh=mesh, end=end.with_entropy(extra))
            enough = tolerance if extra == end.extras[-1] else 1e-3
            found = _solve(here, state, tolerance=enough, barrier=barrier)
            barrier = 0.0
            cost, iterations = cost + found.factorisations, iterations + found.iterations
            if not found.status and not found.residual < 0.1:
                break
            state = found.state
        value = 0.5 * found.distance**2 + end.tau * end.energy_at(found.end)
        stays = found.distance < 1e-6 * min(reach, 1.0)
        if found.status and (stays or not value <= lead.value + 1e-8 * (1 + abs(value))):
            # A stationary point of the equations, but above the path that led here.
            found = replace(found, status=Status.NEWTON_FAILED)
        if found.status or cost > _TOO_MANY:
            break
    return replace(found, factorisations=cost, iterations=iterations)


def _linear_start(problem: PathProblem) -> tuple[State, float]:
    """The step linearised at `p0`: constant potentials, and the length of the step."""
    end, kernel, pi = _end(problem), problem.kernel, problem.kernel.stationary
    source, target, _ = kernel.edges
    density = np.maximum(problem.p0 / pi, 1e-6)
    y = np.log(density)
    weights = problem.weights(density[None])[0]
    slack = pi * density / end.slope(y)
    f = end.first_variation(pi * density, y)
    right = -slack * end.tau * (f - pi @ f)
    last = problem.solver.factor(weights, diagonal=slack).solve(right, tolerance=1e-3).x
    reach = float(np.sqrt(weights @ (last[source] - last[target]) ** 2))
    rho = np.repeat(density[:, None], problem.mesh.size, axis=1)
    return State(rho, np.zeros_like(rho), last - end.tau * float(pi @ f), y), reach


@dataclass(frozen=True, eq=False)
class _Lead:
    """A coarse staggered curve under a barrier, to start Newton's loop from."""

    staggered: Staggered
    centred: Centred
    mu: float
    value: float
    """The cost of the curve, an upper bound on the minimum."""

    @classmethod
    def of(cls, problem: PathProblem, max_steps: int) -> _Lead:
        pattern = IncompletePattern.of(problem.kernel)
        intervals = max(min(_FIRST, affordable(pattern, _FLOPS, _ENTRIES)), _FIRST // 2)
        staggered, curve, mu = _start(problem, intervals)
        solve, mu_end = by_incomplete(pattern), _LED * mu
        found = centre(
            staggered, curve, solve, mu=mu, mu_end=mu_end, tolerance=mu_end, max_steps=max_steps
        )
        length = smooth_length(staggered, found.curve.rho)
        value = 0.5 * length**2 + _end(problem).value(found.curve.rho[-1])
        return cls(staggered, found, mu_end, value)

    def on(self, mesh: TimeMesh) -> State:
        """The curve's splines at the stages of a mesh."""
        own, curve = self.staggered.path.mesh, self.centred.curve
        node = np.interp(mesh.times, own.nodes, np.arange(own.nodes.size))
        root = CubicSpline(np.arange(own.nodes.size), np.sqrt(curve.rho), axis=0)
        low, high = 0.3 * curve.rho[1:].min(axis=0), 3.0 * curve.rho.max(axis=0)
        rho = np.clip(root(node) ** 2, low, high)
        last = _ends(self.staggered, curve)[1]
        middle = 0.5 * (own.nodes[1:] + own.nodes[:-1])
        psi = np.array([np.interp(mesh.times, middle, row) for row in curve.psi.T])
        return State(np.ascontiguousarray(rho.T), psi - last[:, None], last, np.log(curve.rho[-1]))


# ---------------------------------------------------------------- staggered curves


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by the status
def solve_staggered(
    problem: PathProblem, *, tolerance: float, path_tolerance: float
) -> FreeStep | None:
    """The step on meshes of 6, 12, ... intervals; `None` if the graph is too large for it.

    `tolerance` bounds the residual of the first-order condition, relative to the size of `F`;
    `path_tolerance` the relative error of the distance, unless 48 intervals do not reach it.
    """
    tolerance = tolerance * _end(problem).size
    kernel = problem.kernel
    if 20.0 * (2 * _LEAST) ** 3 * (kernel.n_states + kernel.n_edges) > _FLOPS:
        return None  # without the pattern, which takes time itself
    pattern = IncompletePattern.of(kernel)
    most = min(_MOST, affordable(pattern, _FLOPS, _ENTRIES))
    if most < _LEAST:
        return None
    solve = by_incomplete(pattern, tolerance=_LINEAR)
    staggered, found, mu, change, cost = _refined(problem, solve, most, path_tolerance)
    best, curve = _assessed(staggered, found), found.curve
    stuck = 0
    while found.status and best.residual > tolerance and mu > _NONE and stuck < 3:
        found = centre(
            staggered,
            found.curve,
            solve,
            mu=mu,
            mu_end=_FALL * mu,
            tolerance=0.1 * _FALL * mu,
            max_steps=40,
        )
        mu *= _FALL
        cost = cost[0] + found.steps, cost[1] + found.products
        here = _assessed(staggered, found)
        stuck = stuck + 1 if here.residual > 0.7 * best.residual else 0
        if here.residual < best.residual:
            best, curve = here, found.curve
        if found.status is Status.MAX_ITERATIONS and not stuck:
            # The decrement is below the rounding of the value, but the residual still falls.
            found = found._replace(status=Status.CONVERGED)
    best = best._replace(factorisations=cost[0], iterations=cost[1])
    status = Status.CONVERGED if best.residual <= tolerance else found.status
    if status and best.residual > tolerance:
        status = Status.STALLED
    length = smooth_length(staggered, curve.rho)
    error = abs(length - best.distance) / max(best.distance, 1e-300)
    if error < _LONGER:
        return best._replace(status=status, distance=length, error=error)
    # The smooth curve pushes mass through empty states: compare the meshes instead.
    return best._replace(status=status, error=change)


def _start(problem: PathProblem, intervals: int) -> tuple[Staggered, Curve, float]:
    """A curve half the way to the stationary distribution, and the first barrier."""
    pi, end = problem.kernel.stationary, _end(problem)
    mesh = TimeMesh.graded(intervals, (True, True))
    free = replace(problem, solver=LaplacianSolver.for_kernel(problem.kernel), mesh=mesh)
    staggered = Staggered(free)
    share = 0.5 * np.sin(np.linspace(0, 0.5 * np.pi, intervals + 1)[:, None]) ** 2
    curve = staggered.through(((1 - share) * problem.p0 + share * pi) / pi)
    return staggered, curve, staggered.action(curve) + 0.1 * end.tau * end.size


def _refined(
    problem: PathProblem, solve: Solve, most: int, path_tolerance: float
) -> tuple[Staggered, Centred, float, float, tuple[int, int]]:
    """Refine the mesh under one barrier.

    Returns the last mesh, its curve, the barrier, the relative change of the length, the cost.
    """
    staggered, curve, mu = _start(problem, _FIRST)
    mu_end, steps, products, before = _COARSE * mu, 0, 0, np.inf
    while True:
        excess = 0.1 * mu_end
        found = centre(
            staggered, curve, solve, mu=mu, mu_end=mu_end, tolerance=excess, max_steps=80
        )
        steps, products = steps + found.steps, products + found.products
        size, length = staggered.widths.size, float(np.sqrt(staggered.action(found.curve)))
        change = abs(length - before) / max(length, 1e-300)
        if not found.status or change <= path_tolerance or 2 * size > most:
            return staggered, found, mu_end, change, (steps, products)
        before, mu = length, mu_end
        staggered = staggered.on(TimeMesh.graded(2 * size, (True, True)))
        curve = staggered.halved(found.curve)


def _ends(staggered: Staggered, curve: Curve) -> tuple[Array, Array]:
    """The potentials with which a curve leaves and arrives."""
    turn = 0.5 * staggered.widths[:, None] * staggered.force(curve) / staggered.kernel.stationary
    return curve.psi[0] + turn[0], curve.psi[-1] - turn[-1]


def _assessed(staggered: Staggered, found: Centred) -> FreeStep:
    """The step that a curve makes, without its cost and the error of its distance."""
    first, final = _ends(staggered, found.curve)
    y = np.log(found.curve.rho[-1])
    defect = np.abs(staggered.defect(found.curve)).sum(axis=0)
    residual = _end(staggered.path).residual(y, final, defect)
    distance = float(np.sqrt(staggered.action(found.curve)))
    return FreeStep(y, first, final, residual, distance, 1.0, found.status, 0, 0)
