"""Geodesics between end points inside the simplex, from coarse meshes in time to fine ones.

The collocation equations are solved on a few stages first; the densities and potentials of that
solution, polynomials in time, start the next mesh, where one or two Newton steps remain.
The mesh grows until the length of the interpolated path and the discretised action agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.laplacian import Factor, balanced
from thalweg.paths.interior.newton import Collocation, solve_collocation
from thalweg.paths.interior.system import inverse
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status

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
_MAX_ORDER = 9
"""Largest number of stages per piece."""
_GAIN = 10.0
"""Factor by which two more stages reduce the error of a smooth piece, approximately."""
_ROUNDING = 2e-13
"""Relative error of the distance that is rounding."""
_MAX_ROUNDS = 12
"""Largest number of meshes."""


def solve_inside(
    problem: PathProblem,
    *,
    tolerance: float,
    accuracy: float,
    max_stages: int = 120,
    max_steps: int = 40,
) -> Path | None:
    """The path whose estimated relative error of the distance is below `tolerance`.

    `accuracy` bounds the relative residual, which is that of the potentials; the distance's error
    is its square. `None` if Newton does not converge from the straight line; otherwise the best
    path found, with its status.
    """
    problem = problem.on(TimeMesh.uniform(1, 3))
    chord = _chord(problem, problem.mesh)
    weights = kinetic.stage_weights(*problem.kernel.edges, chord, problem.spec)
    factor = problem.solver.factor(problem.mesh.weights @ weights)
    middle = inverse(factor, 1e-3)(problem.gap)
    reach = float(np.sqrt(max(float(problem.gap @ middle), 0.0)))
    settings = _Settings(tolerance, accuracy, max_stages, max_steps)

    def straight(mesh: TimeMesh) -> _Start:
        rho = _chord(problem, mesh)
        barrier = _FIRST_BARRIER * reach**2 if reach > 0.3 else 0.0
        return _Start(problem.on(mesh), rho, np.broadcast_to(middle, rho.shape), middle, barrier)

    if reach <= 0.3:
        mesh = TimeMesh.uniform(1, 3 if reach < 0.1 or tolerance > 1e-7 else 4)
        return _refine(mesh, straight, factor, settings)
    mesh = TimeMesh.uniform(1, 5 if tolerance > 1e-6 else 7)
    if reach < _FAR:
        start = straight(problem.mesh)
        coarse = start.solve(_COARSE, factor, settings, barrier_end=_BARRIER * reach**2)

        def carried(mesh: TimeMesh) -> _Start:
            return _carry(problem, coarse, mesh)._replace(barrier=_BARRIER * reach**2)

        if coarse.status:
            found = _refine(mesh, carried, factor, settings)
            if found is not None:
                return found._replace(
                    steps=found.steps + coarse.steps, products=found.products + coarse.products
                )
    return _refine(mesh, straight, factor, settings, rough=np.sqrt(tolerance))


class _Settings(NamedTuple):
    tolerance: float
    accuracy: float
    max_stages: int
    max_steps: int


class _Start(NamedTuple):
    """A problem on its mesh, with densities and potentials to start from, and a barrier."""

    problem: PathProblem
    rho: Array
    psi: Array
    middle: Array
    barrier: float = 0.0

    def solve(
        self, accuracy: float, factor: Factor, settings: _Settings, barrier_end: float = 0.0
    ) -> Collocation:
        return solve_collocation(
            self.problem,
            self.rho,
            self.psi,
            self.middle,
            tolerance=accuracy,
            factor=factor,
            barriers=(self.barrier, barrier_end),
            max_steps=settings.max_steps,
        )


def _refine(
    mesh: TimeMesh,
    fresh: Callable[[TimeMesh], _Start],
    factor: Factor,
    settings: _Settings,
    rough: float = 0.0,
) -> Path | None:
    """Solve on finer and finer meshes until the error is small; `fresh` makes a new start.

    `rough` is the relative residual at which the first mesh is judged.
    """
    tolerance, accuracy, max_stages, _ = settings
    start = fresh(mesh)
    steps = products = 0
    best: Path | None = None
    renewed = True
    previous = np.inf
    for _ in range(_MAX_ROUNDS):
        problem = start.problem
        solved = start.solve(max(accuracy, rough), factor, settings)
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
            start = _Start(problem, solved.rho, solved.psi, solved.middle)
            if accuracy < 1e-9:
                break
            continue
        previous = found.distance
        if best is None or found.error < best.error:
            best = found
        target = tolerance * found.distance
        finer = finer_mesh(problem.mesh, errors, 0.5 * target)
        last = float(errors.sum()) <= target or finer.size > max_stages
        if last and solved.residual > accuracy and rough > accuracy:
            # This mesh is fine enough to be solved to the full accuracy.
            rough = 0.0
            start = _Start(problem, solved.rho, solved.psi, solved.middle)
            continue
        if solved.status and found.error <= target:
            return found._replace(status=Status.CONVERGED)
        if found.error <= _ROUNDING * found.distance or finer.size > max_stages:
            break
        start, renewed, rough = _carry(problem, solved, finer), False, 0.0
    if best is None:
        return None
    return best._replace(status=Status.STALLED, steps=steps, products=products)


def _chord(problem: PathProblem, mesh: TimeMesh) -> Array:
    t = mesh.times[:, None]
    return np.asarray(((1 - t) * problem.p0 + t * problem.p1) / problem.kernel.stationary)


def _carry(problem: PathProblem, solved: Collocation, mesh: TimeMesh) -> _Start:
    """Densities and potentials of the collocation polynomials on another mesh."""
    pi, old, finer = problem.kernel.stationary, problem.mesh, problem.on(mesh)
    piece, place = old.locate(mesh.times)
    rho = np.where(old.is_late(piece, place)[:, None], problem.p1, problem.p0)
    rho = (rho + old.integral_from_ends(piece, place) @ solved.gain) / pi
    low = np.minimum(np.minimum(problem.p0, problem.p1) / pi, solved.rho.min(axis=0))
    rho = np.maximum(rho, 0.3 * low)
    psi = solved.middle - (old.integral_from_middle(piece, place) @ solved.force) / pi
    return _Start(finer, rho, psi, solved.middle)


def _assess(
    problem: PathProblem, solved: Collocation, steps: int, products: int, previous: float
) -> tuple[Path, Array, Factor]:
    """The admissible path of a collocation solution, its distance, its errors by piece, a factor.

    If the interpolated path leaves the simplex between stages, its length is not usable, and the
    change from the `previous` mesh's distance is the estimate.
    """
    flux, factor = _flux(problem, solved.rho, solved.psi, solved.factor)
    value, rho, _ = problem.value(flux, 0.0)
    distance = float(np.sqrt(2 * value))
    length = problem.length(flux)
    # The action is stationary: the residual enters squared.
    decrement = solved.residual**2 * value
    pace = max(distance - float(length.coarse.sum()), 0.0)
    error = float(length.errors.sum()) + pace
    errors = length.errors
    if not length.feasible:
        error = abs(distance - previous)
        errors = error * problem.mesh.widths
    error += decrement / max(distance, 1e-300)
    found = Path(
        problem,
        flux,
        rho,
        solved.psi,
        distance,
        length.upper,
        error,
        solved.status,
        steps,
        products,
    )
    return found, errors, factor


def _flux(problem: PathProblem, rho: Array, psi: Array, factor: Factor) -> tuple[Array, Factor]:
    """`c m grad psi`, corrected to end at `p1` exactly, and to avoid states that it would empty.

    Also returns the factorisation used, refreshed if it was stale.
    """
    source, target, _ = problem.kernel.edges
    edge = kinetic.stage_weights(*problem.kernel.edges, rho, problem.spec)
    rough = edge * (psi[:, source] - psi[:, target])
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
    source, target, _ = problem.kernel.edges
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
        flux = flux + edge * (step[source] - step[target])
    return np.asarray(flux), factor


def finer_mesh(mesh: TimeMesh, errors: Array, target: float) -> TimeMesh:
    """More stages where the error is: two or four on a smooth piece, a cut elsewhere."""
    widths: list[float] = []
    orders: list[int] = []
    # An unknown error is no reason to cut: the next mesh will reveal it.
    errors = np.where(np.isfinite(errors), errors, 1e3 * target)
    for width, order, error in zip(mesh.widths, mesh.orders, errors, strict=True):
        if error <= target / mesh.pieces:
            widths.append(float(width))
            orders.append(int(order))
        elif order < _MAX_ORDER and error < 1e4 * target:
            widths.append(float(width))
            orders.append(min(int(order) + (2 if error < _GAIN * target else 4), _MAX_ORDER))
        else:
            widths += [0.5 * float(width)] * 2
            orders += [min(int(order), 6)] * 2
    return TimeMesh(np.array(widths), np.array(orders))
