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
from thalweg.mobility import formulas

__all__ = ["factor_all", "piece_blocks"]

Array = NDArray[np.float64]
Index = NDArray[np.int32]
Order = NDArray[np.int64]


@njit(cache=True, error_model="numpy")
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
    count, n = rho.shape
    upper, order = np.zeros((count, n, n)), np.empty((count, n), np.int64)
    psi, action = np.zeros((count, n)), np.zeros(count)
    place, w, y = np.empty(n, np.int64), np.empty((n, n)), np.empty(n)
    for i in range(count):
        order[i] = np.argsort(pi * rho[i])
        for k in range(n):
            place[order[i, k]] = k
        w[:] = 0.0
        for e in range(source.size):
            m = conductance[e] * formulas.fast_mean(spec, rho[i, source[e]], rho[i, target[e]])
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


@njit(cache=True, error_model="numpy")
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
    squares, force = np.empty((4 * count, n, n)), np.zeros((count, n))
    place = np.empty(n, np.int64)
    inverse, columns = np.zeros((n, n)), np.empty((n, 2 * n))
    product = np.empty((2 * n, 2 * n))
    for i in range(count):
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
        columns[:] = 0.0
        for b in range(n - 1):
            x = order[i, b]
            for k in range(b, n - 1):
                columns[k, x] = inverse[k, b] * pi[x]
        curvature = squares[count + i]
        curvature[:] = 0.0
        for e in range(source.size):
            x, y = source[e], target[e]
            _, first, second, ss, st, tt = formulas.fast_derivatives(spec, rho[i, x], rho[i, y])
            drop = psi[i, x] - psi[i, y]
            half = 0.5 * conductance[e] * drop * drop
            force[i, x] += half * first
            force[i, y] += half * second
            curvature[x, x] -= half * ss
            curvature[y, y] -= half * tt
            curvature[x, y] -= half * st
            curvature[y, x] -= half * st
            flow = conductance[e] * drop
            a, b = place[x], place[y]
            for k in range(min(a, b), n - 1):
                gain = flow * (inverse[k, a] - inverse[k, b])
                columns[k, n + x] += gain * first
                columns[k, n + y] += gain * second
        np.dot(columns.T, columns, product)
        squares[i] = product[:n, :n]
        squares[count + i] += product[n:, n:]
        squares[2 * count + i] = product[:n, n:]
        squares[3 * count + i] = product[n:, :n]
    return squares, force
