"""The JKO step: `argmin_q F(q) + W_K(p, q)^2 / (2 tau)`, exact in the transport metric.

Path and end point are found together: minimise half the action of a path that starts at `p`, plus
`tau F` at its free end, over the fluxes at the stages of a Gauss mesh. The first-order condition is
`psi(1) = -tau f(q)` for the potential `psi` of the geodesic and the first variation `f`. Newton
with a line search (the problem is convex where `F` is); each direction costs one factorisation of
the averaged Laplacian plus a diagonal, and a few GMRES iterations with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.trajectory import Trajectory
from thalweg.geometry import stages
from thalweg.geometry.krylov import gmres
from thalweg.geometry.mesh import TimeMesh
from thalweg.geometry.path_problem import PathProblem
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import LogMean, Mobility
from thalweg.status import Status

__all__ = ["JkoResult", "jko_flow", "jko_step"]

Array = NDArray[np.float64]

_FORCING = 0.01
_TO_BOUNDARY = 0.9
_LEAST_DENSITY = 1e-6
"""Below this Newton's steps, which have no barrier at the start, crawl along the boundary."""


@dataclass(frozen=True, eq=False)
class JkoResult:
    """The minimiser of a JKO step and what was found with it."""

    probability: Array
    status: Status
    first_order_residual: float
    """`psi(1) / tau + f(q)` minus its mean, root mean square under `q`."""
    distance: float
    energy: float
    potential: Array
    """The potential with which the geodesic leaves `p`."""
    final_potential: Array
    """The potential with which it arrives: `-tau f(q)` up to a constant."""
    factorisations: int
    iterations: int
    """GMRES iterations."""
    smoothing: float = 0.0
    """The share of the stationary distribution that was mixed into `p` first, as asked for."""


@single_threaded
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

    `tolerance` is for the first-order condition, `path_tolerance` for the relative error of the
    distance (the mesh in time is refined up to twice to meet it, not after 40 factorisations).
    `smoothing` mixes that share of the stationary distribution into `p` first: a `p` with densities
    below 1e-6 needs it (1e-4 will do), and the result is off by as much.
    `solver`: a grounded `LaplacianSolver` of the kernel, to share its analysis between steps.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> step = jko_step(kernel, FreeEnergy([0.0, 1.0], beta=1.0), [0.5, 0.5], tau=0.1)
    >>> step.probability.round(6), bool(step.status)
    (array([0.541597, 0.458403]), True)
    """
    mobility = LogMean() if mobility is None else mobility
    tau = _checks.positive(tau, "tau")
    p = _checks.as_probability(p, kernel.n_states)
    if energy.n_states != kernel.n_states:
        raise InputError(
            f"the potential has {energy.n_states} entries, but the kernel has {kernel.n_states} "
            "states: give one number per state."
        )
    if energy.beta <= 0:
        raise InputError(
            "beta is 0, so nothing keeps the end point of a JKO step off the boundary of the "
            "simplex, where its first-order condition has no finite potential; use a small "
            "positive beta, for instance 1e-3."
        )
    if smoothing:
        if not 0 < smoothing < 1:
            raise InputError(f"smoothing is {smoothing:g}; give a share between 0 and 1.")
        p = (1 - smoothing) * p + smoothing * kernel.stationary
    density = p / kernel.stationary
    if density.min() < _LEAST_DENSITY:
        state = int(np.argmin(density))
        raise InputError(
            f"p has the density {density[state]:.3g} at state {state}; a JKO step starts from "
            f"densities above {_LEAST_DENSITY:g}: pass smoothing=1e-4, which mixes that share of "
            "the stationary distribution into p."
        )
    grounded = LaplacianSolver.for_kernel(kernel, grounded=True) if solver is None else solver
    mesh = TimeMesh.uniform(1, 3)
    step = _Step(kernel, mobility, energy, p, tau, mesh, grounded)
    # The first, linear, step tells how far it goes, and so how fine the mesh must be.
    found = step.solve(np.zeros((mesh.size, kernel.n_edges)), tolerance, 1)
    reach = float(np.sqrt(found.step_size))
    factorisations, iterations, ok = 1, found.iterations, False
    for order, more in ((3, 1), (3, 2), (5, 2), (6, 4)):
        if ok and order == 3:
            continue
        mesh = TimeMesh.uniform(min(40, more * max(1, int(np.ceil(reach)))), order)
        flux, psi, last = step.carry(found, mesh) if ok else (None, None, None)
        step = _Step(kernel, mobility, energy, p, tau, mesh, grounded)
        if flux is None:
            flux = np.zeros((mesh.size, kernel.n_edges))
        barrier = 1e-3 * reach**2 if reach > 1 and not ok else 0.0
        found = step.solve(flux, tolerance, max_steps, psi, last, barrier)
        factorisations += found.factorisations
        iterations += found.iterations
        ok = bool(found.status)
        reach = min(reach, 1.2 * found.distance) if ok else reach
        if ok and (factorisations > 40 or step.path_error(found) <= path_tolerance):
            # A long step that was hard to find is not refined further.
            break
    found = found._replace(factorisations=factorisations, iterations=iterations)
    return step.package(found, smoothing)


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
    `smoothing` is for `p0` alone; a later point with densities below 1e-6 ends the flow.
    """
    if not (isinstance(n_steps, int) and n_steps > 0):
        raise InputError(f"n_steps is {n_steps!r}; give a positive whole number.")
    solver = LaplacianSolver.for_kernel(kernel, grounded=True)
    p = _checks.as_probability(p0, kernel.n_states)
    rows = [p]
    status = Status.CONVERGED
    for k in range(n_steps):
        if status and k > 0 and float((p / kernel.stationary).min()) < _LEAST_DENSITY:
            status = Status.LEFT_SIMPLEX
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


