"""Newton on the collocation equations of a geodesic, for end points inside the simplex.

Unknowns are the densities `R` and the potentials `P = middle + Q` at the stages, independent of
each other, with the residuals

    r1 = rho_end + J_ends (M(R) P) / pi - R,   r2 = -J_mid force(R, P) / pi - Q,
    r3 = p1 - p0 - sum_i b_i M_i P_i.

Because `R` is an unknown of its own, a step that would empty a state is bent at that state alone,
and the rest of the path takes the whole step. Directions come from GMRES, preconditioned by one
solve with the averaged Laplacian, whose factor serves several steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.geometry import packed
from thalweg.geometry.krylov import gmres
from thalweg.geometry.newton_system import balanced
from thalweg.geometry.path_problem import PathProblem
from thalweg.laplacian import Factor
from thalweg.status import Status

__all__ = ["Collocation", "solve_collocation"]

Array = NDArray[np.float64]

_STIFF = 1.0
"""States that react faster than this, in units of the path's duration, are solved for locally."""


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
    pi, mesh = problem.kernel.stationary[:, None], problem.mesh
    edges, b = problem.kernel.edges, problem.mesh.weights
    ends, mid = mesh.from_ends.T.copy(), mesh.from_middle.T.copy()
    base = np.ascontiguousarray(problem.base.T)
    r, q = np.ascontiguousarray(rho.T), np.ascontiguousarray((psi - middle).T)
    previous, products, age, last = np.inf, 0, 0, 0
    kept: tuple[Array, Array, Array] | None = None
    step = (np.zeros_like(r), np.zeros_like(q), np.zeros_like(middle))
    length, size, status = 1.0, np.inf, Status.MAX_ITERATIONS
    steps = 0
    table = np.empty((problem.kernel.n_edges, 6, b.size), np.float32)
    while steps < max_steps:
        steps += 1
        gain, force, action, average = packed.linearise(
            *edges, r, q + middle[:, None], problem.spec, b, table
        )
        scale = np.sqrt(b * pi * r)
        r1 = (base + gain @ ends / pi - r) / r
        r2 = -((force / pi + barrier / r) @ mid) - q
        r3 = problem.gap - gain @ b
        speed = max(float(np.sqrt(b @ action)), 1e-300)
        defect = float(np.abs(r3).sum())
        size = max(_norm(r1 * scale), _norm(r2 * scale), defect) / speed
        if barrier > barrier_end and length == 1.0 and size <= max(tolerance, 0.15):
            barrier = 0.1 * barrier if barrier > 1e-4 * speed**2 else 0.0
            barrier = max(barrier, barrier_end)
            r2 = -((force / pi + barrier / r) @ mid) - q
            size = max(_norm(r1 * scale), _norm(r2 * scale), defect) / speed
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
            r, q, middle = _move(kept, step, length)
            continue
        if not np.isfinite(size):
            status = Status.NOT_FINITE
            break
        if factor is None or (last > 8 and age > 0):
            factor, age = problem.solver.factor(average), 0
        age += 1
        enough = float(np.clip(0.3 * size, max(1e-3, 0.3 * tolerance / size), forcing))
        step, last = _direction(
            problem, table, r, (r1, r2, r3), (ends, mid), factor, barrier, enough, max_iterations
        )
        products += last + 1
        kept, previous, length = (r, q, middle), size, 1.0
        r, q, middle = _move(kept, step, length)
    assert factor is not None or status is Status.CONVERGED
    if factor is None:
        factor = problem.solver.factor(average)
    psi = np.ascontiguousarray(q.T) + middle
    return Collocation(
        np.ascontiguousarray(r.T),
        psi,
        middle,
        np.ascontiguousarray(gain.T),
        np.ascontiguousarray(force.T),
        status,
        steps,
        products,
        float(size),
        factor,
    )


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


