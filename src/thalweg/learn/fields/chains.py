"""Compiled chains of implicit Euler steps in `u = log rho`, with exact tangents and adjoints.

One step of length `h` solves, for every state `x`,

    pi_x (exp u_x - exp v_x) + h sum_y c_xy [m_xy (V_x - V_y) + beta (rho_x - rho_y)] = 0

for `u`, given the previous `v`: positive and mass-preserving by construction, at any `h`. Newton's
method solves it; each Newton matrix has dominant columns (mass that leaves a state arrives at its
neighbours), so Gauss-Seidel sweeps on the edges solve the linear systems, for any graph, in a few
passes, and states that are nearly empty and slaved to a neighbour cost nothing extra.

The matrix of a step is stored by what leaves: `leave[e]` for the directed edge `e = (x -> y)` is
`h c d(flux x -> y)/d u_x`, so that column `x` holds `-leave` below and above its diagonal, and the
transpose is read in the order in which it is stored. Several right-hand sides travel together.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg.mobility import logarithmic

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Index32 = NDArray[np.int32]

NEWTON_LIMIT = 60
SWEEP_LIMIT = 400
_UP, _DOWN = 2.0, -20.0


@inner(cache=True)
def _assemble(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    conductance: Array,
    pi: Array,
    V: Array,
    beta: float,
    h: float,
    before: Array,
    u: Array,
    rho: Array,
    residual: Array,
    diagonal: Array,
    leave: Array,
    moved: Array,
) -> None:
    """Residual of the step at `u`, and its matrix; `before` is the previous mass `pi rho`.

    `moved` gets `h c m` of every edge `x < y`, in the order of the loop.
    """
    n, edge = u.size, 0
    for x in range(n):
        rho[x] = math.exp(u[x])
        mass = pi[x] * rho[x]
        residual[x] = mass - before[x]
        diagonal[x] = mass
    for x in range(n):
        for e in range(indptr[x], indptr[x + 1]):
            y = neighbor[e]
            if y < x:
                continue
            s, t = rho[x], rho[y]
            m_u, m_v = logarithmic.from_difference(u[x] - u[y], s, t)
            drop = V[x] - V[y]
            scale = h * conductance[e]
            flux = scale * ((m_u + m_v) * drop + beta * (s - t))
            forth = scale * (m_u * drop + beta * s)
            back = scale * (beta * t - m_v * drop)
            residual[x] += flux
            residual[y] -= flux
            diagonal[x] += forth
            diagonal[y] += back
            leave[e] = forth
            leave[reverse[e]] = back
            moved[edge] = scale * (m_u + m_v)
            edge += 1


@inner(cache=True)
def _sweeps(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    diagonal: Array,
    leave: Array,
    right: Array,
    x: Array,
    tolerance: float,
) -> int:
    """Symmetric Gauss-Seidel for `A x = right`, `x` in and out, until `x` moves by `tolerance`."""
    n = diagonal.size
    for sweep in range(SWEEP_LIMIT):
        moved, size = 0.0, 0.0
        for step in range(n):
            i = step if sweep % 2 == 0 else n - 1 - step
            total = right[i]
            for e in range(indptr[i], indptr[i + 1]):
                total += leave[reverse[e]] * x[neighbor[e]]
            total /= diagonal[i]
            moved = max(moved, abs(total - x[i]))
            size = max(size, abs(total))
            x[i] = total
        if moved <= tolerance * size:
            return sweep + 1
        if not math.isfinite(size):
            return -1
    return -1


@njit(cache=True)
def forward_chain(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    conductance: Array,
    pi: Array,
    V: Array,
    beta: float,
    steps: Array,
    u0: Array,
    tolerance: float,
    u: Array,
    diagonal: Array,
    leave: Array,
    moved: Array,
) -> int:
    """Run all `steps`; rows `k` of the outputs hold the state after step `k` and its matrix.

    Returns the number of Newton iterations, or minus the step that failed.
    """
    n = u0.size
    rho, residual, change = np.empty(n), np.empty(n), np.empty(n)
    before = pi * np.exp(u0)
    current = u0.copy()
    total = 0
    for k in range(steps.size):
        done = False
        for _ in range(NEWTON_LIMIT):
            _assemble(
                indptr, neighbor, reverse, conductance, pi, V, beta, steps[k], before, current, rho,
                residual, diagonal[k], leave[k], moved[k],
            )  # fmt: skip
            total += 1
            for x in range(n):
                if not (diagonal[k, x] > 0.0):
                    return -k - 1
                change[x] = -residual[x] / diagonal[k, x]
            if _sweeps(
                indptr, neighbor, reverse, diagonal[k], leave[k], -residual, change, 1e-4
            ) < 0:  # fmt: skip
                return -k - 1
            largest = 0.0
            for x in range(n):
                step = min(max(change[x], _DOWN), _UP)
                largest = max(largest, abs(step))
                current[x] += step
            if not math.isfinite(largest):
                return -k - 1
            if largest < tolerance:
                done = True
                break
        if not done:
            return -k - 1
        _assemble(
            indptr, neighbor, reverse, conductance, pi, V, beta, steps[k], before, current, rho,
            residual, diagonal[k], leave[k], moved[k],
        )  # fmt: skip
        u[k] = current
        for x in range(n):
            before[x] = pi[x] * rho[x]
    return total


@inner(cache=True)
def _solve_many(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    diagonal: Array,
    leave: Array,
    right: Array,
    x: Array,
    transpose: bool,
    tolerance: float,
    total: Array,
) -> bool:
    """`A x = right` or `A^T x = right` for every column; `x` in and out."""
    n, k = right.shape
    for sweep in range(SWEEP_LIMIT):
        moved, size = 0.0, 0.0
        for step in range(n):
            i = step if sweep % 2 == 0 else n - 1 - step
            for j in range(k):
                total[j] = right[i, j]
            if transpose:
                for e in range(indptr[i], indptr[i + 1]):
                    a, y = leave[e], neighbor[e]
                    for j in range(k):
                        total[j] += a * x[y, j]
            else:
                for e in range(indptr[i], indptr[i + 1]):
                    a, y = leave[reverse[e]], neighbor[e]
                    for j in range(k):
                        total[j] += a * x[y, j]
            inverse = 1.0 / diagonal[i]
            for j in range(k):
                new = total[j] * inverse
                moved = max(moved, abs(new - x[i, j]))
                size = max(size, abs(new))
                x[i, j] = new
        if moved <= tolerance * size:
            return True
    return False


@inner(cache=True)
def _subtract_potential(
    indptr: Index, neighbor: Index32, moved: Array, v: Array, out: Array
) -> None:
    """`out -= h M v` for every column of `v`."""
    edge = 0
    for x in range(indptr.size - 1):
        for e in range(indptr[x], indptr[x + 1]):
            y = neighbor[e]
            if y < x:
                continue
            w = moved[edge]
            edge += 1
            for j in range(v.shape[1]):
                flux = w * (v[x, j] - v[y, j])
                out[x, j] -= flux
                out[y, j] += flux


@njit(cache=True)
def heat(indptr: Index, neighbor: Index32, conductance: Array, rho: Array, out: Array) -> None:
    """`out_x = sum_y c_xy (rho_x - rho_y)`: the derivative of the step's equation in `beta`."""
    for x in range(rho.size):
        total = 0.0
        for e in range(indptr[x], indptr[x + 1]):
            total += conductance[e] * (rho[x] - rho[neighbor[e]])
        out[x] = total