class _Found(NamedTuple):
    flux: Array
    psi: Array
    last: Array
    end: Array
    status: Status
    distance: float
    factorisations: int
    iterations: int
    step_size: float


class _Linear(NamedTuple):
    """The coefficients of one Newton step; `slack` is `1 / (tau F'')` on the diagonal."""

    table: Array
    force: Array
    gain: Array
    slack: Array
    first_variation: Array
    damping: Array


@dataclass(frozen=True, eq=False)
class _Step:
    kernel: MarkovKernel
    mobility: Mobility
    energy: FreeEnergy
    p: Array
    tau: float
    mesh: TimeMesh
    solver: LaplacianSolver

    def value(self, flux: Array, mu: float = 0.0) -> tuple[float, Array, Array, Array]:
        """Half the action plus `tau F` (plus a barrier); the densities, the gains, the end."""
        source, target, _ = self.kernel.edges
        pi = self.kernel.stationary
        gain = stages.flux_gain(source, target, flux, self.kernel.n_states)
        rho = (self.p + self.mesh.forward @ gain) / pi
        end = self.p + self.mesh.weights @ gain
        if not (rho.min() > 0 and end.min() > 0):
            return np.inf, rho, gain, end
        action = stages.flux_action(*self.kernel.edges, rho, flux, self.mobility.spec)
        inner = float(end @ self.energy.potential)
        if self.energy.interaction is not None:
            inner += 0.5 * float(end @ (self.energy.interaction @ end))
        inner += self.energy.beta * float(pi @ self.energy.internal.value(end / pi))
        value = 0.5 * float(self.mesh.weights @ action) + self.tau * inner
        if mu > 0:
            value -= mu * float(self.mesh.weights @ (np.log(rho) @ pi))
        return value, rho, gain, end

    def path_error(self, found: _Found) -> float:
        """The estimated relative error of the length of the step."""
        end = found.end
        path = PathProblem(
            self.kernel, self.mobility.spec, self.p, end, self.mesh, self.solver
        ).length(found.flux)
        return float(path.errors.sum() / max(path.fine.sum(), 1e-300))

    def carry(self, found: _Found, mesh: TimeMesh) -> tuple[Array, Array, Array]:
        """Fluxes and potentials on another mesh, shortened until they stay inside the simplex."""
        matrix = self.mesh.interpolate(*self.mesh.locate(mesh.times))
        flux, psi, last = matrix @ found.flux, matrix @ found.psi, found.last
        other = _Step(self.kernel, self.mobility, self.energy, self.p, self.tau, mesh, self.solver)
        for _ in range(60):
            if np.isfinite(other.value(flux)[0]):
                break
            flux, psi, last = 0.8 * flux, 0.8 * psi, 0.8 * last
        return flux, psi, last

    def solve(
        self,
        flux: Array,
        tolerance: float,
        max_steps: int,
        psi: Array | None = None,
        last: Array | None = None,
        mu: float = 0.0,
    ) -> _Found:
        """Newton; a barrier `mu` keeps a long path off the boundary on the way, then vanishes."""
        pi, weights = self.kernel.stationary, self.mesh.weights
        edges = self.kernel.edges
        energy, beta = self.energy, self.energy.beta
        smallest = 1e-8 * mu
        value, rho, gain, end = self.value(flux, mu)
        psi = np.zeros_like(rho) if psi is None else psi
        last = np.zeros(pi.size) if last is None else last
        iterations, stuck = 0, 0
        distance, size = 0.0, np.inf
        for count in range(1, max_steps + 1):
            table, force, action = stages.linearise(*edges, rho, flux, self.mobility.spec)
            log_rho = np.log(end / pi)
            slack = end / (self.tau * beta * energy.internal.log_slope(log_rho))
            f = energy.external(end) + beta * energy.internal.derivative(log_rho)
            lin = _Linear(table, force - pi * mu / rho, gain, slack, f, pi * mu / rho**2)
            goal, psi, last, used = self._direction(lin, psi, last)
            iterations += used
            distance = float(np.sqrt(weights @ action))
            if not np.isfinite(goal).all():
                return _Found(
                    flux, psi, last, end, Status.NOT_FINITE, distance, count, iterations, size
                )
            move = goal - flux
            change = stages.flux_gain(edges.source, edges.target, move, pi.size)
            ratio = min(
                float((self.mesh.forward @ change / pi / rho).min()),
                float(((weights @ change) / end).min()),
            )
            length = min(1.0, _TO_BOUNDARY / max(-ratio, 1e-300))
            trial = self.value(flux + length * move, mu)
            while not trial[0] <= value + 1e-13 * abs(value) + 1e-300 and length > 1e-8:
                length *= 0.5
                trial = self.value(flux + length * move, mu)
            flux = flux + length * move
            value, rho, gain, end = trial
            if not np.isfinite(value):
                return _Found(
                    flux, psi, last, end, Status.STALLED, distance, count, iterations, size
                )
            size = float(weights @ (move**2 / table[:, :, 0]).sum(axis=1))
            whole = float(weights @ (goal**2 / table[:, :, 0]).sum(axis=1))
            stuck = stuck + 1 if length < 1e-4 else 0
            if stuck == 3:
                return _Found(
                    flux, psi, last, end, Status.STALLED, distance, count, iterations, size
                )
            if mu > 0:
                if length > 0.7:
                    mu = 0.1 * mu if mu > smallest else 0.0
                    value, _, _, _ = self.value(flux, mu)
            elif length == 1.0 and (size <= (0.03 * tolerance) ** 2 * whole or whole == 0.0):
                return _Found(
                    flux, psi, last, end, Status.CONVERGED, distance, count, iterations, size
                )
        return _Found(
            flux, psi, last, end, Status.MAX_ITERATIONS, distance, max_steps, iterations, size
        )

    def _direction(self, lin: _Linear, psi: Array, last: Array) -> tuple[Array, Array, Array, int]:
        """Newton's fluxes and potentials; `last` is the potential at the end."""
        source, target, _ = self.kernel.edges
        pi, mesh, tau = self.kernel.stationary, self.mesh, self.tau
        count, n = psi.shape
        interaction = self.energy.interaction
        to_end = mesh.weights - mesh.forward
        factor = self.solver.factor(
            stages.newton_average(lin.table, mesh.weights), diagonal=lin.slack
        )
        rho = (self.p + mesh.forward @ lin.gain) / pi
        scales = [
            np.sqrt(mesh.weights[:, None] * pi / rho),
            np.sqrt(mesh.weights[:, None] * pi * rho),
            1.0 / np.sqrt(np.maximum(self.p + mesh.weights @ lin.gain, 1e-300))[None],
        ]
        sizes = [count * n, 2 * count * n]

        def image(
            v: Array, q: Array, shift: Array, affine: bool
        ) -> tuple[Array, Array, Array, Array]:
            end = last if affine else np.zeros(n)
            gain, force = stages.newton_product(source, target, lin.table, q + end, v)
            moved = mesh.weights @ gain
            right = -lin.slack * end - moved
            if affine:
                right += mesh.weights @ lin.gain - lin.slack * tau * lin.first_variation
            if interaction is not None:
                right -= lin.slack * tau * (interaction @ shift[0])
            end = end + factor.solve(right, tolerance=1e-3).x
            gain, force = stages.newton_product(source, target, lin.table, q + end, v)
            force = force - lin.damping * v
            if affine:
                gain, force = gain - lin.gain, force - lin.force
            new_shift = (mesh.weights @ gain)[None] if interaction is not None else 0.0 * shift
            return (mesh.forward @ gain) / pi, (to_end @ force) / pi, new_shift, end

        def unpack(y: Array) -> tuple[Array, Array, Array]:
            v, q, shift = np.split(y, sizes)
            return (
                v.reshape(count, n) / scales[0],
                q.reshape(count, n) / scales[1],
                shift.reshape(1, n) / scales[2],
            )

        def pack(v: Array, q: Array, shift: Array) -> Array:
            return np.concatenate(
                [(part * s).ravel() for part, s in zip((v, q, shift), scales, strict=True)]
            )

        def operator(y: Array) -> Array:
            v, q, shift, _ = image(*unpack(y), False)
            return y - pack(v, q, shift)

        first = psi - last
        v, q, shift, _ = image(np.zeros((count, n)), first, np.zeros((1, n)), True)
        right = pack(v, q - first, shift)
        solution = gmres(operator, right, tolerance=_FORCING, max_iterations=120, restart=60)
        v, q, shift = unpack(solution.x)
        q = q + first
        _, _, _, end = image(v, q, shift, True)
        flux = stages.newton_flux(source, target, lin.table, q + end, v)
        return flux, q + end, end, solution.iterations

    def package(self, found: _Found, smoothing: float) -> JkoResult:
        pi, mesh = self.kernel.stationary, self.mesh
        value, rho, _, end = self.value(found.flux)
        _, force, action = stages.linearise(*self.kernel.edges, rho, found.flux, self.mobility.spec)
        # The potential that the fluxes carry, not the one that the first-order condition wants.
        to_end = mesh.weights - mesh.forward
        weight = mesh.weights[:, None] * rho * pi
        guess = found.psi - (to_end @ force) / pi
        final = (weight * guess).sum(axis=0) / weight.sum(axis=0)
        final = final - pi @ final
        first = final + (mesh.weights @ force) / pi
        f = self.energy.external(end)
        f = f + self.energy.beta * self.energy.internal.derivative(np.log(end / pi))
        mismatch = final / self.tau + f
        mismatch = mismatch - end @ mismatch
        distance = float(np.sqrt(mesh.weights @ action))
        return JkoResult(
            end / end.sum(),
            found.status,
            float(np.sqrt(end @ mismatch**2)),
            distance,
            (value - 0.5 * distance**2) / self.tau,
            first - pi @ first,
            final,
            found.factorisations,
            found.iterations,
            smoothing,
        )
