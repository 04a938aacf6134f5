"""Newton's linear system for the collocation equations of a geodesic, solved by GMRES.

The left preconditioner is one solve with the averaged Laplacian for all stages; the right one
solves the equations of fast states, each at all times at once. States that nearly empty are not
unknowns of GMRES: they follow their neighbours.

A state's own density and potential obey, its neighbours held fixed,

    w - J (a w + m q) / mass = r1,    q + J_mid ((k w + a q) / mass) = r2,

with `J`, `J_mid` the integrals over the stages and `m, a, k` the state's diagonal coefficients. The
small dense systems of fast states are inverted sixteen at a time with these innermost, so that
every operation is one of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg._types import Array, Index, Mask, Single
from thalweg.edges import kinetic
from thalweg.laplacian import Factor, balanced
from thalweg.laplacian.krylov import gmres

if TYPE_CHECKING:
    from thalweg.paths.interior.collocation import CollocationEquations
    from thalweg.paths.interior.emptying import Response


Vector = NDArray[Any]
"""A vector of GMRES: single precision is enough for it."""
Step = tuple[Array, Array, Array]

_ITERATIONS = 60
"""Largest number of GMRES iterations per direction."""
_STIFF = 1.0
"""Rate, in units of the path's duration, above which states are solved for locally."""
LANES = 16
"""Number of states inverted side by side."""
_CHUNK = 64
"""Number of groups inverted together: some megabytes of work space."""
_BY_LAPACK = 256
"""Number of states up to which LAPACK's inverses save the compilation of `_reduce`."""
_PIVOT = 1e-4
"""Elimination goes without exchanges of rows while the pivots are larger than this."""


class CollocationSystem:
    """The preconditioned system at one iterate, on vectors of GMRES, with its work space.

    A vector holds the densities' changes, those of the potentials, those of the potentials at the
    middle, scaled so that its norm is that of the residuals.
    """

    def __init__(
        self,
        equations: CollocationEquations,
        r: Array,
        barrier: float,
        response: Response | None,
        invert: Callable[[Array], Array],
    ) -> None:
        problem, b = equations.problem, equations.problem.mesh.weights
        pi, (n, count) = problem.kernel.stationary[:, None], r.shape
        self.equations, self.r, self.barrier = equations, r, barrier
        self.invert, self.response, self.size = invert, response, n * count
        self.mass = pi * r
        self.scale, self.scale_m = np.sqrt(b * self.mass), np.sqrt(self.mass @ b)
        self.light = 1.0 / self.scale
        # The balance over all time enters the densities as if every stage had the same Laplacian.
        self.whole = equations.ends.sum(axis=0)
        self.inner = equations.ends - b[:, None] * self.whole
        self.w, self.q, self.psi = np.empty(r.shape), np.empty(r.shape), np.empty(r.shape)
        self.gain, self.push = np.empty(r.shape), np.empty(r.shape)
        # The effect of a state's own potential and density.
        m, a, k = kinetic.diagonals(problem.graph, equations.table)
        stiff = np.flatnonzero(np.abs(a / self.mass).max(axis=1) > _STIFF)
        own = (m, a, k - barrier * pi)
        self.blocks = invert_blocks(stiff, own, self.mass, equations.ends, equations.mid)

    def direction(self, residuals: Step, forcing: float) -> tuple[Step, int]:
        """Relative changes of the densities, changes of the potentials; GMRES' iterations."""
        r1, r2, r3 = residuals
        right = self.scaled(r1, r2, r3)
        own: Array | None = None
        if self.response is not None:
            out = self.response.clusters.states
            own = np.concatenate([r1[out], r2[out], r3[out, None]], axis=1)
            right = right - self.image(self.unpack(np.zeros_like(right), own))
        solution = gmres(
            lambda y: self.image(self.unpack(y)),
            right,
            tolerance=forcing,
            max_iterations=_ITERATIONS,
            restart=_ITERATIONS,
        )
        middle = self.unpack(solution.x, own)
        return (self.w, self.q, middle), solution.iterations

    def unpack(self, y: Vector, right: Array | None = None) -> Array:
        """The changes a vector stands for, in `w` and `q`, and of the potential at the middle.

        `right` is the right-hand side of the states taken out, zero if absent.
        """
        np.multiply(y[: self.size].reshape(self.w.shape), self.light, out=self.w)
        np.multiply(y[self.size : 2 * self.size].reshape(self.w.shape), self.light, out=self.q)
        if self.blocks.states.size > 0:
            apply_blocks(*self.blocks, self.w, self.q)
        middle = y[2 * self.size :] / self.scale_m
        if self.response is not None:
            self.response.follow(self.w, self.q, middle, right)
        return middle

    def image(self, middle: Array) -> Vector:
        """The image of the changes in `w`, `q` and `middle` under the equations."""
        equations, b = self.equations, self.equations.problem.mesh.weights
        np.add(self.q, middle[:, None], out=self.psi)
        kinetic.product(
            equations.problem.graph, equations.table, self.psi, self.w, self.gain, self.push
        )
        np.divide(self.push, self.mass, out=self.push)
        if self.barrier > 0:
            self.push -= self.barrier * self.w / self.r
        out = np.empty(2 * self.size + middle.size, np.float32)
        scaled = out[: 2 * self.size].reshape(2, *self.w.shape)
        moved, turned = self.gain @ self.inner, self.push @ equations.mid
        np.divide(moved, self.mass, out=moved)
        np.subtract(self.w, moved, out=moved)
        np.multiply(moved, self.scale, out=scaled[0], casting="same_kind")
        np.add(self.q, turned, out=turned)
        np.multiply(turned, self.scale, out=scaled[1], casting="same_kind")
        return self._finish(out, self.gain @ b, turned @ b)

    def scaled(self, r1: Array, r2: Array, r3: Array) -> Vector:
        """The residuals, preconditioned and scaled as the equations are."""
        b = self.equations.problem.mesh.weights
        out = np.empty(2 * self.size + r3.size, np.float32)
        r1 = r1 + r3[:, None] * self.whole / self.mass
        out[: self.size] = (r1 * self.scale).ravel()
        out[self.size : 2 * self.size] = (r2 * self.scale).ravel()
        return self._finish(out, r3, r2 @ b)

    def _finish(self, out: Vector, balance: Array, lag: Array) -> Vector:
        out[2 * self.size :] = (self.invert(balance) - lag) * self.scale_m
        if self.response is not None:
            gone = self.response.clusters.states
            out[: 2 * self.size].reshape(2, *self.w.shape)[:, gone] = 0.0
            out[2 * self.size + gone] = 0.0
        return out


