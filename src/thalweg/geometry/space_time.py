"""Newton's system for a path on a midpoint mesh, by sparse elimination in space.

Unknowns: the change `x` of the density at the inner nodes in time, and the potential `psi` at the
stages between them. Their equations

    pi (x_k - x_{k-1}) - h A v_k - h M psi_k = -h D_k,          v_k = (x_{k-1} + x_k) / 2,
    pi (psi_k - psi_{k+1}) - (h/2) sum (A^T psi + (K - damping) v) = (h/2) sum constant

are symmetric and quasi-definite: positive in `x`, negative in `psi`, so every order of elimination
is stable but for scaling, and two Cholesky factorisations do for each front. All times of a state
are eliminated together, the states in an order with little fill (`elimination_order`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from thalweg.geometry import stages
from thalweg.geometry.elimination_order import Elimination, Front
from thalweg.geometry.newton_system import Direction, Linearisation

__all__ = ["SpaceTime", "solve_sparse"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpaceTime:
    """The symmetric system at one iterate: `x` has one row less than `psi`."""

    lin: Linearisation

    @property
    def shape(self) -> tuple[int, int]:
        return self.lin.rho.shape

    def right(self) -> tuple[Array, Array]:
        h = self.lin.mesh.weights[:, None]
        constant = h * self.lin.constant
        return 0.5 * (constant[:-1] + constant[1:]), -h * self.lin.gain

    def product(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The matrix times `(x, psi)`."""
        lin = self.lin
        source, target, _ = lin.kernel.edges
        pi, h = lin.kernel.stationary, lin.mesh.weights[:, None]
        v = np.zeros_like(psi)
        v[:-1] = 0.5 * x
        v[1:] += 0.5 * x
        gain, force = stages.newton_product(source, target, lin.table, psi, v)
        force = 0.5 * h * (force - lin.damping * v)
        gain = -h * gain
        gain[:-1] += pi * x
        gain[1:] -= pi * x
        return pi * (psi[:-1] - psi[1:]) - force[:-1] - force[1:], gain


class _Eliminated(NamedTuple):
    first: Array
    """Cholesky factor of the `x` block."""
    below_first: Array
    second: Array
    """Cholesky factor of minus the `psi` block that is left."""
    below_second: Array