def _direction(
    problem: PathProblem,
    table: NDArray[np.float32],
    r: Array,
    residuals: tuple[Array, Array, Array],
    integrals: tuple[Array, Array],
    factor: Factor,
    barrier: float,
    forcing: float,
    max_iterations: int,
) -> tuple[tuple[Array, Array, Array], int]:
    """Relative changes of the densities, changes of the potentials, by GMRES."""
    source, target, _ = problem.kernel.edges
    pi, b = problem.kernel.stationary[:, None], problem.mesh.weights
    ends, mid = integrals
    n, count = r.shape
    block = n * count
    scale = np.sqrt(b * pi * r)
    scale_m = np.sqrt(pi[:, 0] * (r @ b))
    whole = ends.sum(axis=0)
    invert = inverse(factor, 0.1 * forcing)
    gain, push = np.empty((n, count)), np.empty((n, count))
    stiff, local = _local(problem, table, r, integrals, barrier)

    def precondition(o1: Array, o2: Array, o3: Array) -> Array:
        # As if every stage had the averaged Laplacian: exact for pairs infinitely near.
        out = np.empty(2 * block + n, np.float32)
        out[2 * block :] = (invert(o3) - o2 @ b) * scale_m
        o1 = o1 + (o3[:, None] / pi) * whole / r
        out[:block] = (o1 * scale).ravel()
        out[block : 2 * block] = (o2 * scale).ravel()
        return out

    def unpack(y: Array) -> tuple[Array, Array, Array]:
        w = y[:block].reshape(n, count) / scale
        q = y[block : 2 * block].reshape(n, count) / scale
        if stiff.size:
            both = np.concatenate([w[stiff], q[stiff]], axis=1)
            both = np.matmul(local, both[:, :, None])[:, :, 0]
            w[stiff], q[stiff] = both[:, :count], both[:, count:]
        return w, q, y[2 * block :] / scale_m

    def operator(y: Array) -> Array:
        w, q, m = unpack(y)
        packed.product(source, target, table, q + m[:, None], w, gain, push)
        o1 = w - (gain @ ends) / pi / r
        o2 = q + ((push / pi - barrier * w) / r) @ mid
        return precondition(o1, o2, gain @ b)

    right = precondition(*residuals)
    solution = gmres(operator, right, tolerance=forcing, max_iterations=max_iterations, restart=60)
    return unpack(solution.x), solution.iterations


def _local(
    problem: PathProblem,
    table: NDArray[np.float32],
    r: Array,
    integrals: tuple[Array, Array],
    barrier: float,
) -> tuple[NDArray[np.int64], Array]:
    """States whose own density and potential hang together stiffly, and the inverse of how.

    Where a density is low the mobility rises steeply with it; GMRES spends its iterations on such
    states unless each is solved for by itself, at all times at once.
    """
    source, target, _ = problem.kernel.edges
    pi = problem.kernel.stationary
    n, count = r.shape
    m, a, k = packed.diagonals(source, target, table, n)
    mass = pi[:, None] * r
    k -= barrier * pi[:, None]
    stiff = np.flatnonzero((np.abs(a) / mass).max(axis=1) > _STIFF)
    ends, mid = integrals[0].T, integrals[1].T
    here = mass[stiff][:, :, None]
    m, a, k = m[stiff][:, None], a[stiff][:, None], k[stiff][:, None]
    matrix = np.zeros((stiff.size, 2 * count, 2 * count))
    matrix[:, :count, :count] = -ends * a / here
    matrix[:, :count, count:] = -ends * m / here
    over = mass[stiff][:, None]
    matrix[:, count:, :count] = mid * k / over
    matrix[:, count:, count:] = mid * a / over
    matrix[:, np.arange(2 * count), np.arange(2 * count)] += 1.0
    return stiff, np.linalg.inv(matrix)


def inverse(factor: Factor, tolerance: float) -> Callable[[Array], Array]:
    """`b -> M^+ b`, loosely; without the checks of `Factor.solve` where the factor is sound."""
    prepared = factor.prepared
    if prepared is None or factor.piece is not None:
        return lambda b: factor.solve(balanced(b), tolerance=tolerance).x

    def apply(b: Array) -> Array:
        x = prepared.solve(balanced(b), tolerance).x
        return np.asarray((x - x.mean()) / factor.scale)

    return apply


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))
