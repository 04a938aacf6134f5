"""Newton's linear system for the collocation equations of a geodesic, solved by GMRES.

One solve with the averaged Laplacian stands for all stages on the left; on the right stand, for
states that react fast, their own equations at all times at once. States that all but empty are not
unknowns of GMRES: they follow their neighbours.

A state's own density and potential obey, its neighbours held fixed,

    w - J (a w + m q) / mass = r1,    q + J_mid ((k w + a q) / mass) = r2,

with `J`, `J_mid` the integrals over the stages and `m, a, k` the state's diagonal coefficients. The
small dense systems of fast states are inverted sixteen at a time with these innermost, so that
every operation is one of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg.edges import packed
from thalweg.laplacian import Factor, balanced
from thalweg.laplacian.krylov import gmres
from thalweg.paths.interior.emptying import Response
from thalweg.paths.problem import PathProblem

__all__ = [
    "CollocationSystem",
    "LocalBlocks",
    "apply_blocks",
    "fill_block",
    "inverse",
    "invert_blocks",
]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Vector = NDArray[Any]
"""A vector of GMRES: single precision is enough for it."""
States = NDArray[np.int64]
Step = tuple[Array, Array, Array]

_STIFF = 1.0
"""States that react faster than this, in units of the path's duration, are solved for locally."""
LANES = 16
_PIVOT = 1e-4
"""Elimination goes without exchanges of rows while the pivots are larger than this."""


@dataclass(frozen=True, eq=False)
class CollocationSystem:
    """The coefficients at one iterate: densities `(states, stages)`, `table`, integrals."""

    problem: PathProblem
    table: Single
    r: Array
    ends: Array
    mid: Array
    barrier: float
    diagonals: tuple[Array, Array, Array]
    """What a state's own potential and density do: `M`, `A`, `K`, the barrier included."""
    response: Response | None
    """How the states follow that are taken out."""

    def direction(
        self, residuals: Step, factor: Factor, forcing: float, max_iterations: int
    ) -> tuple[Step, int]:
        """Relative changes of the densities, changes of the potentials; GMRES' iterations."""
        operator = _Operator(self, inverse(factor, 0.1 * forcing))
        r1, r2, r3 = residuals
        right = operator.scaled(r1, r2, r3)
        own: Array | None = None
        if self.response is not None:
            out = self.response.clusters.states
            own = np.concatenate([r1[out], r2[out], r3[out, None]], axis=1)
            right = right - operator.image(operator.unpack(np.zeros_like(right), own))
        solution = gmres(
            lambda y: operator.image(operator.unpack(y)),
            right,
            tolerance=forcing,
            max_iterations=max_iterations,
            restart=60,
        )
        middle = operator.unpack(solution.x, own)
        return (operator.w, operator.q, middle), solution.iterations


class _Operator:
    """The preconditioned system on vectors of GMRES, with room for what it works on.

    A vector holds the densities' changes, those of the potentials, those of the potentials at the
    middle, scaled so that its norm is that of the residuals.
    """

    def __init__(self, system: CollocationSystem, invert: Callable[[Array], Array]) -> None:
        b = system.problem.mesh.weights
        n, count = shape = system.r.shape
        self.system, self.invert, self.size = system, invert, n * count
        self.mass = system.problem.kernel.stationary[:, None] * system.r
        self.scale, self.scale_m = np.sqrt(b * self.mass), np.sqrt(self.mass @ b)
        # The balance over all time enters the densities as if every stage had the same Laplacian.
        self.whole = system.ends.sum(axis=0)
        self.inner = system.ends - b[:, None] * self.whole
        self.w, self.q, self.psi = np.empty(shape), np.empty(shape), np.empty(shape)
        self.gain, self.push = np.empty(shape), np.empty(shape)
        rates = np.abs(system.diagonals[1] / self.mass).max(axis=1)
        stiff = np.flatnonzero(rates > _STIFF)
        self.blocks = invert_blocks(stiff, system.diagonals, self.mass, system.ends, system.mid)

    def unpack(self, y: Vector, right: Array | None = None) -> Array:
        """The changes a vector stands for, in `w` and `q`, and of the potential at the middle.

        `right`: what the equations of the states taken out are to give, zero if absent.
        """
        _spread(y[: 2 * self.size], self.scale, self.w, self.q)
        apply_blocks(*self.blocks, self.w, self.q)
        middle = y[2 * self.size :] / self.scale_m
        if self.system.response is not None:
            self.system.response.follow(self.w, self.q, middle, right)
        return middle

    def image(self, middle: Array) -> Vector:
        """What the equations give for the changes in `w`, `q` and `middle`."""
        system, b = self.system, self.system.problem.mesh.weights
        source, target, _ = system.problem.kernel.edges
        np.add(self.q, middle[:, None], out=self.psi)
        packed.product(source, target, system.table, self.psi, self.w, self.gain, self.push)
        np.divide(self.push, self.mass, out=self.push)
        if system.barrier > 0:
            self.push -= system.barrier * self.w / system.r
        out = np.empty(2 * self.size + middle.size, np.float32)
        moved, turned = self.gain @ self.inner, self.push @ system.mid
        lag = _gather(self.w, self.q, moved, turned, self.mass, self.scale, b, out)
        return self._finish(out, self.gain @ b, lag)

    def scaled(self, r1: Array, r2: Array, r3: Array) -> Vector:
        """The residuals, preconditioned and scaled as the equations are."""
        b = self.system.problem.mesh.weights
        out = np.empty(2 * self.size + r3.size, np.float32)
        r1 = r1 + r3[:, None] * self.whole / self.mass
        out[: self.size] = (r1 * self.scale).ravel()
        out[self.size : 2 * self.size] = (r2 * self.scale).ravel()
        return self._finish(out, r3, r2 @ b)

    def _finish(self, out: Vector, balance: Array, lag: Array) -> Vector:
        out[2 * self.size :] = (self.invert(balance) - lag) * self.scale_m
        if self.system.response is not None:
            gone = self.system.response.clusters.states
            out[: 2 * self.size].reshape(2, *self.w.shape)[:, gone] = 0.0
            out[2 * self.size + gone] = 0.0
        return out


