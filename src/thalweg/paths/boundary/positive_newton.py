"""Half the action of a curve with positive Bernstein coefficients, and Newton's step on it.

The action, `sum_i w_i d_i^T M(rho_i)^+ d_i` with `d = pi rho'` at more Gauss points than the curve
has coefficients, is convex in the coefficients for a concave mean. Newton's matrix is a sum of
squares in the coefficients alone. Each coefficient's heaviest state takes what mass the others
leave; the coefficients inside a piece are eliminated, which leaves a block-tridiagonal matrix over
the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from thalweg._compile import njit
from thalweg.paths.boundary.bernstein import BernsteinMesh, elevation
from thalweg.paths.boundary.grounded import factor_all, piece_blocks
from thalweg.paths.problem import PathProblem

__all__ = ["Evaluated", "PositiveCurves"]

Array = NDArray[np.float64]
Order = NDArray[np.int64]

_JITTER = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
"""What is added to a unit diagonal, in turn, until the Cholesky factor exists."""


class Evaluated(NamedTuple):
    """A curve with its densities and potentials at the quadrature points."""

    c: Array
    """Coefficients: (pieces, degree + 1, states)."""
    e: Array
    """The same at the positive degree: these stay above zero."""
    rho: Array
    psi: Array
    upper: Array
    order: Order
    actions: Array
    """Squared speeds at the points."""
    action: float


class _Eliminated(NamedTuple):
    """The inner coefficients of a piece: their factor, and the columns that couple them."""

    factor: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class PositiveCurves:
    """Curves between the end points of a problem on one mesh."""

    problem: PathProblem
    mesh: BernsteinMesh

    def start(self) -> Array:
        """Coefficients of a parabola from `p0` to `p1` by way of the stationary distribution."""
        pi = self.problem.kernel.stationary
        left = np.concatenate([[0.0], np.cumsum(self.mesh.widths)])[:, None]
        right = np.concatenate([[0.0], np.cumsum(self.mesh.widths[::-1])])[::-1, None]
        a, b, a_left, b_left = left[:-1], left[1:], right[:-1], right[1:]

        def blossom(s: Array, t: Array, s_left: Array, t_left: Array) -> Array:
            ends = s_left * t_left * self.problem.p0 / pi + s * t * self.problem.p1 / pi
            return np.asarray(ends + (s_left * t + s * t_left))

        corners = [
            blossom(a, a, a_left, a_left),
            blossom(a, b, a_left, b_left),
            blossom(b, b, b_left, b_left),
        ]
        return self.tidy(elevation(2, self.mesh.degree) @ np.stack(corners, axis=1))

    def tidy(self, c: Array) -> Array:
        """Coefficients of mass one, equal at shared nodes, and exact at the ends."""
        pi = self.problem.kernel.stationary
        c = c / (c @ pi)[:, :, None]
        c[0, 0], c[-1, -1] = self.problem.p0 / pi, self.problem.p1 / pi
        c[1:, 0] = c[:-1, -1]
        return c

    def evaluate(self, c: Array, e: Array) -> Evaluated | None:
        """The curve at the quadrature points; `None` where its action is not finite."""
        kernel, mesh = self.problem.kernel, self.mesh
        pi = kernel.stationary
        rho = (mesh.positive_values @ e).reshape(-1, pi.size)
        rate = pi * (mesh.positive_slopes @ e).reshape(-1, pi.size)
        upper, order, psi, actions = factor_all(*kernel.edges, self.problem.spec, pi, rho, rate)
        action = float(mesh.weights @ actions)
        if not (np.isfinite(action) and np.isfinite(psi).all()):
            return None
        return Evaluated(c, e, rho, psi, upper, order, actions, action)

    def value(self, at: Evaluated, mu: float) -> float:
        """Half the action minus `mu` times the mean logarithm of the positive coefficients."""
        free = self.mesh.barrier > 0
        logs = np.log(at.e[free]) @ self.problem.kernel.stationary
        return 0.5 * at.action - mu * float(self.mesh.barrier[free] @ logs)

    def direction(self, at: Evaluated, mu: float, z: Array) -> tuple[Array, float]:
        """Newton's step in the coefficients, and what half the action falls by, times two.

        `z` stands for `mu / e` in the barrier's curvature. Raises `LinAlgError` where the matrix is
        not positive definite.
        """
        mesh, pi = self.mesh, self.problem.kernel.stationary
        ground = np.argmax(pi * at.c, axis=2)
        ground[1:, 0] = ground[:-1, -1]
        free = mesh.barrier[:, :, None] > 0
        e = np.where(free, at.e, 1.0)
        damping = mesh.barrier[:, :, None] * pi * z / e
        gradient = -mesh.elevation.T @ (mesh.barrier[:, :, None] * mu * pi / e)
        blocks, diagonals = [], np.empty(at.c.shape)
        for k in range(mesh.pieces):
            block, slope, diagonals[k] = self._piece(at, k, damping[k], ground[k])
            blocks.append(block)
            gradient[k] += slope
        index = ground[:, :, None]
        heaviest = np.take_along_axis(gradient, index, axis=2)
        gradient -= pi / pi[index] * heaviest
        diagonals[1:, 0] += diagonals[:-1, -1]
        diagonals[:-1, -1] = diagonals[1:, 0]
        scale = 1 / np.sqrt(np.maximum(diagonals, 1e-300))
        np.put_along_axis(scale, index, 0.0, axis=2)
        step = scale * _solve(blocks, -gradient * scale, scale, ground)
        decrement = -float((gradient * step).sum())
        lift = -(step @ pi) / pi[ground]
        np.put_along_axis(step, index, lift[:, :, None], axis=2)
        return step, decrement

    @cached_property
    def _pairs(self) -> Order:
        """The pairs `j >= l` of coefficients among all of them."""
        size = self.mesh.degree + 1
        return np.ravel_multi_index(np.tril_indices(size), (size, size))

    @cached_property
    def _lifts(self) -> Array:
        """Products of two columns of the elevation, one row for each pair."""
        lift = self.mesh.elevation
        return _outer(np.ones(len(lift)), lift, lift)[self._pairs]

    def _piece(
        self, at: Evaluated, k: int, damping: Array, ground: Order
    ) -> tuple[Array, Array, Array]:
        """Newton's matrix of one piece, its part of the gradient, and the matrix's diagonal."""
        mesh, kernel, pi = self.mesh, self.problem.kernel, self.problem.kernel.stationary
        size, n = mesh.degree + 1, pi.size
        here = slice(k * mesh.points, (k + 1) * mesh.points)
        squares, mixed, force = piece_blocks(
            *kernel.edges,
            self.problem.spec,
            pi,
            at.rho[here],
            at.psi[here],
            at.upper[here],
            at.order[here],
        )
        w, values, slopes = mesh.weights[here], mesh.values[k], mesh.slopes[k]
        both = np.concatenate([_outer(w, slopes, slopes), _outer(w, values, values)], axis=1)
        own = both[self._pairs] @ squares.reshape(2 * mesh.points, -1)
        cross = _outer(w, slopes, values) @ mixed.reshape(mesh.points, -1)
        barrier = self._lifts @ damping
        matrix, diagonal = _reduced(
            own.reshape(-1, n, n), cross.reshape(size, size, n, n), barrier, ground, pi
        )
        slope = (slopes * w[:, None]).T @ (pi * at.psi[here]) - (values * w[:, None]).T @ force
        return matrix, slope, diagonal


def _outer(w: Array, a: Array, b: Array) -> Array:
    """`w_i a_ij b_il` with one row for each pair `j, l`."""
    return np.asarray((w[:, None, None] * a[:, :, None] * b[:, None, :]).reshape(w.size, -1).T)


@njit(cache=True, error_model="numpy")
def _reduced(
    own: Array, cross: Array, barrier: Array, ground: Order, pi: Array
) -> tuple[Array, Array]:
    """`T^T (own - cross - cross^T + barrier) T`, where each ground state takes the others' mass.

    `own` and `barrier`, symmetric, have a row for each pair `j >= b` of coefficients.
    """
    size, n = cross.shape[0], cross.shape[2]
    out, diagonal = np.empty((size, n, size, n)), np.empty((size, n))
    block = np.empty((n, n))
    for j in range(size):
        g = ground[j]
        for b in range(j + 1):
            h, pair = ground[b], j * (j + 1) // 2 + b
            for y in range(n):
                for x in range(n):
                    block[x, y] = own[pair, x, y] - cross[j, b, x, y] - cross[b, j, y, x]
                block[y, y] += barrier[pair, y]
            for x in range(n):
                if x != g:
                    share = pi[x] / pi[g]
                    for y in range(n):
                        block[x, y] -= share * block[g, y]
            block[g] = 0.0
            for x in range(n):
                share = block[x, h] / pi[h]
                for y in range(n):
                    block[x, y] -= share * pi[y]
                block[x, h] = 0.0
                out[j, x, b] = block[x]
            out[b, :, j] = block.T
        for x in range(n):
            diagonal[j, x] = out[j, x, j, x]
    return out, diagonal


@njit(cache=True, error_model="numpy")
def _rescale(matrix: Array, scale: Array) -> None:
    size, n = scale.shape
    for j in range(size):
        for x in range(n):
            for b in range(size):
                for y in range(n):
                    matrix[j, x, b, y] *= scale[j, x] * scale[b, y]


def _solve(blocks: list[Array], right: Array, scale: Array, ground: Order) -> Array:
    """The step by Cholesky: the inner coefficients of each piece first, then the nodes in turn."""
    pieces, size, n = right.shape
    node_matrix, node_right = np.zeros((pieces + 1, n, n)), np.zeros((pieces + 1, n))
    lower: list[Array] = []
    inner: list[_Eliminated] = []
    for k, block in enumerate(blocks):
        _rescale(block, scale[k])
        matrix = block.reshape(size * n, size * n)
        first, last, inside = slice(0, n), slice(-n, None), slice(n, -n)
        own = matrix[inside, inside].copy()
        places = np.arange(size - 2) * n + ground[k, 1:-1]
        own[places, places] = 1.0
        columns = np.empty((own.shape[0], 2 * n + 1), order="F")
        columns[:, :n], columns[:, n : 2 * n] = matrix[inside, first], matrix[inside, last]
        columns[:, -1] = right[k, 1:-1].ravel()
        factor = _cholesky(own)
        columns = blas.dtrsm(1.0, factor, columns, lower=1, overwrite_b=1)
        inner.append(_Eliminated(factor, columns))
        taken = columns.T @ columns
        node_matrix[k] += matrix[first, first] - taken[:n, :n]
        node_matrix[k + 1] += matrix[last, last] - taken[n:-1, n:-1]
        lower.append(matrix[last, first] - taken[n:-1, :n])
        node_right[k] += right[k, 0] - taken[:n, -1]
        node_right[k + 1] += right[k, -1] - taken[n:-1, -1]
    nodes = _solve_nodes(node_matrix, node_right, lower, ground[:, 0])
    step = np.empty(right.shape)
    step[:, 0], step[:, -1] = nodes[:-1], nodes[1:]
    for k, (factor, columns) in enumerate(inner):
        rest = columns[:, -1] - columns[:, :n] @ nodes[k] - columns[:, n:-1] @ nodes[k + 1]
        step[k, 1:-1] = blas.dtrsv(factor, rest, lower=1, trans=1).reshape(size - 2, n)
    return step


def _solve_nodes(matrix: Array, right: Array, lower: list[Array], ground: Order) -> Array:
    """The block-tridiagonal system over the nodes between the two ends, which stay."""
    last = len(lower)
    factors: list[Array] = []
    links: list[Array] = []
    y = np.zeros(right.shape)
    for k in range(1, last):
        own, rest = matrix[k], right[k]
        if k > 1:
            own, rest = own - links[-1].T @ links[-1], rest - links[-1].T @ y[k - 1]
        own[ground[k], ground[k]] = 1.0
        factors.append(_cholesky(own))
        y[k] = blas.dtrsv(factors[-1], rest, lower=1)
        links.append(blas.dtrsm(1.0, factors[-1], lower[k].T, lower=1))
    for k in range(last - 1, 0, -1):
        rest = y[k] - links[k - 1] @ y[k + 1]
        y[k] = blas.dtrsv(factors[k - 1], rest, lower=1, trans=1)
    return y


def _cholesky(matrix: Array) -> Array:
    """The lower factor of a matrix of unit scale, regularised as little as will do."""
    for jitter in _JITTER:
        shifted = matrix + jitter * np.eye(len(matrix)) if jitter else matrix
        # The transpose of a symmetric matrix is itself, in the order that LAPACK reads.
        factor, failed = lapack.dpotrf(shifted.T, lower=1, clean=0)
        if not failed:
            return np.asarray(factor)
    raise np.linalg.LinAlgError("the curvature of the action is not positive")
