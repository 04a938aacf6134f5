"""Dense factors of transport Laplacians without a subtraction, and Newton's blocks from them.

Eliminating a state from a graph adds positive weights between its neighbours, and its pivot is the
sum of its weights (Grassmann, Taksar and Heyman): every entry of the factor, and of its inverse, is
exact to a few units in the last place, whatever the range of the weights. States are eliminated
from the lightest on; the heaviest is the ground.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg.edges import stages

__all__ = ["factor_all", "piece_blocks"]

Array = NDArray[np.float64]
Index = NDArray[np.int32]
Order = NDArray[np.int64]


def factor_all(
    source: Index,
    target: Index,
    conductance: Array,
    spec: Array,
    pi: Array,
    rho: Array,
    rate: Array,
) -> tuple[Array, Order, Array, Array]:
    """Of each row of `rho`: the factor `U` of `M = U^T U`, its order, `psi`, and `rate^T M^+ rate`.

    `M(rho) psi = rate`. An action that is not finite means that the graph falls apart there.
    """
    # Sorting, means and products of matrices stay outside the compiled loops: compiled with them,
    # the loops took 20 CPU seconds to compile.
    order = np.argsort(pi * rho, axis=1)
    weights = stages.stage_weights(source, target, conductance, rho, spec)
    upper, order, psi, action = _factor(source, target, weights, order, rate)
    return upper, order, psi, action


@njit(cache=True, error_model="numpy")
def _factor(
    source: Index, target: Index, weights: Array, order: Order, rate: Array
) -> tuple[Array, Order, Array, Array]:
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
    return upper, order, psi, action


def piece_blocks(
    source: Index,
    target: Index,
    conductance: Array,
    spec: Array,
    pi: Array,
    rho: Array,
    psi: Array,
    upper: Array,
    order: Order,
) -> tuple[Array, Array]:
    """The second variation of half the action at each point of a piece, and the force.

    With `d = pi rho'` it is `|L^-1 (dd - N drho)|^2 + drho^T C drho`, `M = L L^T`, where `N drho`
    is the change of `M psi` at fixed `psi`, and `C` (minus the second derivative of the mean) is
    positive. Returned are the blocks of `dd^2`, after them those of `drho^2`, of `dd drho` and of
    `drho dd`; and the force.
    """
    count, n = rho.shape
    table = stages.stage_derivatives(source, target, rho, spec)
    columns, squares, force = _columns(source, target, conductance, pi, table, psi, upper, order)
    product = columns.transpose(0, 2, 1) @ columns
    squares[:count] = product[:, :n, :n]
    squares[count : 2 * count] += product[:, n:, n:]
    squares[2 * count : 3 * count], squares[3 * count :] = product[:, :n, n:], product[:, n:, :n]
    return squares, force


@njit(cache=True, error_model="numpy")
def _columns(
    source: Index,
    target: Index,
    conductance: Array,
    pi: Array,
    table: Array,
    psi: Array,
    upper: Array,
    order: Order,
) -> tuple[Array, Array, Array]:
    """`L^-1` of `dd` and of `N drho`, side by side; `C` in the second quarter of the squares."""
    count, n = order.shape
    all_columns, squares = np.zeros((count, n, 2 * n)), np.zeros((4 * count, n, n))
    force = np.zeros((count, n))
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
            first, second = table[i, e, 0], table[i, e, 1]
            drop = psi[i, x] - psi[i, y]
            half = 0.5 * conductance[e] * drop * drop
            force[i, x] += half * first
            force[i, y] += half * second
            curvature[x, x] -= half * table[i, e, 2]
            curvature[y, y] -= half * table[i, e, 4]
            curvature[x, y] -= half * table[i, e, 3]
            curvature[y, x] -= half * table[i, e, 3]
            flow = conductance[e] * drop
            a, b = place[x], place[y]
            for k in range(min(a, b), n - 1):
                gain = flow * (inverse[k, a] - inverse[k, b])
                columns[k, n + x] += gain * first
                columns[k, n + y] += gain * second
    return all_columns, squares, force
