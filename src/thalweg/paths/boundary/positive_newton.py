"""Half the action of a curve with positive Bernstein coefficients, and Newton's step on it.

The action, `sum_i w_i d_i^T M(rho_i)^+ d_i` with `d = pi rho'` at more Gauss points than the curve
has coefficients, is convex in the coefficients for a concave mean. Newton's matrix is a sum of
squares in the coefficients alone. Each coefficient's heaviest state takes what mass the others
leave. The pieces are eliminated in turn; a piece meets the next in the node that they share.

The Laplacians are factored without a subtraction (`factor_all`): eliminating a state from a graph
adds positive weights between its neighbours, and its pivot is the sum of its weights (Grassmann,
Taksar and Heyman), so every entry of the factor, and of its inverse, is exact to a few units in the
last place, whatever the range of the weights. States are eliminated from the lightest on; the
heaviest is the ground.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from thalweg._compile import njit
from thalweg._types import Array, Index32
from thalweg.edges import kinetic
from thalweg.edges.static import Graph, stage_weights
from thalweg.paths.boundary.bernstein import BernsteinMesh, elevation
from thalweg.paths.problem import PathProblem

Order = NDArray[np.int64]

_JITTER = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
"""Amounts added to a unit diagonal, in turn, until the Cholesky factor exists."""


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
    """All coefficients of a piece but its last: their factor, and the remainder for the others."""

    factor: Array
    rest: Array
    """One column for each state of the last node, and the right-hand side."""


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
        """The curve at the quadrature points; `None` if its action is not finite."""
        kernel, mesh = self.problem.kernel, self.mesh
        pi = kernel.stationary
        rho = (mesh.positive_values @ e).reshape(-1, pi.size)
        rate = pi * (mesh.positive_slopes @ e).reshape(-1, pi.size)
        upper, order, psi, actions = factor_all(self.problem.graph, rho, rate)
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
        """Newton's step in the coefficients, and twice the fall of half the action.

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
            block, slope = self._piece(at, k, damping[k])
            blocks.append(block)
            gradient[k] += slope
            diagonals[k] = _diagonals(block, ground[k], pi)
        index = ground[:, :, None]
        heaviest = np.take_along_axis(gradient, index, axis=2)
        gradient -= pi / pi[index] * heaviest
        diagonals[1:, 0] += diagonals[:-1, -1]
        diagonals[:-1, -1] = diagonals[1:, 0]
        scale = 1 / np.sqrt(np.maximum(diagonals, 1e-300))
        np.put_along_axis(scale, index, 0.0, axis=2)
        step = scale * _solve(blocks, -gradient * scale, scale, ground, pi)
        decrement = -float((gradient * step).sum())
        lift = -(step @ pi) / pi[ground]
        np.put_along_axis(step, index, lift[:, :, None], axis=2)
        return step, decrement

    @cached_property
    def _tables(self) -> tuple[Array, list[Array]]:
        """Products of two columns of the elevation, and of two polynomials at the points.

        One row for each pair `j >= b` of coefficients, the second for each piece.
        """
        mesh = self.mesh
        size = mesh.degree + 1
        pairs = np.ravel_multi_index(np.tril_indices(size), (size, size))

        def products(w: Array, a: Array, b: Array) -> Array:
            both = w[:, None, None] * a[:, :, None] * b[:, None, :]
            return np.asarray(both.reshape(w.size, -1).T[pairs])

        pieces = []
        for k, w in enumerate(mesh.weights.reshape(mesh.pieces, -1)):
            v, s = mesh.values[k], mesh.slopes[k]
            parts = products(w, s, s), products(w, v, v), -products(w, s, v), -products(w, v, s)
            pieces.append(np.concatenate(parts, axis=1))
        lift = mesh.elevation
        return products(np.ones(len(lift)), lift, lift), pieces

    def _piece(self, at: Evaluated, k: int, damping: Array) -> tuple[Array, Array]:
        """Newton's matrix of one piece, a block for each pair, and its part of the gradient."""
        mesh, pi = self.mesh, self.problem.kernel.stationary
        n = pi.size
        here = slice(k * mesh.points, (k + 1) * mesh.points)
        squares, force = _piece_blocks(self.problem, at, here)
        lifts, tables = self._tables
        block = tables[k] @ squares.reshape(4 * mesh.points, -1)
        block[:, :: n + 1] += lifts @ damping
        w, values, slopes = mesh.weights[here], mesh.values[k], mesh.slopes[k]
        slope = (slopes * w[:, None]).T @ (pi * at.psi[here]) - (values * w[:, None]).T @ force
        return block.reshape(-1, n, n), slope


