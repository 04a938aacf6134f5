"""Newton's system for a path on a staggered mesh, by sparse elimination in space.

Unknowns: the change `x` of the density at the inner nodes in time, and the new potential `psi` on
the intervals between them. With `v = (x_{k-1} + x_k) / 2` on interval `k`, of width `h`,

    pi (x_k - x_{k-1}) - h (A v + M psi_k) = right_psi,
    pi (psi_k - psi_{k+1}) - (h/2) (A^T psi + K v)_k - (h/2) (A^T psi + K v)_{k+1} + d x_k = right_x

is symmetric and quasi-definite: positive in `x` (a concave mean makes `-K` so, and the barrier
gives `d > 0`), negative in `psi`. All times of a state are eliminated together, the states in an
order with little fill (`elimination_order`). Each front is scaled and pivoted: near an empty end
point densities span dozens of decades, and two Cholesky factorisations lose what LU keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from thalweg.geometry.elimination_order import Elimination, Front
from thalweg.kernel import MarkovKernel

__all__ = ["SignedFactor", "SpaceTime", "SparseFactor"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpaceTime:
    """The symmetric system at one iterate: `x` has one row less than `psi`."""

    kernel: MarkovKernel
    widths: Array
    table: Array
    """Per interval and edge: `c m, c g m_s, c g m_t, c g^2 m''/2` (three)."""
    damping: Array
    """`d`, at the inner nodes."""
    scale: tuple[Array, Array]
    """Units of `x` and of `psi` in which the entries are of order one."""

    def product(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The matrix times `(x, psi)`."""
        source, target, _ = self.kernel.edges
        return _product(
            source, target, self.kernel.stationary, self.widths, self.table, self.damping, x, psi
        )


@njit(cache=True)
def _product(
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    pi: Array,
    h: Array,
    table: Array,
    damping: Array,
    x: Array,
    psi: Array,
) -> tuple[Array, Array]:
    count, n = psi.shape
    top, bottom = damping * x, np.zeros((count, n))
    v, force = np.zeros(n), np.zeros(n)
    for k in range(count):
        for i in range(n):
            after = x[k, i] if k < count - 1 else 0.0
            before = x[k - 1, i] if k > 0 else 0.0
            v[i] = 0.5 * (before + after)
            force[i] = 0.0
            bottom[k, i] = pi[i] * (after - before)
        for e in range(source.size):
            p, q = source[e], target[e]
            difference = psi[k, p] - psi[k, q]
            a, b = table[k, e, 1], table[k, e, 2]
            flux = h[k] * (table[k, e, 0] * difference + a * v[p] + b * v[q])
            bottom[k, p] -= flux
            bottom[k, q] += flux
            cross = table[k, e, 4]
            force[p] += a * difference + table[k, e, 3] * v[p] + cross * v[q]
            force[q] += b * difference + cross * v[p] + table[k, e, 5] * v[q]
        for i in range(n):
            half = 0.5 * h[k] * force[i]
            if k < count - 1:
                top[k, i] += pi[i] * psi[k, i] - half
            if k > 0:
                top[k - 1, i] -= pi[i] * psi[k, i] + half
    return top, bottom