def inverse(factor: Factor, tolerance: float) -> Callable[[Array], Array]:
    """`b -> M^+ b`, loosely; without the checks of `Factor.solve` if the factor is sound."""
    prepared = factor.prepared
    if prepared is None or factor.piece is not None:
        return lambda b: factor.solve(balanced(b), tolerance=tolerance).x

    def apply(b: Array) -> Array:
        x = prepared.roughly(balanced(b), tolerance)
        return np.asarray((x - x.mean()) / factor.scale)

    return apply


class LocalBlocks(NamedTuple):
    """The inverses for `states`, sixteen to a group; a group that is not full repeats its last."""

    states: Index
    inverse: Single
    """`(groups, 2 stages, 2 stages, 16)`."""


def invert_blocks(
    states: Index, diagonals: tuple[Array, Array, Array], mass: Array, ends: Array, mid: Array
) -> LocalBlocks:
    """The inverses of the equations above; `ends`, `mid` hold the integrals in their columns."""
    size = 2 * mass.shape[1]
    groups = -(-states.size // LANES)
    full = np.resize(states, groups * LANES) if states.size else states
    full[states.size :] = states[-1:]
    inverse = np.empty((groups, size, size, LANES), np.float32)
    for start in range(0, groups, _CHUNK):
        part = slice(start, min(start + _CHUNK, groups))
        chosen = full[part.start * LANES : part.stop * LANES].reshape(-1, LANES)
        work = local_blocks(chosen, diagonals, mass, ends, mid)
        sound = np.zeros(len(chosen), np.bool_)
        if states.size > _BY_LAPACK:
            _reduce(work, sound)
        if not sound.all():
            odd = ~sound
            blocks = np.moveaxis(local_blocks(chosen[odd], diagonals, mass, ends, mid), 3, 1)
            work[odd] = np.moveaxis(np.linalg.inv(blocks), 1, 3)
        inverse[part] = work
    return LocalBlocks(full, inverse)


@njit(cache=True, error_model="numpy")
def local_blocks(
    states: Index, diagonals: tuple[Array, Array, Array], mass: Array, ends: Array, mid: Array
) -> Array:
    """The equations' matrices, `(groups, 2 stages, 2 stages, lanes)`, for `(groups, lanes)`."""
    (groups, lanes), (m, a, k), count = states.shape, diagonals, mass.shape[1]
    work = np.empty((groups, 2 * count, 2 * count, lanes))
    for g in range(groups):
        for lane in range(lanes):
            x = states[g, lane]
            for j in range(count):
                light = 1.0 / mass[x, j]
                for i in range(count):
                    own = ends[j, i] / mass[x, i]
                    work[g, i, j, lane] = -own * a[x, j]
                    work[g, i, count + j, lane] = -own * m[x, j]
                    work[g, count + i, j, lane] = mid[j, i] * k[x, j] * light
                    work[g, count + i, count + j, lane] = mid[j, i] * a[x, j] * light
            for i in range(2 * count):
                work[g, i, i, lane] += 1.0
    return work


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _reduce(work: Array, sound: Mask) -> None:
    """Invert the matrices in place by Gauss and Jordan; `sound`: groups with no small pivot."""
    groups, size, _, lanes = work.shape
    factor = np.empty(lanes)
    for g in range(groups):
        fine = True
        for p in range(size):
            for lane in range(lanes):
                fine = fine and abs(work[g, p, p, lane]) > _PIVOT
                factor[lane] = 1.0 / work[g, p, p, lane]
                work[g, p, p, lane] = 1.0
            for j in range(size):
                for lane in range(lanes):
                    work[g, p, j, lane] *= factor[lane]
            for i in range(size):
                if i == p:
                    continue
                for lane in range(lanes):
                    factor[lane] = work[g, i, p, lane]
                    work[g, i, p, lane] = 0.0
                for j in range(size):
                    for lane in range(lanes):
                        work[g, i, j, lane] -= factor[lane] * work[g, p, j, lane]
        sound[g] = fine


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def apply_blocks(states: Index, inverse: Single, w: Array, q: Array) -> None:
    """Replace `w, q` of the states, in place, by the inverses times them."""
    groups, size = inverse.shape[:2]
    count = size // 2
    before = np.empty((size, LANES))
    after = np.empty((size, LANES))
    for g in range(groups):
        for lane in range(LANES):
            x = states[g * LANES + lane]
            for i in range(count):
                before[i, lane] = w[x, i]
                before[count + i, lane] = q[x, i]
        for i in range(size):
            for lane in range(LANES):
                after[i, lane] = 0.0
            for j in range(size):
                for lane in range(LANES):
                    after[i, lane] += inverse[g, i, j, lane] * before[j, lane]
        for lane in range(LANES):
            x = states[g * LANES + lane]
            for i in range(count):
                w[x, i] = after[i, lane]
                q[x, i] = after[count + i, lane]
