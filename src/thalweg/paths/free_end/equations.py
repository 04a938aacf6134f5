"""The collocation equations of a path with a free end, and Newton's system by GMRES.

Unknowns at the stages of a mesh in time are the densities `R` and the potentials `P`; at the end
the potential `last` and the logarithm `y` of the end density. With `e = pi exp(y)`,

    r1 = start + J (M(R) P) / pi - R,     r2 = last + (integral from each stage to 1 of force) - P,
    r3 = p + sum_i b_i M_i P_i - e,       r4 = last + tau f(e).

A change of the end density is `de = -slack (r4 + dlast)`, `slack = 1 / (tau F'')`: zero where the
end nearly empties a state, so that its potential there is free, as a multiplier is. Late densities
are integrated backwards from `e`, so none is a difference of large numbers. The end density moves
in its logarithm where it falls: Newton in the density itself would overshoot zero as soon as `f`
requires less than `1 / e` of it, and `exp(-V / beta)` may be far away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import wrightomega

from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.edges.static import degrees
from thalweg.laplacian import Factor
from thalweg.laplacian.krylov import gmres
from thalweg.paths.end import FreeEnd
from thalweg.paths.newton import Pace, bent, norm
from thalweg.paths.problem import PathProblem

PACE = Pace(last_barrier=1e-4, stale=10, start=0.05, doubts=True)
_SMALL = 1e-4
"""Density below which single precision is not enough for a Newton step."""
_STILL = 1e-7
"""Length below which a path counts as constant; residuals are relative to it."""


class State(NamedTuple):
    """Densities and potentials less `last` at the stages, `(states, stages)`; `last`; `y`."""

    rho: Array
    q: Array
    last: Array
    y: Array

    @property
    def psi(self) -> Array:
        return self.q + self.last[:, None]


class _Change(NamedTuple):
    """Relative changes of the densities, changes of the rest of a `State`."""

    w: Array
    q: Array
    last: Array
    y: Array
    stiffness: Array
    """Stiffness of the end's mass under the potential, relative to that under its entropy."""


class _Here(NamedTuple):
    """Gains and forces (states, stages), the average of the weights, the residuals."""

    gain: Array
    force: Array
    speed: float
    average: Array
    end: Array
    give: Array
    """`slack / end`: the change of `y` for one of the potential."""
    r1: Array
    """Residuals of the densities, relative to them."""
    r2: Array
    r3: Array
    r4: Array
    rest: float
    """The size of the residuals."""

    @property
    def size(self) -> float:
        return float(self.rest / max(self.speed, _STILL))