class SparseFactor:
    """The system factorised front by front, scaled, with pivots: for any range of densities."""

    def __init__(self, system: SpaceTime, order: Elimination) -> None:
        self.order = order
        self.count = count = system.widths.size
        self.scale = system.scale
        sx, sp = (np.ascontiguousarray(s.T) for s in system.scale)
        waiting: dict[int, list[tuple[Index, Array]]] = {}
        self.parts: list[tuple[Array, NDArray[np.int32], Array]] = []
        for g, front in enumerate(order.fronts):
            matrix = _assemble(system, front)
            _rescale(matrix.T, front.states, front.border, sx, sp)
            for places, update in waiting.pop(g, []):
                _extend(matrix.T, update, places, front.states.size, count)
            cut = front.states.size * (2 * count - 1)
            pivot = np.asfortranarray(matrix[:cut, :cut])
            _mirror(pivot.T)
            lu, swaps, _ = lapack.dgetrf(pivot, overwrite_a=1)
            ahead = np.zeros((cut, 0))
            if front.border.size:
                below = np.asfortranarray(matrix[cut:, :cut])
                ahead, _ = lapack.dgetrs(lu, swaps, np.asfortranarray(below.T), overwrite_b=1)
                rest = np.asfortranarray(matrix[cut:, cut:])
                update = blas.dgemm(-1.0, below, ahead, beta=1.0, c=rest, overwrite_c=1)
                waiting.setdefault(front.parent, []).append((front.places, update))
            self.parts.append((lu, swaps, ahead))

    def solve(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The solution for the right-hand sides of the two kinds of rows."""
        sx, sp = self.scale
        x, psi = (sx * x).T.copy(), (sp * psi).T.copy()
        cut = self.count - 1
        kept = []
        for front, (_, _, ahead) in zip(self.order.fronts, self.parts, strict=True):
            own = np.concatenate([x[front.states].ravel(), psi[front.states].ravel()])
            if front.border.size:
                left = (ahead.T @ own).reshape(front.border.size, -1)
                x[front.border] -= left[:, :cut]
                psi[front.border] -= left[:, cut:]
            kept.append(own)
        for front, (lu, swaps, ahead), own in zip(
            reversed(self.order.fronts), reversed(self.parts), reversed(kept), strict=True
        ):
            found, _ = lapack.dgetrs(lu, swaps, own)
            states, border = front.states, front.border
            if border.size:
                found -= ahead @ np.concatenate([x[border], psi[border]], axis=1).ravel()
            x[states] = found[: states.size * cut].reshape(states.size, -1)
            psi[states] = found[states.size * cut :].reshape(states.size, -1)
        return sx * x.T, sp * psi.T


class SignedFactor:
    """The same by two Cholesky factorisations a front, `x` then `psi`: half the work.

    `broken` if a pivot has the wrong sign; where `d` is tiny the solution loses digits.
    """

    def __init__(self, system: SpaceTime, order: Elimination) -> None:
        self.order = order
        self.count = count = system.widths.size
        self.broken = False
        waiting: dict[int, list[tuple[Index, Array]]] = {}
        self.parts: list[tuple[Array, Array, Array, Array]] = []
        for g, front in enumerate(order.fronts):
            matrix = _assemble(system, front)
            for places, update in waiting.pop(g, []):
                _extend(matrix.T, update, places, front.states.size, count)
            nx, both = front.states.size * (count - 1), front.states.size * (2 * count - 1)
            first, bad = lapack.dpotrf(matrix[:nx, :nx], lower=1, clean=1)
            if bad:
                self.broken = True
                return
            below = blas.dtrsm(1.0, first, matrix[nx:, :nx], side=1, lower=1, trans_a=1)
            rest = blas.dsyrk(-1.0, below, beta=1.0, c=matrix[nx:, nx:], lower=1)
            second, bad = lapack.dpotrf(-rest[: both - nx, : both - nx], lower=1, clean=1)
            if bad:
                self.broken = True
                return
            left = rest[both - nx :, : both - nx]
            if front.border.size:
                left = blas.dtrsm(1.0, second, left, side=1, lower=1, trans_a=1)
                corner = rest[both - nx :, both - nx :]
                update = blas.dsyrk(1.0, left, beta=1.0, c=corner, lower=1)
                waiting.setdefault(front.parent, []).append((front.places, update))
            self.parts.append((first, below, second, left))

    def solve(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The solution for the right-hand sides of the two kinds of rows."""
        x, psi = x.T.copy(), psi.T.copy()
        kept = []
        for front, (one, below, two, left) in zip(self.order.fronts, self.parts, strict=True):
            first = blas.dtrsv(one, x[front.states].ravel(), lower=1)
            rest = below @ first
            cut = two.shape[0]
            second = blas.dtrsv(two, psi[front.states].ravel() - rest[:cut], lower=1)
            if front.border.size:
                passed = (rest[cut:] - left @ second).reshape(front.border.size, -1)
                x[front.border] -= passed[:, : self.count - 1]
                psi[front.border] -= passed[:, self.count - 1 :]
            kept.append((first, second))
        for front, (one, below, two, left), (first, second) in zip(
            reversed(self.order.fronts), reversed(self.parts), reversed(kept), strict=True
        ):
            border = np.concatenate([x[front.border], psi[front.border]], axis=1).ravel()
            second = -blas.dtrsv(two, second - left.T @ border, lower=1, trans=1)
            known = np.concatenate([second, border])
            first = blas.dtrsv(one, first - below.T @ known, lower=1, trans=1)
            x[front.states] = first.reshape(front.states.size, -1)
            psi[front.states] = second.reshape(front.states.size, -1)
        return x.T, psi.T


def _assemble(system: SpaceTime, front: Front) -> Array:
    """The rows of a front before its children's are added; the lower triangle only."""
    size = (front.states.size + front.border.size) * (2 * system.widths.size - 1)
    matrix = np.zeros((size, size), order="F")
    _fill(
        matrix.T,
        front.states,
        front.edges,
        front.ends,
        system.table,
        system.damping,
        system.kernel.stationary,
        system.widths,
        front.parent < 0,
    )
    return matrix


@njit(cache=True)
def _rescale(matrix: Array, states: Index, border: Index, sx: Array, sp: Array) -> None:
    cut = sx.shape[1]
    block = 2 * cut + 1
    n = states.size
    unit = np.empty((n + border.size) * block)
    for i in range(n):
        unit[i * cut : (i + 1) * cut] = sx[states[i]]
        start = n * cut + i * (cut + 1)
        unit[start : start + cut + 1] = sp[states[i]]
    for i in range(border.size):
        start = (n + i) * block
        unit[start : start + cut] = sx[border[i]]
        unit[start + cut : start + block] = sp[border[i]]
    for i in range(unit.size):
        for j in range(i, unit.size):
            if matrix[i, j] != 0.0:
                matrix[i, j] *= unit[i] * unit[j]


@njit(cache=True)
def _mirror(matrix: Array) -> None:
    for i in range(matrix.shape[0]):
        for j in range(i):
            matrix[i, j] = matrix[j, i]


@njit(cache=True)
def _place(state: int, row: int, kind: int, states: int, count: int) -> int:
    """The row of a front for `x` (kind 0) or `psi` (kind 1) of a state at a time."""
    if state < states:
        if kind == 0:
            return state * (count - 1) + row
        return states * (count - 1) + state * count + row
    start = states * (2 * count - 1) + (state - states) * (2 * count - 1)
    return start + row + kind * (count - 1)


@njit(cache=True)
def _add(matrix: Array, i: int, j: int, value: float) -> None:
    # `matrix` is the transpose: its upper triangle is filled.
    if i >= j:
        matrix[j, i] += value
    else:
        matrix[i, j] += value


@njit(cache=True)
def _fill(
    matrix: Array,
    states: Index,
    edges: Index,
    ends: NDArray[np.int64],
    table: Array,
    damping: Array,
    pi: Array,
    h: Array,
    root: bool,
) -> None:
    count, n = h.size, states.size
    for i in range(n):
        x = states[i]
        for k in range(count):
            p = _place(i, k, 1, n, count)
            if k < count - 1:
                q = _place(i, k, 0, n, count)
                _add(matrix, q, p, pi[x])
                matrix[q, q] += damping[k, x]
            if k > 0:
                _add(matrix, _place(i, k - 1, 0, n, count), p, -pi[x])
    if root:
        # Potentials have a free constant: tie one down.
        p = _place(n - 1, 0, 1, n, count)
        matrix[p, p] -= pi[states[n - 1]]
    for e in range(edges.size):
        one, other = ends[e, 0], ends[e, 1]
        for k in range(count):
            row = table[k, edges[e]]
            w, a, b = h[k] * row[0], 0.5 * h[k] * row[1], 0.5 * h[k] * row[2]
            ss, st, tt = -0.25 * h[k] * row[3], -0.25 * h[k] * row[4], -0.25 * h[k] * row[5]
            p, q = _place(one, k, 1, n, count), _place(other, k, 1, n, count)
            _add(matrix, p, p, -w)
            _add(matrix, q, q, -w)
            _add(matrix, p, q, w)
            for node in range(max(k - 1, 0), min(k + 1, count - 1)):
                x, y = _place(one, node, 0, n, count), _place(other, node, 0, n, count)
                _add(matrix, p, x, -a)
                _add(matrix, p, y, -b)
                _add(matrix, q, x, a)
                _add(matrix, q, y, b)
                _add(matrix, x, x, ss)
                _add(matrix, y, y, tt)
                _add(matrix, x, y, st)
                if node < k and k < count - 1:
                    # Both nodes of the stage: the pairs across time, once each.
                    _add(matrix, x, x + 1, ss)
                    _add(matrix, y, y + 1, tt)
                    _add(matrix, x, y + 1, st)
                    _add(matrix, x + 1, y, st)


@njit(cache=True)
def _extend(matrix: Array, update: Array, places: Index, states: int, count: int) -> None:
    """Add a child's lower triangle, in Fortran order, to its places in the front."""
    block = 2 * count - 1
    where = np.empty(places.size * block, np.int64)
    for i in range(places.size):
        for k in range(block):
            kind = 0 if k < count - 1 else 1
            where[i * block + k] = _place(places[i], k - kind * (count - 1), kind, states, count)
    for j in range(where.size):
        column = where[j]
        for i in range(j, where.size):
            row = where[i]
            if row >= column:
                matrix[column, row] += update[i, j]
            else:
                matrix[row, column] += update[i, j]
