"""Newton on an adaptive mesh; with a barrier it is method B, for zeros at the ends and far pairs.

The barrier keeps the path inside the simplex while `mu` falls; each round measures the error of
every piece of [0, 1] and cuts those that hold most of it: in two in the middle, geometrically
towards an end where a state is empty (there densities grow like powers of `t`, potentials blow up,
and only a geometric mesh converges fast). The barrier costs at most `mu` in half the squared
distance, so `mu` follows the discretisation error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.paths.mesh import TimeMesh, gauss
from thalweg.paths.newton import DirectionSolver, NewtonPath, minimise
from thalweg.paths.problem import Length, PathProblem
from thalweg.status import Status

__all__ = ["AdaptivePath", "solve_adaptive"]

Array = NDArray[np.float64]

_MAX_ORDER = 6
_ROUNDING = 2e-13
"""Below this relative error rounding rules, and refinement is of no use."""
_RATIO = 0.2
"""How much smaller each piece is than the one before it, towards a singular end."""


class AdaptivePath(NamedTuple):
    """A path on its mesh, with what the refinement learnt about its error."""

    problem: PathProblem
    path: NewtonPath
    distance: float
    upper: float
    error: float
    """Estimated error of `distance`, discretisation and barrier together."""
    status: Status
    steps: int
    products: int


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the status tells
def solve_adaptive(
    problem: PathProblem,
    direction: DirectionSolver,
    *,
    tolerance: float,
    order: int,
    singular: tuple[bool, bool],
    pieces: int = 4,
    max_stages: int = 1000,
    max_rounds: int = 40,
    start: Array | None = None,
    psi: Array | None = None,
    barrier: bool = True,
    max_steps: int = 80,
) -> AdaptivePath:
    """The path whose estimated relative error of the distance is below `tolerance`.

    `problem.mesh` is the first mesh if `start`, fluxes on it, is given.
    """
    if start is None:
        orders = np.full(pieces, order)
        orders[[0, -1]] = np.where(singular, 1, order)
        problem = problem.on(TimeMesh(np.full(pieces, 1.0 / pieces), orders))
        start = problem.safe_flux(0.3)
    flux = start
    value, _, _ = problem.value(flux, 0.0)
    mu, mu_end = (0.02 * value, 1e-3 * value) if barrier else (0.0, 0.0)
    accuracy = min(0.1 * tolerance, 1e-7)
    best: AdaptivePath | None = None
    steps = products = 0
    previous: tuple[float, int] | None = None
    for _ in range(max_rounds):
        path = minimise(
            problem,
            flux,
            direction,
            mu=mu,
            mu_end=mu_end,
            tolerance=0.05 * mu_end if barrier else max(accuracy**2, 1e-16) * value,
            max_steps=max_steps,
            psi=psi,
        )
        steps, products = steps + path.steps, products + path.products
        length = problem.length(path.flux)
        found = _assess(problem, path, length, mu_end, steps, products, previous)
        previous = (found.distance, problem.mesh.size)
        if best is None or found.error < best.error or not path.status:
            best = found if path.status or best is None else best
        if not path.status and not path.decrement < 0.1 * found.distance**2:
            return best._replace(status=path.status, steps=steps, products=products)
        target = tolerance * found.distance
        if found.error <= target and (path.status or path.decrement <= 0.1 * target):
            return found._replace(status=Status.CONVERGED)
        if problem.mesh.size >= max_stages or found.error <= _ROUNDING * found.distance:
            break
        old_mu = mu_end
        if barrier:
            square = found.distance**2
            discretisation = min(found.error, found.distance)
            mu_end = max(
                0.01 * tolerance * square, min(mu_end, 0.003 * discretisation * found.distance)
            )
            mu = max(mu_end, min(old_mu, 10 * mu_end))
        finer, flux = _refine(problem, path.flux, length, 0.5 * target, order, singular)
        mesh = finer.mesh
        psi = problem.mesh.interpolate(*problem.mesh.locate(mesh.times)) @ path.psi
        problem = finer
    assert best is not None
    return best._replace(status=Status.STALLED, steps=steps, products=products)


def _assess(
    problem: PathProblem,
    path: NewtonPath,
    length: Length,
    mu: float,
    steps: int,
    products: int,
    previous: tuple[float, int] | None,
) -> AdaptivePath:
    action = float(problem.mesh.weights @ problem.actions(path.rho, path.flux))
    distance = float(np.sqrt(action))
    pace = distance - float(length.coarse.sum())
    error = float(length.errors.sum()) + max(pace, 0.0)
    halved = previous is not None and problem.mesh.size >= 1.4 * previous[1]
    if halved and previous is not None and problem.mesh.orders.max() == 1:
        # Midpoint pieces: the interpolated path is far cruder than the action, so what the last
        # refinement changed is the better measure (three times the error if all were halved).
        error = min(error, 0.4 * abs(distance - previous[0]))
    error += path.decrement / distance
    if mu > 0:
        error += mu / distance
    return AdaptivePath(
        problem, path, distance, length.upper, error, Status.MAX_ITERATIONS, steps, products
    )


def _refine(
    problem: PathProblem,
    flux: Array,
    length: Length,
    target: float,
    order: int,
    singular: tuple[bool, bool],
) -> tuple[PathProblem, Array]:
    """The problem on a finer mesh and fluxes to start from."""
    mesh = problem.mesh
    errors = length.errors
    # One piece must not hold up the rest: compare with the typical error, too.
    large = min(float(errors.max()), 20 * float(np.median(errors)) + 1e-300)
    marked = errors > max(0.3 * target / mesh.pieces, 0.05 * large)
    widths: list[Array] = []
    orders: list[NDArray[np.int64]] = []
    smooth: list[Array] = []
    crude: list[Array] = []
    last = mesh.pieces - 1
    for k in range(mesh.pieces):
        here = slice(mesh.start[k], mesh.start[k + 1])
        own = int(mesh.orders[k])
        if not marked[k]:
            widths.append(mesh.widths[k : k + 1])
            orders.append(mesh.orders[k : k + 1])
            smooth.append(flux[here])
            crude.append(flux[here])
            continue
        at_left, at_right = k == 0 and singular[0], k == last and singular[1]
        if at_left or at_right:
            excess = float(errors[k]) / max(0.1 * target, 1e-300)
            levels = int(np.clip(np.ceil(np.log(excess) / -np.log(_RATIO)), 1, 3))
            cuts = np.append(0.0, _RATIO ** np.arange(levels + 1)[::-1])
            new_orders = np.full(levels + 1, order)
            new_orders[0] = 1
            if at_right:
                cuts, new_orders = 1.0 - cuts[::-1], new_orders[::-1]
        elif own < _MAX_ORDER and errors[k] < 1e3 * target and own > 1:
            # A smooth piece gains more from a higher order than from a cut.
            cuts, new_orders = np.array([0.0, 1.0]), np.array([own + 1 + (own > 2)])
        else:
            cuts, new_orders = np.array([0.0, 0.5, 1.0]), np.full(2, own)
        parts = np.diff(cuts)
        place = np.concatenate(
            [c + p * gauss(int(o))[0] for c, p, o in zip(cuts, parts, new_orders, strict=False)]
        )
        weight = np.concatenate(
            [p * gauss(int(o))[1] for p, o in zip(parts, new_orders, strict=True)]
        )
        pace = np.ones_like(place)
        if at_left:
            pace = np.sqrt(place)
        elif at_right:
            pace = np.sqrt(1.0 - place)
        pace = pace / (weight @ pace)
        widths.append(mesh.widths[k] * parts)
        orders.append(new_orders)
        smooth.append(mesh.interpolate(np.full(place.size, k), place) @ flux)
        crude.append(pace[:, None] * (gauss(own)[1] @ flux[here]))
    finer = problem.on(TimeMesh(np.concatenate(widths), np.concatenate(orders)))
    return finer, _admissible(finer, np.concatenate(smooth), np.concatenate(crude))


def _admissible(problem: PathProblem, smooth: Array, crude: Array) -> Array:
    """The smoothest mixture of the candidates whose action is not absurd."""
    limit = np.inf
    values = [problem.value(f, 0.0)[0] for f in (smooth, crude)]
    limit = 2.0 * min(values)
    for share in (1.0, 0.7, 0.4, 0.2, 0.0):
        flux = share * smooth + (1 - share) * crude
        value, rho, _ = problem.value(flux, 0.0)
        if value <= limit and np.isfinite(value) and rho.min() > 0:
            return flux
    safe = problem.safe_flux(0.3)
    for share in (0.98, 0.9, 0.7, 0.4, 0.0):
        flux = share * smooth + (1 - share) * safe
        if problem.densities(problem.gains(flux)).min() > 0:
            return flux
    return safe