class FreeEquations:
    """The equations on one mesh; `table` holds the coefficients at the last iterate evaluated."""

    def __init__(self, problem: PathProblem) -> None:
        assert problem.end is not None
        mesh = problem.mesh
        self.problem, self.end = problem, problem.end
        self.ends = np.ascontiguousarray(mesh.from_ends.T)
        self.to_end = np.ascontiguousarray((mesh.weights - mesh.forward).T)
        self.careful = False
        self.table: NDArray[np.floating] = np.empty(
            (problem.kernel.n_edges, 6, mesh.size), np.float32
        )

    def rates(self, state: State) -> tuple[Array, Array, Array, Array]:
        """`M psi`, the forces and the actions at the stages, the average of the weights."""
        mesh, graph = self.problem.mesh, self.problem.graph
        return kinetic.linearise(graph, state.rho, state.psi, mesh.weights, self.table)

    def look(self, at: State, barrier: float, tolerance: float) -> _Here:
        problem, free, b = self.problem, self.end, self.problem.mesh.weights
        pi = problem.kernel.stationary
        gain, force, action, average = self.rates(at)
        end = pi * np.exp(at.y)
        base = np.where(problem.mesh.late, (end / pi)[:, None], (problem.p0 / pi)[:, None])
        r1 = (base + gain @ self.ends / pi[:, None] - at.rho) / at.rho
        r3 = problem.p0 + gain @ b - end
        r4 = at.last + free.tau * free.first_variation(end, at.y)
        speed = float(np.sqrt(b @ action))
        give = 1.0 / free.slope(at.y)
        here = _Here(gain, force, speed, average, end, give, r1, r1, r3, r4, np.inf)
        return self.with_barrier(at, here, barrier)

    def with_barrier(self, at: State, here: _Here, barrier: float) -> _Here:
        free, pi = self.end, self.problem.kernel.stationary[:, None]
        scale = np.sqrt(self.problem.mesh.weights * pi * at.rho)
        r2 = (here.force / pi + barrier / at.rho) @ self.to_end - at.q
        # Where the potential requires more mass, it is weighted by that mass, not the present one.
        more = np.maximum(at.y, np.minimum(at.y - here.r4 * here.give, 0.0))
        pull = norm(here.r4 * np.sqrt(pi[:, 0] * np.exp(more)))
        rest = max(norm(here.r1 * scale), float(np.abs(here.r3).sum()), pull)
        # Mass missing where there is little of it is an error of the first variation.
        lacking = np.log1p(np.abs(here.r3) / np.maximum(here.end, 1e-300)) * np.sqrt(here.end)
        rest = max(rest, norm(lacking * free.slope(at.y)) / max(1.0, free.tau))
        return here._replace(r2=r2, rest=max(rest, norm(r2 * scale)))

    def factor(self, here: _Here) -> Factor:
        return self.problem.solver.factor(here.average, diagonal=here.end * here.give)

    def sharpened(self, at: State, forcing: float) -> float:
        if not self.careful and (forcing < 0.01 or at.rho.min() < _SMALL):
            self.careful, self.table = True, self.table.astype(np.float64)
            return min(forcing, 1e-3)
        return forcing

    def move(self, at: State, step: _Change, length: float) -> State:
        return State(
            bent(at.rho, length * step.w),
            at.q + length * step.q,
            at.last + length * step.last,
            at.y + _log_step(length * step.y, step.stiffness),
        )

    def direction(
        self, at: State, here: _Here, factor: Factor, barrier: float, forcing: float
    ) -> tuple[_Change, int]:
        system = _System(self, at, here, factor, barrier, 0.1 * forcing)
        iterations = 150 if self.careful else 60
        solution = gmres(
            system.operator,
            system.right(),
            tolerance=forcing,
            max_iterations=iterations,
            restart=iterations,
        )
        w, q, last, pull = system.finish(solution.x)
        own = degrees(*self.problem.kernel.edges[:2], here.average, at.y.size)
        stiffness = np.asarray(own / np.maximum(here.end * here.give, 1e-300))
        return _Change(w, q, last, -here.give * pull, stiffness), solution.iterations