@njit(cache=True)
def tangent_chain(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    conductance: Array,
    pi: Array,
    steps: Array,
    keep: Index,
    u0: Array,
    u: Array,
    diagonal: Array,
    leave: Array,
    moved: Array,
    du0: Array,
    dV: Array,
    dbeta: Array,
    tolerance: float,
    out: Array,
) -> bool:
    """`out[i] = d u[keep[i]]` for the directions `(du0, dV, dbeta)`, one per column."""
    n, width = du0.shape
    x = du0.copy()
    right = np.empty((n, width))
    total = np.empty(width)
    rho, warm = np.exp(u0), np.empty(n)
    row = 0
    for k in range(steps.size):
        for i in range(n):
            for j in range(width):
                right[i, j] = pi[i] * rho[i] * x[i, j]
        rho = np.exp(u[k])
        _subtract_potential(indptr, neighbor, moved[k], dV, right)
        heat(indptr, neighbor, conductance, rho, warm)
        for i in range(n):
            for j in range(width):
                right[i, j] -= steps[k] * warm[i] * dbeta[j]
        if not _solve_many(
            indptr, neighbor, reverse, diagonal[k], leave[k], right, x, False, tolerance, total
        ):  # fmt: skip
            return False
        while row < keep.size and keep[row] == k:
            out[row] = x
            row += 1
    return True


@njit(cache=True)
def adjoint_chain(
    indptr: Index,
    neighbor: Index32,
    reverse: Index,
    conductance: Array,
    pi: Array,
    steps: Array,
    keep: Index,
    u0: Array,
    u: Array,
    diagonal: Array,
    leave: Array,
    moved: Array,
    weights: Array,
    tolerance: float,
    g0: Array,
    gV: Array,
    gbeta: Array,
) -> bool:
    """Add to `(g0, gV, gbeta)` the derivatives of `sum_i weights[i] . u[keep[i]]`."""
    n, width = g0.shape
    cotangent = np.zeros((n, width))
    x = np.zeros((n, width))
    total, warm = np.empty(width), np.empty(n)
    row = keep.size - 1
    for k in range(steps.size - 1, -1, -1):
        while row >= 0 and keep[row] == k:
            cotangent += weights[row]
            row -= 1
        if not _solve_many(
            indptr, neighbor, reverse, diagonal[k], leave[k], cotangent, x, True, tolerance, total
        ):  # fmt: skip
            return False
        rho = np.exp(u[k])
        _subtract_potential(indptr, neighbor, moved[k], x, gV)
        heat(indptr, neighbor, conductance, rho, warm)
        previous = np.exp(u[k - 1]) if k > 0 else np.exp(u0)
        for i in range(n):
            mass = pi[i] * previous[i]
            for j in range(width):
                gbeta[j] -= steps[k] * warm[i] * x[i, j]
                cotangent[i, j] = mass * x[i, j]
    g0 += cotangent
    return True
