"""Newton's system for a discretised geodesic by elimination from piece to piece, dense in space.

At each node the change of the probability and the potential are tied by `dP = Y lambda + y`: the
first end point is fixed, so `Y = 0` there. A piece turns `(Y, y)` into those of its other end, a
Riccati step; at the last node `dP = 0` gives the potential, and the way back gives everything else.
Nothing is integrated over more than a piece, so densities that grow over many decades do no harm.
Cost: a few dense factorisations of `n_states` a piece.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, lu_factor, lu_solve

from thalweg._compile import njit
from thalweg.edges import stages
from thalweg.paths.newton_system import Direction, Linearisation

__all__ = ["solve_blocks"]

Array = NDArray[np.float64]
Index = NDArray[np.int32]


class _Piece(NamedTuple):
    """`x = X lambda + x0` for the stages; `lambda' = L lambda + l0` for the next node."""

    stages: Array
    offset: Array
    next: tuple[Array, NDArray[np.int32]]
    next_offset: Array


def solve_blocks(lin: Linearisation) -> Direction:
    """The direction to rounding, or one of NaN where a block is singular."""
    source, target, _ = lin.kernel.edges
    mesh = lin.mesh
    try:
        psi, v = _midpoint(lin) if mesh.orders.max() == 1 else _collocation(lin)
    except (LinAlgError, ValueError):
        psi = np.full(lin.rho.shape, np.nan)
        v = psi
    flux = stages.newton_flux(source, target, lin.table, psi, v)
    middle = (mesh.interpolate(*mesh.locate(np.array([0.5]))) @ psi)[0]
    return Direction(psi, flux, middle, 1, 0.0)


def _dense(lin: Linearisation, i: int) -> tuple[Array, Array, Array]:
    source, target, _ = lin.kernel.edges
    return _fill(source, target, lin.table[i], lin.damping[i])


@njit(cache=True, error_model="numpy")
def _fill(source: Index, target: Index, table: Array, damping: Array) -> tuple[Array, Array, Array]:
    """`M`, `A`, `K` of a stage."""
    n = damping.size
    m, adv, k = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for e in range(source.size):
        x, y = source[e], target[e]
        w, a, b = table[e, 0], table[e, 1], table[e, 2]
        m[x, x] += w
        m[y, y] += w
        m[x, y] -= w
        m[y, x] -= w
        adv[x, x] += a
        adv[y, y] -= b
        adv[x, y] += b
        adv[y, x] -= a
        k[x, x] += table[e, 3]
        k[y, y] += table[e, 5]
        k[x, y] += table[e, 4]
        k[y, x] += table[e, 4]
    for x in range(n):
        k[x, x] -= damping[x]
    return m, adv, k


def _add(dense: Array, matrix: Any, factor: float) -> None:
    """`dense += factor * matrix` in place, for a dense or a sparse matrix."""
    if isinstance(matrix, np.ndarray):
        dense += factor * matrix
    else:
        rows, columns = matrix.nonzero()
        dense[rows, columns] += factor * np.asarray(matrix[rows, columns]).ravel()


def _last_potential(y_matrix: Array, y: Array) -> Array:
    """`lambda` with `Y lambda = -y`, up to its constant."""
    scale = 1.0 / np.sqrt(np.maximum(np.diag(y_matrix), 1e-300))
    ones = 1.0 / scale
    ones /= np.linalg.norm(ones)
    scaled = scale[:, None] * y_matrix * scale + np.outer(ones, ones)
    factor = lu_factor(scaled)
    x = lu_solve(factor, -scale * y)
    x += lu_solve(factor, -scale * y - scaled @ x)
    return np.asarray(scale * x)


def _midpoint(lin: Linearisation) -> tuple[Array, Array]:
    """One stage a piece: the stage's potential determines the node's, one block of size n."""
    pi = lin.kernel.stationary
    count, n = lin.rho.shape
    y_matrix, y = np.zeros((n, n)), np.zeros(n)
    kept: list[tuple[Array, Array, tuple[Array, NDArray[np.int32]], Array]] = []
    for k in range(count):
        half = 0.5 * lin.mesh.widths[k]
        m, adv, curve = (sparse.csr_array(a) if n > 60 else a for a in _dense(lin, k))
        rho = lin.rho[k]
        shift = half * lin.constant[k] / pi

        def over_pi(matrix: Any, half: float = half) -> Any:
            if isinstance(matrix, np.ndarray):
                return matrix * (half / pi)[:, None]
            return sparse.csr_array(sparse.diags_array(half / pi) @ matrix)

        push, pull = over_pi(adv.T), over_pi(curve)
        # lambda = (I + push) psi + pull v + shift, pi v = Y lambda + y + half (M psi + A v - D).
        # Y is symmetric, so Y P = (P^T Y)^T: sparse times dense.
        left = -(pull.T @ y_matrix).T
        _add(left, adv, -half)
        left[np.arange(n), np.arange(n)] += pi
        right = y_matrix + (push.T @ y_matrix).T
        _add(right, m, half)
        known = y + y_matrix @ shift - half * lin.gain[k]
        left *= rho / (pi * rho)[:, None]
        factor = lu_factor(left, overwrite_a=True, check_finite=False)
        both = lu_solve(
            factor, np.column_stack([right, known]) / (pi * rho)[:, None], check_finite=False
        )
        both *= rho[:, None]
        v_psi, v_known = np.ascontiguousarray(both[:, :-1]), both[:, -1]
        ahead = -(pull @ v_psi)
        _add(ahead, push, -1.0)
        ahead[np.arange(n), np.arange(n)] += 1.0
        ahead_known = -(pull @ v_known) - shift
        gain = pi[:, None] * v_psi + half * (adv @ v_psi)
        _add(gain, m, half)
        gain_known = pi * v_known + half * (adv @ v_known - lin.gain[k])
        ahead_factor = lu_factor(ahead, overwrite_a=True, check_finite=False)
        y_matrix = lu_solve(ahead_factor, gain.T, trans=1, check_finite=False).T
        y_matrix = 0.5 * (y_matrix + y_matrix.T)
        y = gain_known - y_matrix @ ahead_known
        kept.append((v_psi, v_known, ahead_factor, ahead_known))
    after = _last_potential(y_matrix, y)
    psi, v = np.empty((count, n)), np.empty((count, n))
    for k in reversed(range(count)):
        v_psi, v_known, ahead_factor, ahead_known = kept[k]
        psi[k] = lu_solve(ahead_factor, after - ahead_known)
        v[k] = v_psi @ psi[k] + v_known
        after = 2 * psi[k] - after
    return psi, v


def _collocation(lin: Linearisation) -> tuple[Array, Array]:
    """Several stages a piece: one block of size 2 x order x n."""
    pi, mesh = lin.kernel.stationary, lin.mesh
    count, n = lin.rho.shape
    y_matrix, y = np.zeros((n, n)), np.zeros(n)
    kept: list[_Piece] = []
    for k in range(mesh.pieces):
        h = mesh.widths[k]
        here = slice(mesh.start[k], mesh.start[k + 1])
        order = int(mesh.orders[k])
        size = order * n
        local = mesh.forward[here, here] / h
        quadrature = mesh.weights[here] / h
        rho, gain, constant = lin.rho[here], lin.gain[here], lin.constant[here]
        block = np.zeros((2, order, n, 2, order, n))
        to_p, to_l = np.zeros((n, 2, order, n)), np.zeros((n, 2, order, n))
        for j in range(order):
            m, adv, curve = _dense(lin, int(mesh.start[k]) + j)
            back = h * adv.T / pi[:, None]
            m, adv, curve = h * m, h * adv * rho[j], h * curve * rho[j] / pi[:, None]
            for i in range(order):
                mass = (pi * rho[i])[:, None]
                block[0, i, :, 0, j, :] = -local[i, j] * adv / mass
                block[0, i, :, 1, j, :] = -local[i, j] * m / mass
                block[1, i, :, 0, j, :] = local[i, j] * curve
                block[1, i, :, 1, j, :] = local[i, j] * back
            to_p[:, 0, j], to_p[:, 1, j] = quadrature[j] * adv, quadrature[j] * m
            to_l[:, 0, j], to_l[:, 1, j] = -quadrature[j] * curve, -quadrature[j] * back
        flat = block.reshape(2 * size, 2 * size)
        flat[np.arange(2 * size), np.arange(2 * size)] += 1.0
        right = np.empty((2, order, n, n + 1))
        mass = (pi * rho)[:, :, None]
        right[0, :, :, :n] = y_matrix / mass
        right[0, :, :, n] = (y - h * (local @ gain)) / mass[:, :, 0]
        right[1, :, :, :n] = np.eye(n)
        right[1, :, :, n] = -h * (local @ constant) / pi
        both = lu_solve(lu_factor(flat, overwrite_a=True), right.reshape(2 * size, n + 1))
        out_p = to_p.reshape(n, 2 * size) @ both
        out_l = to_l.reshape(n, 2 * size) @ both
        ahead = np.eye(n) + out_l[:, :n]
        ahead_known = out_l[:, n] - h * (quadrature @ constant) / pi
        factor = lu_factor(ahead)
        moved = y_matrix + out_p[:, :n]
        known = y + out_p[:, n] - h * (quadrature @ gain)
        y_matrix = lu_solve(factor, moved.T, trans=1).T
        y_matrix = 0.5 * (y_matrix + y_matrix.T)
        y = known - y_matrix @ ahead_known
        kept.append(_Piece(both[:, :n], both[:, n], factor, ahead_known))
    after = _last_potential(y_matrix, y)
    psi, v = np.empty((count, n)), np.empty((count, n))
    for k in reversed(range(mesh.pieces)):
        piece = kept[k]
        after = lu_solve(piece.next, after - piece.next_offset)
        x = (piece.stages @ after + piece.offset).reshape(2, int(mesh.orders[k]), n)
        here = slice(mesh.start[k], mesh.start[k + 1])
        v[here] = x[0] * lin.rho[here]
        psi[here] = x[1]
    return psi, v