class _System:
    """Newton's system at one iterate, preconditioned by one solve with the averaged Laplacian."""

    def __init__(
        self,
        equations: FreeEquations,
        at: State,
        here: _Here,
        factor: Factor,
        barrier: float,
        tolerance: float,
    ) -> None:
        problem = equations.problem
        self.equations, self.here, self.factor, self.tolerance = equations, here, factor, tolerance
        self.rho, self.slack = at.rho, here.end * here.give
        self.pi, self.b = problem.kernel.stationary[:, None], problem.mesh.weights
        self.late = problem.mesh.late.astype(np.float64)
        self.damping = barrier / at.rho
        """What the barrier adds to the curvature."""
        n, count = at.rho.shape
        self.block, self.whole = n * count, equations.ends.sum(axis=0)
        self.gain, self.push = np.empty((n, count)), np.empty((n, count))
        self.scale_w = np.sqrt(self.b * self.pi * np.maximum(at.rho, 1.0))
        self.scale = np.sqrt(self.b * self.pi * at.rho)
        if equations.careful:
            # In these units an error of a potential counts as that of the density which it makes.
            mobile, _, _ = kinetic.diagonals(problem.graph, equations.table)
            self.scale = self.scale_w * np.maximum(mobile / (self.pi * at.rho), 1.0)
        self.scale_last = np.sqrt((self.scale**2).sum(axis=1))
        self.scale_end = 1.0 / np.sqrt(np.maximum(here.end, 1e-60))

    def _act(self, shift: Array | None) -> Array | float:
        """The effect of a shift of the end's mass on its potential through the interaction."""
        end: FreeEnd = self.equations.end
        if shift is None or end.energy.interaction is None:
            return 0.0
        return np.asarray(end.tau * (end.energy.interaction @ shift))

    def _precondition(self, o1: Array, o2: Array, o3: Array, o4: Array | None) -> Array:
        # As if every stage had the averaged Laplacian: exact for infinitely short steps.
        mean = o2 @ self.b
        last = self.factor.solve(o3 + self.slack * mean, tolerance=self.tolerance).x - mean
        moved = self.slack * last
        o1 = o1 + ((o3 - moved)[:, None] * self.whole - moved[:, None] * self.late) / (
            self.pi * self.rho
        )
        parts = [(o1 * self.scale_w).ravel(), (o2 * self.scale).ravel(), last * self.scale_last]
        if o4 is not None:
            parts.append((o4 - moved) * self.scale_end)
        return np.concatenate(parts, dtype=self.equations.table.dtype, casting="same_kind")

    def _unpack(self, v: Array) -> tuple[Array, Array, Array, Array | None]:
        """Relative changes, potentials, the last one; the shift of the end if states interact."""
        block, n = self.block, self.pi.size
        w = v[:block].reshape(self.rho.shape) / self.scale_w
        q = v[block : 2 * block].reshape(self.rho.shape) / self.scale
        last = v[2 * block : 2 * block + n] / self.scale_last
        shift = v[2 * block + n :] / self.scale_end if v.size > 2 * block + n else None
        return w, q, last, shift

    def _product(self, w: Array, q: Array, last: Array) -> None:
        graph, table = self.equations.problem.graph, self.equations.table
        kinetic.product(graph, table, q + last[:, None], w, self.gain, self.push)

    def operator(self, v: Array) -> Array:
        w, q, last, shift = self._unpack(v)
        self._product(w, q, last)
        mass = self.pi * self.rho
        moved = self.slack * (last + self._act(shift))
        o1 = w - (self.gain @ self.equations.ends - moved[:, None] * self.late) / mass
        o2 = q - (self.push / mass - self.damping * w) @ self.equations.to_end
        o3 = self.gain @ self.b + moved
        return self._precondition(o1, o2, o3, None if shift is None else shift + moved)

    def right(self) -> Array:
        here, known = self.here, self.slack * self.here.r4
        alone = self.equations.end.energy.interaction is None
        return self._precondition(
            here.r1 - known[:, None] * self.late / (self.pi * self.rho),
            here.r2,
            -here.r3 - known,
            None if alone else -known,
        )

    def finish(self, v: Array) -> tuple[Array, Array, Array, Array]:
        """The changes of a solution, and the pull on the end."""
        w, q, last, shift = self._unpack(v)
        known = self.slack * self.here.r4
        for _ in range(2):
            # The end's mass to more digits: its logarithm follows the potential with a large
            # factor.
            self._product(w, q, last)
            moved = self.slack * (last + self._act(shift))
            defect = -self.here.r3 - known - self.gain @ self.b - moved
            last = last + self.factor.solve(defect, tolerance=self.tolerance).x
        return w, q, last, np.asarray(self.here.r4 + last + self._act(shift))


def _log_step(dy: Array, stiffness: Array) -> Array:
    """`x` with `exp(x) + k x = 1 + dy + k dy`: the step of an end density whose rest is linear.

    The end's mass obeys `r3`, linear in `exp(x)`, and its potential `r4`, linear in `x`; `k` is how
    much stiffer the potential holds than the mass. A step of Newton's is one of the two limits.
    """
    k = np.clip(stiffness, 1e-12, 1e12)
    right = 1.0 + dy + k * dy
    u = wrightomega(right / k - np.log(k))
    return np.where(k > 1.0, right / k - u, np.log(np.maximum(k * u, 1e-300)))