@njit(cache=True, error_model="numpy")
def _spread(y: Single, scale: Array, w: Array, q: Array) -> None:
    n, count = w.shape
    for x in range(n):
        for i in range(count):
            light = 1.0 / scale[x, i]
            w[x, i] = y[x * count + i] * light
            q[x, i] = y[(n + x) * count + i] * light


@njit(cache=True, error_model="numpy")
def _gather(
    w: Array,
    q: Array,
    moved: Array,
    turned: Array,
    mass: Array,
    scale: Array,
    weights: Array,
    out: Single,
) -> Array:
    """The equations' left-hand sides, scaled, in `out`; the average of the potentials'."""
    n, count = w.shape
    lag = np.empty(n)
    for x in range(n):
        late = 0.0
        for i in range(count):
            potential = q[x, i] + turned[x, i]
            late += potential * weights[i]
            out[x * count + i] = (w[x, i] - moved[x, i] / mass[x, i]) * scale[x, i]
            out[(n + x) * count + i] = potential * scale[x, i]
        lag[x] = late
    return lag


def inverse(factor: Factor, tolerance: float) -> Callable[[Array], Array]:
    """`b -> M^+ b`, loosely; without the checks of `Factor.solve` where the factor is sound."""
    prepared = factor.prepared
    if prepared is None or factor.piece is not None:
        return lambda b: factor.solve(balanced(b), tolerance=tolerance).x

    def apply(b: Array) -> Array:
        x = prepared.roughly(balanced(b), tolerance)
        return np.asarray((x - x.mean()) / factor.scale)

    return apply


class LocalBlocks(NamedTuple):
    """The inverses for `states`, sixteen to a group; a group that is not full repeats its last."""

    states: States
    inverse: Single
    """`(groups, 2 stages, 2 stages, 16)`."""


def invert_blocks(
    states: States, diagonals: tuple[Array, Array, Array], mass: Array, ends: Array, mid: Array
) -> LocalBlocks:
    """The inverses of the equations above; `ends`, `mid` hold the integrals in their columns."""
    size = 2 * mass.shape[1]
    groups = -(-states.size // LANES)
    full = np.resize(states, groups * LANES) if states.size else states
    full[states.size :] = states[-1:]
    inverse = np.empty((groups, size, size, LANES), np.float32)
    sound = np.empty(groups, np.bool_)
    _invert(full, *diagonals, mass, ends, mid, inverse, sound)
    block = np.empty((size, size, LANES))[:, :, 0]
    m, a, k = diagonals
    for g in np.flatnonzero(~sound):
        for lane, x in enumerate(full[g * LANES : (g + 1) * LANES]):
            fill_block(block, m[x], a[x], k[x], mass[x], ends, mid)
            inverse[g, :, :, lane] = np.linalg.inv(block)
    return LocalBlocks(full, inverse)


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _invert(
    states: States,
    m: Array,
    a: Array,
    k: Array,
    mass: Array,
    ends: Array,
    mid: Array,
    inverse: Single,
    sound: NDArray[np.bool_],
) -> None:
    """Inverses of the groups whose pivots are large enough; `sound` marks these."""
    groups, size = inverse.shape[:2]
    work = np.empty((size, size, LANES))
    for g in range(groups):
        for lane in range(LANES):
            x = states[g * LANES + lane]
            fill_block(work[:, :, lane], m[x], a[x], k[x], mass[x], ends, mid)
        sound[g] = _reduce(work)
        if sound[g]:
            for i in range(size):
                for j in range(size):
                    for lane in range(LANES):
                        inverse[g, i, j, lane] = work[i, j, lane]


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _reduce(work: Array) -> bool:
    """Gauss and Jordan: the inverses, in place; false if a pivot was small."""
    size, lanes = work.shape[1:]
    factor = np.empty(lanes)
    sound = True
    for p in range(size):
        for lane in range(lanes):
            sound = sound and abs(work[p, p, lane]) > _PIVOT
            factor[lane] = 1.0 / work[p, p, lane]
            work[p, p, lane] = 1.0
        for j in range(size):
            row = work[p, j]
            for lane in range(lanes):
                row[lane] *= factor[lane]
        for i in range(size):
            if i == p:
                continue
            for lane in range(lanes):
                factor[lane] = work[i, p, lane]
                work[i, p, lane] = 0.0
            for j in range(size):
                row, top = work[i, j], work[p, j]
                for lane in range(lanes):
                    row[lane] -= factor[lane] * top[lane]
    return sound


@njit(cache=True, error_model="numpy")
def fill_block(
    block: Array, m: Array, a: Array, k: Array, mass: Array, ends: Array, mid: Array
) -> None:
    count = m.size
    for j in range(count):
        pull, push = k[j] / mass[j], a[j] / mass[j]
        for i in range(count):
            block[i, j] = -ends[j, i] * a[j]
            block[i, count + j] = -ends[j, i] * m[j]
            block[count + i, j] = mid[j, i] * pull
            block[count + i, count + j] = mid[j, i] * push
    for i in range(count):
        light = 1.0 / mass[i]
        for j in range(2 * count):
            block[i, j] *= light
        block[i, i] += 1.0
        block[count + i, count + i] += 1.0


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def apply_blocks(states: States, inverse: Single, w: Array, q: Array) -> None:
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
