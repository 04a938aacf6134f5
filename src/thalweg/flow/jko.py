"""The JKO step: `argmin_q F(q) + W_K(p, q)^2 / (2 tau)`, exact in the transport metric.

Path and end point are found together: minimise half the action of a path that starts at `p`, plus
`tau F` at its free end. The first-order condition is `psi(1) = -tau f(q)` for the potential `psi`
of the geodesic and the first variation `f`; where the end is empty, `psi(1) >= -tau f(q)` up to the
same constant. A short step from inside the simplex is Newton's from the start (`jko_newton`), a
long one is led there by barriers (`jko_barrier`), and the mesh in time is then refined until the
length of the path is known well enough. A step from the boundary, or one where that fails, takes a
staggered mesh, if the graph is not too large for its eliminations (`jko_staggered`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._door import checked
from thalweg._threads import single_threaded
from thalweg.edges import packed
from thalweg.energy import Entropy, FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.trajectory import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import Mobility, as_mobility
from thalweg.paths.free_end.barrier import approach
from thalweg.paths.free_end.newton import Solved, newton
from thalweg.paths.free_end.staggered import solve_staggered
from thalweg.paths.free_end.system import FreeEnd, State
from thalweg.paths.interior.method import finer_mesh
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem
from thalweg.status import Status

__all__ = ["JkoResult", "jko_flow", "jko_step"]

Array = NDArray[np.float64]

_HEALTHY = 1e-3
"""With densities above this a step may start without a barrier."""
_EMPTY = 1e-6
"""With densities below this a step is one from the boundary."""
_CRUDE = 1e-3
"""Where the error of the path may change the energy by so much, the other mesh is tried, too."""
_NEAR = 1.0
"""Steps longer than this are led by a barrier."""
_FAR = 2.5
"""Beyond this the last of the meshes below is the first to be tried."""
_FIRST_MESHES = ((1, 3), (1, 4), (2, 3))
"""Pieces and stages each; the next is tried where Newton fails on one."""
_ENOUGH = 40
"""After so many factorisations the mesh is refined no more."""
_TOO_MANY = 60
"""After so many factorisations no other mesh is tried."""
_STAGES = 64
_UNKNOWNS = 2_500_000
"""Densities of a path, at most: it takes some hundred times their memory."""
_TINY = 1e-10
"""The entropy added where nothing else keeps densities positive, relative to the potential."""


@dataclass(frozen=True, eq=False)
class JkoResult:
    """The minimiser of a JKO step and what was found with it."""

    probability: Array
    status: Status
    first_order_residual: float
    """`psi(1) / tau + f(q)` minus its mean, root mean square under `q`, and what `q` lacks of it.

    The second part is `beta log(1 + |defect| / q)` for the mass that the fluxes leave elsewhere."""
    distance: float
    energy: float
    potential: Array
    """The potential with which the geodesic leaves `p`."""
    final_potential: Array
    """The potential with which it arrives: `-tau f(q)` up to a constant, or above where empty."""
    factorisations: int
    iterations: int
    """GMRES iterations."""
    smoothing: float = 0.0
    """The share of the stationary distribution that was mixed into `p` first, as asked for."""
    path_error: float = 0.0
    """The estimated relative error of `distance`, from the mesh in time; 1 or more where the mesh
    is too coarse to tell, as it may be next to the boundary of the simplex."""


@single_threaded
@checked
def jko_step(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p: ArrayLike,
    tau: float,
    *,
    mobility: Mobility | None = None,
    tolerance: float = 1e-9,
    path_tolerance: float = 1e-6,
    max_steps: int = 60,
    smoothing: float = 0.0,
    solver: LaplacianSolver | None = None,
) -> JkoResult:
    """One step of the minimising-movement scheme from `p`, for any `tau > 0`.

    `p` may have empty states, and so may the result if `beta` is zero or its density underflows.
    (After a step from empty states the smallest densities, those that the first-order condition
    does not feel at `tolerance`, are bounds left by a barrier, not results.)
    `tolerance` is for the first-order condition, `path_tolerance` for the relative error of the
    distance (the mesh in time is refined to meet it, but not after 40 factorisations; `path_error`
    tells). `smoothing` mixes that share of the stationary distribution into `p` first.
    `solver`: a grounded `LaplacianSolver` of the kernel, to share its analysis between steps.
    An interaction that makes `F` concave may have several minimisers, or defeat Newton: the status
    tells.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> step = jko_step(kernel, FreeEnergy([0.0, 1.0], beta=1.0), [0.5, 0.5], tau=0.1)
    >>> step.probability.round(6), bool(step.status)
    (array([0.541597, 0.458403]), True)
    """
    mobility = as_mobility(mobility)
    tau = _checks.positive(tau, "tau")
    p = _checks.as_probability(p, kernel.n_states)
    if energy.n_states != kernel.n_states:
        raise InputError(
            f"the potential has {energy.n_states} entries, but the kernel has {kernel.n_states} "
            "states: give one number per state."
        )
    if smoothing:
        if not 0 < smoothing < 1:
            raise InputError(f"smoothing is {smoothing:g}; give a share between 0 and 1.")
        p = (1 - smoothing) * p + smoothing * kernel.stationary
    grounded = LaplacianSolver.for_kernel(kernel, grounded=True) if solver is None else solver
    problem = FreeEnd(
        kernel, mobility.spec, energy, p, tau, TimeMesh.uniform(*_FIRST_MESHES[0]), grounded
    )
    empty = float((p / kernel.stationary).min()) < _EMPTY
    result = _staggered(problem, tolerance, path_tolerance) if empty else None
    if result is None or not result.status:
        other = _collocated(problem, tolerance, path_tolerance, max_steps)
        doubt = other.path_error * other.distance**2 / tau
        if not empty and not (other.status and doubt < _CRUDE * problem.size):
            result = _staggered(problem, tolerance, path_tolerance)
        result = other if result is None or not result.status else result
    return replace(result, smoothing=smoothing)


def _collocated(
    problem: FreeEnd, tolerance: float, path_tolerance: float, max_steps: int
) -> JkoResult:
    """The step on a coarse mesh of high order, refined until its length is known."""
    problem, found = _first(problem, tolerance, max_steps)
    if not found.status:
        return _package(problem, found, _path_error(problem, found.state)[0])
    error, errors = _path_error(problem, found.state)
    limit = min(_STAGES, max(3, _UNKNOWNS // problem.kernel.n_states))
    while error > path_tolerance and found.factorisations < _ENOUGH:
        mesh = finer_mesh(problem.mesh, errors, 0.5 * path_tolerance * found.distance)
        if mesh.size > limit or mesh.size == problem.mesh.size:
            break
        finer = problem.on(mesh)
        refined = newton(
            finer, _carry(problem, found.state, mesh), tolerance=0.1 * tolerance, max_steps=12
        )
        cost = found.factorisations + refined.factorisations, found.iterations + refined.iterations
        if not refined.status:
            found = found._replace(factorisations=cost[0], iterations=cost[1])
            break
        change = abs(refined.distance - found.distance) / max(refined.distance, 1e-300)
        problem, found = finer, refined._replace(factorisations=cost[0], iterations=cost[1])
        error, errors = _path_error(problem, found.state)
        if error > 0.05:
            # Between stages the interpolated path leaves the simplex: its length says nothing.
            error = change
    return _package(problem, found, error)


def _staggered(problem: FreeEnd, tolerance: float, path_tolerance: float) -> JkoResult | None:
    """The step for the boundary; `None` on graphs that are too large for it."""
    found = solve_staggered(problem, tolerance=tolerance, path_tolerance=path_tolerance)
    if found is None:
        return None
    pi = problem.kernel.stationary
    q = pi * np.exp(found.y)
    q = q / q.sum()
    return JkoResult(
        q,
        found.status,
        found.residual,
        found.distance,
        problem.energy(problem.kernel, q),
        found.first - pi @ found.first,
        found.final - pi @ found.final,
        found.factorisations,
        found.iterations,
        path_error=found.error,
    )


@checked
def jko_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    tau: float,
    n_steps: int,
    *,
    mobility: Mobility | None = None,
    tolerance: float = 1e-9,
    smoothing: float = 0.0,
) -> Trajectory:
    """`n_steps` JKO steps of length `tau`: a trajectory at times `0, tau, 2 tau, ...`.

    Its status is that of the first step that failed, after which the last point is repeated.
    `smoothing` is for `p0` alone.
    """
    if not (isinstance(n_steps, int) and n_steps > 0):
        raise InputError(f"n_steps is {n_steps!r}; give a positive whole number.")
    solver = LaplacianSolver.for_kernel(kernel, grounded=True)
    p = _checks.as_probability(p0, kernel.n_states)
    rows = [p]
    status = Status.CONVERGED
    for k in range(n_steps):
        if status:
            result = jko_step(
                kernel,
                energy,
                p,
                tau,
                mobility=mobility,
                tolerance=tolerance,
                smoothing=smoothing if k == 0 else 0.0,
                solver=solver,
            )
            p, status = result.probability, result.status
        rows.append(p)
    return Trajectory(np.asarray(tau * np.arange(n_steps + 1.0)), np.array(rows), status)


def _first(problem: FreeEnd, tolerance: float, max_steps: int) -> tuple[FreeEnd, Solved]:
    """The solution on a coarse mesh, by Newton alone where it is near, else with barriers."""
    extras = _extras(problem)
    state, reach = _linear_start(problem)
    cost, iterations = 1, 0
    healthy = float((problem.p / problem.kernel.stationary).min()) >= _HEALTHY
    if healthy and reach <= _NEAR and extras == (0.0,):
        barrier = 0.1 * reach**2 if reach > 0.3 else 0.0
        found = newton(problem, state, tolerance=0.1 * tolerance, barrier=barrier, max_steps=25)
        cost, iterations = cost + found.factorisations, found.iterations
        if found.status:
            return problem, found._replace(factorisations=cost)
    forcing = 3e-4 if problem.kernel.n_states < 300 else 3e-3
    meshes = _FIRST_MESHES if reach < _FAR else _FIRST_MESHES[::-1]
    for pieces, order in meshes:
        problem = problem.on(TimeMesh.uniform(pieces, order))
        led = approach(problem, mu=1.0, mu_end=1e-6, max_steps=max_steps, forcing=forcing)
        cost, iterations = cost + led.factorisations, iterations + led.iterations
        state, barrier = led.state, led.mu if led.mu > 1e-5 else 0.0
        for extra in extras:
            problem = replace(problem, extra=extra)
            last = extra == extras[-1]
            found = newton(
                problem, state, tolerance=0.1 * tolerance if last else 1e-3, barrier=barrier
            )
            barrier = 0.0
            cost, iterations = cost + found.factorisations, iterations + found.iterations
            if not found.status and not found.residual < 0.1:
                break
            state = found.state
        end = problem.kernel.stationary * np.exp(found.state.y)
        value = 0.5 * found.distance**2 + problem.tau * problem.energy_at(end)
        stays = found.distance < 1e-6 * min(reach, 1.0)
        if found.status and (stays or not value <= led.value + 1e-8 * (1 + abs(value))):
            # A stationary point of the equations, but above the path that led here.
            found = found._replace(status=Status.NEWTON_FAILED)
        if found.status or cost > _TOO_MANY:
            break
    return problem, found._replace(factorisations=cost, iterations=iterations)


def _extras(problem: FreeEnd) -> tuple[float, ...]:
    """Entropies to add, falling to the last: what is left where `F` lets states run empty."""
    energy, size = problem.energy, problem.size
    proper = energy.beta if isinstance(energy.internal, Entropy) else 0.0
    end = 0.0 if proper > 0 else _TINY * size
    falling = [size * 10.0**-k for k in range(4, 11)]
    return (*(x for x in falling if x > max(0.3 * proper, 3 * end)), end)


def _linear_start(problem: FreeEnd) -> tuple[State, float]:
    """The step linearised at `p`: constant potentials, and how far they would go."""
    kernel, pi = problem.kernel, problem.kernel.stationary
    source, target, _ = kernel.edges
    density = np.maximum(problem.p / pi, 1e-6)
    y = np.log(density)
    rho = np.repeat(density[:, None], problem.mesh.size, axis=1)
    none = np.zeros((source.size, 1))
    _, _, _, weights = packed.linearise_flux(
        *kernel.edges, np.ascontiguousarray(rho[:, :1]), none, problem.spec, np.ones(1)
    )
    slack = pi * density / problem.slope(y)
    f = problem.first_variation(pi * density, y)
    last = (
        problem.solver.factor(weights, diagonal=slack)
        .solve(-slack * problem.tau * (f - pi @ f), tolerance=1e-3)
        .x
    )
    reach = float(np.sqrt(weights @ (last[source] - last[target]) ** 2))
    last = last - problem.tau * float(pi @ f)
    return State(rho, np.zeros_like(rho), last, y), reach


def _carry(problem: FreeEnd, state: State, mesh: TimeMesh) -> State:
    """Densities and potentials of the collocation polynomials on another mesh."""
    pi, old = problem.kernel.stationary[:, None], problem.mesh
    gain, force = _rates(problem, state)
    end = pi * np.exp(state.y)[:, None]
    piece, place = old.locate(mesh.times)
    start = np.where(old.is_late(piece, place), end, problem.p[:, None])
    rho = (start + gain @ old.integral_from_ends(piece, place).T) / pi
    low = np.minimum(problem.p, end[:, 0])[:, None] / pi
    low = np.minimum(np.where(low > 0, low, np.inf), state.rho.min(axis=1)[:, None])
    rho = np.maximum(rho, 0.3 * low)
    q = (force / pi) @ (old.weights - old.integral_to(piece, place)).T
    return State(rho, q, state.last, state.y)


def _rates(problem: FreeEnd, state: State) -> tuple[Array, Array]:
    """`M psi` and the force at the stages."""
    table = np.empty((problem.kernel.n_edges, 6, problem.mesh.size), np.float32)
    gain, force, _, _ = packed.linearise(
        *problem.kernel.edges, state.rho, state.psi, problem.spec, problem.mesh.weights, table
    )
    return gain, force


def _path_error(problem: FreeEnd, state: State) -> tuple[float, Array]:
    """The estimated relative error of the length of the step, and the errors of the pieces."""
    kernel = problem.kernel
    source, target, _ = kernel.edges
    zero = np.zeros((source.size, problem.mesh.size))
    table, _, _, _ = packed.linearise_flux(
        *kernel.edges, state.rho, zero, problem.spec, problem.mesh.weights
    )
    psi = state.psi
    flux = np.ascontiguousarray((table[:, 0] * (psi[source] - psi[target])).T)
    end = kernel.stationary * np.exp(state.y)
    path = PathProblem(kernel, problem.spec, problem.p, end, problem.mesh, problem.solver)
    length = path.length(flux)
    total = max(float(length.fine.sum()), 1e-300)
    return float(length.errors.sum()) / total, length.errors


def _package(problem: FreeEnd, found: Solved, error: float) -> JkoResult:
    pi, mesh, state = problem.kernel.stationary, problem.mesh, found.state
    gain, force = _rates(problem, state)
    end = pi * np.exp(state.y)
    # The potential that the path carries, not the one that the first-order condition wants.
    weight = mesh.weights * state.rho * pi[:, None]
    guess = state.psi - (force / pi[:, None]) @ problem.to_end
    final = (weight * guess).sum(axis=1) / weight.sum(axis=1)
    first = final + (force @ mesh.weights) / pi
    q = end / end.sum()
    return JkoResult(
        q,
        found.status,
        problem.residual(state.y, final, problem.p + gain @ mesh.weights - end),
        found.distance,
        problem.energy(problem.kernel, q),
        first - pi @ first,
        final - pi @ final,
        found.factorisations,
        found.iterations,
        path_error=error,
    )