def _diagonals(block: Array, ground: Order, pi: Array) -> Array:
    """The diagonal of a piece's matrix after each ground state took the others' mass."""
    each = np.arange(ground.size)
    own = block[each * (each + 3) // 2]
    share = pi / pi[ground][:, None]
    mixed = own[each, ground] + own[each, :, ground]
    out = np.einsum("jxx->jx", own) - share * mixed
    return np.asarray(out + share**2 * own[each, ground, ground][:, None])


@njit(cache=True, error_model="numpy")
def _fill(
    block: Array, ground: Order, pi: Array, scale: Array, first: int, own: Array, last: Array
) -> Array:
    """`scale T^T block T scale`, where `T` lets each ground state take the others' mass.

    Written are the lower triangle of coefficients `first` to the last but one into `own`, the rows
    of the last one into `last`; returned is the last one's own block.
    """
    size, n = scale.shape
    node = np.empty((n, n))
    pair = 0
    for j in range(size):
        g = ground[j]
        for b in range(j + 1):
            h, here = ground[b], block[pair]
            pair += 1
            if b < first:
                continue
            for x in range(n):
                share = pi[x] / pi[g]
                taken = (here[x, h] - share * here[g, h]) / pi[h]
                if j < size - 1:
                    row = own[(j - first) * n + x, (b - first) * n : (b - first + 1) * n]
                elif b < size - 1:
                    row = last[x, (b - first) * n : (b - first + 1) * n]
                else:
                    row = node[x]
                for y in range(n):
                    row[y] = (here[x, y] - share * here[g, y] - taken * pi[y]) * (
                        scale[j, x] * scale[b, y]
                    )
    return node


def _solve(blocks: list[Array], right: Array, scale: Array, ground: Order, pi: Array) -> Array:
    """The step by Cholesky, piece after piece; the first and the last coefficients stay."""
    pieces, size, n = right.shape
    done: list[_Eliminated] = []
    node, node_right = np.zeros((n, n)), np.zeros(n)
    for k, block in enumerate(blocks):
        first = int(k == 0)
        count = (size - 1 - first) * n
        known = right[k, first:-1].copy()
        if k > 0:
            known[0] += node_right
        places = np.arange(size - 1 - first) * n + ground[k, first:-1]
        for jitter in _JITTER:
            own, last = np.empty((count, count)), np.empty((n + 1, count))
            following = _fill(block, ground[k], pi, scale[k], first, own, last[:n])
            if k > 0:
                own[:n, :n] += node
            own[places, places] = 1.0
            own.flat[:: count + 1] += jitter
            factor = _cholesky(own)
            if factor is not None:
                break
        else:
            raise np.linalg.LinAlgError("the curvature of the action is not positive")
        last[n] = known.ravel()
        rest = blas.dtrsm(1.0, factor, last.T, lower=0, trans_a=1, overwrite_b=1)
        done.append(_Eliminated(factor, rest))
        node = following - rest[:, :n].T @ rest[:, :n]
        node_right = right[k, -1] - rest[:, :n].T @ rest[:, n]
    step = np.zeros(right.shape)
    for k in range(pieces - 1, -1, -1):
        first = int(k == 0)
        if k < pieces - 1:
            step[k, -1] = step[k + 1, 0]
        factor, rest = done[k]
        known = rest[:, n] - rest[:, :n] @ step[k, -1]
        step[k, first:-1] = blas.dtrsv(factor, known, lower=0).reshape(-1, n)
    return step


def _cholesky(matrix: Array) -> Array | None:
    """The factor `U` of `U^T U`, of which the lower triangle is given; written in its place."""
    # The transpose of a lower triangle by rows is an upper one by columns, as LAPACK reads.
    factor, failed = lapack.dpotrf(matrix.T, lower=0, clean=0, overwrite_a=1)
    return None if failed else np.asarray(factor)


def factor_all(graph: Graph, rho: Array, rate: Array) -> tuple[Array, Order, Array, Array]:
    """The factor `U` of `M = U^T U`, its order, `psi`, and `rate^T M^+ rate`, per row of `rho`.

    `M(rho) psi = rate`. An action that is not finite means that the graph is disconnected there.
    """
    # Sorting, means and products of matrices stay outside the compiled loops: compiled with them,
    # the loops took 20 CPU seconds to compile.
    order = np.argsort(graph.pi * rho, axis=1)
    upper, psi, action = _factor(graph.source, graph.target, stage_weights(graph, rho), order, rate)
    return upper, order, psi, action


@njit(cache=True, error_model="numpy")
def _factor(
    source: Index32, target: Index32, weights: Array, order: Order, rate: Array
) -> tuple[Array, Array, Array]:
    count, n = order.shape
    upper = np.zeros((count, n, n))
    psi, action = np.zeros((count, n)), np.zeros(count)
    place, w, y = np.empty(n, np.int64), np.empty((n, n)), np.empty(n)
    for i in range(count):
        for k in range(n):
            place[order[i, k]] = k
        w[:] = 0.0
        for e in range(source.size):
            m = weights[i, e]
            a, b = place[source[e]], place[target[e]]
            w[a, b] += m
            w[b, a] += m
        for k in range(n - 1):
            pivot = 0.0
            for j in range(k + 1, n):
                pivot += w[k, j]
            root = np.sqrt(pivot)
            upper[i, k, k] = root
            for j in range(k + 1, n - 1):
                upper[i, k, j] = -w[k, j] / root
            for a in range(k + 1, n):
                share = w[k, a] / pivot
                if share != 0.0:
                    for b in range(k + 1, n):
                        w[a, b] += share * w[k, b]
        for k in range(n - 1):
            y[k] = rate[i, order[i, k]]
        for k in range(n - 1):
            y[k] /= upper[i, k, k]
            action[i] += y[k] * y[k]
            for j in range(k + 1, n - 1):
                y[j] -= upper[i, k, j] * y[k]
        for k in range(n - 2, -1, -1):
            for j in range(k + 1, n - 1):
                y[k] -= upper[i, k, j] * y[j]
            y[k] /= upper[i, k, k]
            psi[i, order[i, k]] = y[k]
    return upper, psi, action


def _piece_blocks(problem: PathProblem, at: Evaluated, here: slice) -> tuple[Array, Array]:
    """The second variation of half the action at each point of a piece, and the force.

    With `d = pi rho'` it is `|L^-1 (dd - N drho)|^2 + drho^T C drho`, `M = L L^T`, where `N drho`
    is the change of `M psi` at fixed `psi`, and `C` (minus the second derivative of the mean) is
    positive. Returned are the blocks of `dd^2`, after them those of `drho^2`, of `dd drho` and of
    `drho dd`; and the force.
    """
    graph, rho = problem.graph, at.rho[here]
    count, n = rho.shape
    table, force = kinetic.linearise_stages(graph, rho, problem.differences(at.psi[here]))
    columns, squares = _columns(graph, table, at.upper[here], at.order[here])
    product = columns.transpose(0, 2, 1) @ columns
    squares[:count] = product[:, :n, :n]
    squares[count : 2 * count] += product[:, n:, n:]
    squares[2 * count : 3 * count], squares[3 * count :] = product[:, :n, n:], product[:, n:, :n]
    return squares, force


@njit(cache=True, error_model="numpy")
def _columns(graph: Graph, table: Array, upper: Array, order: Order) -> tuple[Array, Array]:
    """`L^-1` of `dd` and of `N drho`, side by side; `C` in the second quarter of the squares."""
    source, target, pi = graph.source, graph.target, graph.pi
    count, n = order.shape
    all_columns, squares = np.zeros((count, n, 2 * n)), np.zeros((4 * count, n, n))
    place = np.empty(n, np.int64)
    inverse = np.zeros((n, n))
    for i in range(count):
        columns, curvature = all_columns[i], squares[count + i]
        for k in range(n):
            place[order[i, k]] = k
        inverse[:] = 0.0
        for k in range(n - 1):
            inverse[k, k] = 1.0
            for j in range(k):
                for b in range(j + 1):
                    inverse[k, b] -= upper[i, j, k] * inverse[j, b]
            for b in range(k + 1):
                inverse[k, b] /= upper[i, k, k]
        for b in range(n - 1):
            x = order[i, b]
            for k in range(b, n - 1):
                columns[k, x] = inverse[k, b] * pi[x]
        for e in range(source.size):
            x, y = source[e], target[e]
            curvature[x, x] -= table[i, e, 3]
            curvature[y, y] -= table[i, e, 5]
            curvature[x, y] -= table[i, e, 4]
            curvature[y, x] -= table[i, e, 4]
            a, b = place[x], place[y]
            for k in range(min(a, b), n - 1):
                gain = inverse[k, a] - inverse[k, b]
                columns[k, n + x] += gain * table[i, e, 1]
                columns[k, n + y] += gain * table[i, e, 2]
    return all_columns, squares