class SparseFactor:
    """The factorised system; `singular` if a pivot has the wrong sign."""

    def __init__(self, lin: Linearisation, order: Elimination, regular: float = 0.0) -> None:
        self.order = order
        self.count = lin.rho.shape[0]
        self.singular = False
        source, target, _ = lin.kernel.edges
        pi, h = lin.kernel.stationary, lin.mesh.weights
        updates: dict[int, list[tuple[Index, Array]]] = {}
        self.parts: list[_Eliminated] = []
        for g, front in enumerate(order.fronts):
            matrix = _front(front, lin, pi, h, self.count, regular, front.parent < 0)
            for places, update in updates.pop(g, []):
                _extend(matrix, update, places, front.states.size, self.count)
            part, update = _eliminate(matrix, front, self.count)
            if part is None:
                self.singular = True
                return
            self.parts.append(part)
            if front.parent >= 0:
                updates.setdefault(front.parent, []).append((front.places, update))

    def solve(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The solution for the right-hand sides of the two kinds of rows."""
        x, psi = x.T.copy(), psi.T.copy()
        fronts = self.order.fronts
        kept = []
        for front, part in zip(fronts, self.parts, strict=True):
            first = _triangle(part.first, x[front.states].ravel(), False)
            rest = part.below_first @ first
            cut = part.second.shape[0]
            second = psi[front.states].ravel() - rest[:cut]
            second = _triangle(part.second, second, False)
            if front.border.size:
                left = rest[cut:] - part.below_second @ second
                left = left.reshape(front.border.size, -1)
                x[front.border] -= left[:, : self.count - 1]
                psi[front.border] -= left[:, self.count - 1 :]
            kept.append((first, second))
        for front, part, (first, second) in zip(
            reversed(fronts), reversed(self.parts), reversed(kept), strict=True
        ):
            border = np.concatenate([x[front.border], psi[front.border]], axis=1).ravel()
            second = -_triangle(part.second, second - part.below_second.T @ border, True)
            known = np.concatenate([second, border])
            first = _triangle(part.first, first - part.below_first.T @ known, True)
            x[front.states] = first.reshape(front.states.size, -1)
            psi[front.states] = second.reshape(front.states.size, -1)
        return x.T, psi.T


def _triangle(factor: Array, right: Array, transposed: bool) -> Array:
    if right.size == 0:
        return right
    return np.asarray(blas.dtrsv(factor, right, lower=1, trans=1 if transposed else 0))


def _eliminate(matrix: Array, front: Front, count: int) -> tuple[_Eliminated | None, Array]:
    nx, np_ = front.states.size * (count - 1), front.states.size * count
    first, bad = lapack.dpotrf(matrix[:nx, :nx], lower=1, clean=1)
    rest = matrix[nx:, nx:]
    if bad:
        return None, rest
    below = blas.dtrsm(1.0, first, matrix[nx:, :nx], side=1, lower=1, trans_a=1)
    rest = blas.dsyrk(-1.0, below, beta=1.0, c=rest, lower=1)
    second, bad = lapack.dpotrf(-rest[:np_, :np_], lower=1, clean=1)
    if bad:
        return None, rest
    left = rest[np_:, :np_]
    if not front.border.size:
        return _Eliminated(first, below, second, left), left
    left = blas.dtrsm(1.0, second, left, side=1, lower=1, trans_a=1)
    update = blas.dsyrk(1.0, left, beta=1.0, c=rest[np_:, np_:], lower=1)
    return _Eliminated(first, below, second, left), update


def _front(
    front: Front, lin: Linearisation, pi: Array, h: Array, count: int, regular: float, root: bool
) -> Array:
    size = (front.states.size + front.border.size) * (2 * count - 1)
    matrix = np.zeros((size, size), order="F")
    _fill(
        matrix.T,
        front.states,
        front.edges,
        front.ends,
        lin.table,
        lin.damping,
        pi,
        h,
        regular,
        root,
    )
    return matrix


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
    regular: float,
    root: bool,
) -> None:
    count, n = h.size, states.size
    for i in range(n):
        x = states[i]
        for k in range(count):
            p = _place(i, k, 1, n, count)
            matrix[p, p] -= regular * h[k] * pi[x]
            if k < count - 1:
                q = _place(i, k, 0, n, count)
                _add(matrix, q, p, pi[x])
                matrix[q, q] += 0.25 * h[k] * damping[k, x]
                matrix[q, q] += 0.25 * h[k + 1] * damping[k + 1, x]
                if k > 0:
                    _add(matrix, q, q - 1, 0.25 * h[k] * damping[k, x])
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
            where[i * block + k] = _place(
                places[i], k - kind * (count - 1), kind, states, count
            )
    for j in range(where.size):
        column = where[j]
        for i in range(j, where.size):
            row = where[i]
            if row >= column:
                matrix[row, column] += update[i, j]
            else:
                matrix[column, row] += update[i, j]


def solve_sparse(lin: Linearisation, order: Elimination, refinements: int = 2) -> Direction:
    """The direction to rounding on a midpoint mesh, or one of NaN if the factorisation fails."""
    source, target, _ = lin.kernel.edges
    system = SpaceTime(lin)
    right = system.right()
    psi = np.full(lin.rho.shape, np.nan)
    x = psi[1:]
    for regular in (0.0, 1e-10, 1e-7):
        factor = SparseFactor(lin, order, regular)
        if factor.singular:
            continue
        x, psi = factor.solve(*right)
        for _ in range(refinements):
            image = system.product(x, psi)
            dx, dpsi = factor.solve(right[0] - image[0], right[1] - image[1])
            x, psi = x + dx, psi + dpsi
        break
    v = np.zeros_like(psi)
    v[:-1] = 0.5 * x
    v[1:] += 0.5 * x
    flux = stages.newton_flux(source, target, lin.table, psi, v)
    middle = (lin.mesh.interpolate(*lin.mesh.locate(np.array([0.5]))) @ psi)[0]
    return Direction(psi, flux, middle, 1, 0.0)
