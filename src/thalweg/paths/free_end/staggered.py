"""JKO steps from or to the boundary: staggered curves with a free end, led by a barrier to nothing.

From a point mass, or with little entropy, the densities of a step span hundreds of decades. On a
staggered mesh they are unknowns of their own, half the action plus `tau F` is convex in them, and
Newton's systems are solved by elimination: so the barrier may fall until it is felt nowhere. The
mesh is of second order in time, and finer towards both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.laplacian import LaplacianSolver
from thalweg.paths.boundary.graded import affordable, smooth_length
from thalweg.paths.boundary.incomplete import IncompletePattern, by_incomplete
from thalweg.paths.boundary.primal_dual import Centred, Solve, centre
from thalweg.paths.boundary.staggered import Staggered, graded_widths
from thalweg.paths.free_end.system import FreeEnd
from thalweg.status import Status

__all__ = ["StaggeredStep", "solve_staggered"]

Array = NDArray[np.float64]

_FIRST, _MOST, _LEAST = 6, 48, 12
_POWER = 2.0
_FLOPS, _ENTRIES = 3e10, 2e8
"""Work of ten eliminations, and numbers to keep for one."""
_LINEAR = 1e-8
"""Newton's systems are solved to this: with less, steps go astray where densities are tiny."""
_COARSE = 1e-2
"""How far the barrier falls before the mesh is refined: little, or the finer start is a bad one."""
_TELLING = 0.1
"""A smooth curve that is longer by more than this share tells nothing about the staggered one."""
_FALL, _NONE = 1e-3, 1e-36
"""On the last mesh the barrier falls by this factor at a time, and not below this."""


class StaggeredStep(NamedTuple):
    """Where the step ended, on the finest mesh that was solved."""

    y: Array
    """The logarithm of the end density."""
    first: Array
    final: Array
    """The potentials with which the path leaves and arrives."""
    residual: float
    """Of the first-order condition."""
    distance: float
    error: float
    """Relative, of the distance; the end point has one of the same order."""
    status: Status
    factorisations: int
    iterations: int


@dataclass(frozen=True, eq=False)
class _Cost:
    """`tau F` of the end, as a function of its density."""

    problem: FreeEnd

    def value(self, rho: Array) -> float:
        return self.problem.tau * self.problem.energy_at(self.problem.kernel.stationary * rho)

    def slopes(self, rho: Array) -> tuple[Array, Array]:
        problem, pi, y = self.problem, self.problem.kernel.stationary, np.log(rho)
        f = problem.first_variation(pi * rho, y)
        return problem.tau * pi * f, pi * problem.slope(y) / rho

    def coupling(self, x: Array) -> Array:
        interaction = self.problem.energy.interaction
        if interaction is None:
            return np.zeros_like(x)
        pi = self.problem.kernel.stationary
        return np.asarray(self.problem.tau * pi * (interaction @ (pi * x)))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the status tells
def solve_staggered(
    problem: FreeEnd, *, tolerance: float, path_tolerance: float
) -> StaggeredStep | None:
    """The step on meshes of 6, 12, ... intervals; `None` where the graph is too large for it.

    `tolerance` bounds the residual of the first-order condition, relative to the size of `F`;
    `path_tolerance` the relative error of the distance, unless 48 intervals do not reach it.
    """
    tolerance = tolerance * problem.size
    kernel = problem.kernel
    if 20.0 * (2 * _LEAST) ** 3 * (kernel.n_states + kernel.n_edges) > _FLOPS:
        return None  # without the pattern, which takes time itself
    pattern = IncompletePattern.of(kernel)
    most = min(_MOST, affordable(pattern, _FLOPS, _ENTRIES))
    if most < _LEAST:
        return None
    solve = by_incomplete(pattern, tolerance=_LINEAR)
    staggered, found, mu, change, cost = _coarse(problem, solve, most, path_tolerance)
    best, curve = _assessed(problem, staggered, found, *cost), found.curve
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
            psi=found.psi,
        )
        mu *= _FALL
        cost = cost[0] + found.steps, cost[1] + found.products
        here = _assessed(problem, staggered, found, *cost)
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
    if error < _TELLING:
        return best._replace(status=status, distance=length, error=error)
    # The smooth curve pushes mass through empty states: only the meshes tell about each other.
    return best._replace(status=status, error=change)


def _coarse(
    problem: FreeEnd, solve: Solve, most: int, path_tolerance: float
) -> tuple[Staggered, Centred, float, float, tuple[int, int]]:
    """Finer and finer meshes under one barrier.

    Returned are the last, its curve, the barrier, the relative change of the length, the cost.
    """
    kernel, pi = problem.kernel, problem.kernel.stationary
    widths = graded_widths(_FIRST, (True, True), _POWER)
    staggered = Staggered(
        kernel,
        problem.spec,
        problem.p,
        pi,
        widths,
        LaplacianSolver.for_kernel(kernel),
        _Cost(problem),
    )
    # Half the way to the stationary distribution: away from the boundary.
    share = 0.5 * np.sin(np.linspace(0, 0.5 * np.pi, _FIRST + 1)[:, None]) ** 2
    curve, psi = staggered.through(((1 - share) * problem.p + share * pi) / pi)
    mu = staggered.action(curve) + 0.1 * problem.tau * problem.size
    mu_end, steps, products, before = _COARSE * mu, 0, 0, np.inf
    while True:
        found = centre(
            staggered,
            curve,
            solve,
            mu=mu,
            mu_end=mu_end,
            tolerance=0.1 * mu_end,
            max_steps=80,
            psi=psi,
        )
        steps, products = steps + found.steps, products + found.products
        size, length = staggered.widths.size, float(np.sqrt(staggered.action(found.curve)))
        change = abs(length - before) / max(length, 1e-300)
        if not found.status or change <= path_tolerance or 2 * size > most:
            return staggered, found, mu_end, change, (steps, products)
        before, mu = length, mu_end
        staggered = staggered.on(graded_widths(2 * size, (True, True), _POWER))
        curve, psi = staggered.halved(found.curve)


def _assessed(
    problem: FreeEnd, staggered: Staggered, found: Centred, factorisations: int, iterations: int
) -> StaggeredStep:
    pi, widths, curve = problem.kernel.stationary, staggered.widths, found.curve
    force = staggered.force(curve)
    first = found.psi[0] + 0.5 * widths[0] * force[0] / pi
    final = found.psi[-1] - 0.5 * widths[-1] * force[-1] / pi
    y = np.log(curve.rho[-1])
    defect = np.abs(staggered.defect(curve)).sum(axis=0)
    residual = problem.residual(y, final, defect)
    distance = float(np.sqrt(staggered.action(curve)))
    return StaggeredStep(
        y, first, final, residual, distance, 1.0, found.status, factorisations, iterations
    )
