"""Compiled chains of implicit Euler steps in `u = log rho`, with exact tangents and adjoints.

One step of length `h` solves, for every state `x`,

    pi_x (exp u_x - exp v_x) + h sum_y c_xy [m_xy (V_x - V_y) + beta (rho_x - rho_y)] = 0

for `u`, given the previous `v`: positive and mass-preserving by construction, at any `h`. Newton's
method solves it; each Newton matrix has dominant columns (mass that leaves a state arrives at its
neighbours), so Gauss-Seidel sweeps on the edges solve the linear systems, for any graph, in a few
passes, and states that are nearly empty and follow a neighbour cost nothing extra.

The matrix of a step is stored by outflow: `leave[e]` for the directed edge `e = (x -> y)` is
`h c d(flux x -> y)/d u_x`, so that column `x` holds `-leave` below and above its diagonal, and the
transpose is read in the order in which it is stored. Several right-hand sides travel together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Index
from thalweg.edges.step import bounded_change, entropy_step, lifted

NEWTON_LIMIT = 60
"""Largest number of Newton iterations per step."""
SWEEP_LIMIT = 400
"""Largest number of Gauss-Seidel sweeps per system."""


class Graph(NamedTuple):
    """Directed edges by the state they leave; `reverse` is the place of each one's opposite."""

    indptr: Index
    neighbor: NDArray[np.int32]
    reverse: Index
    conductance: Array
    pi: Array


class Chain(NamedTuple):
    """One chain: its start, its steps, the rows that are snapshots, its states and matrices.

    Row `k` of the last four belongs to the end of step `k`; `moved` holds `h c m` of every edge
    `x < y`, in the order of the directed ones.
    """

    u0: Array
    steps: Array
    keep: Index
    u: Array
    diagonal: Array
    leave: Array
    moved: Array


@inner(cache=True)
def _assemble(
    graph: Graph, V: Array, beta: float, chain: Chain, k: int, before: Array, rho: Array,
    residual: Array,
) -> None:  # fmt: skip
    """Residual and matrix of step `k` at `chain.u[k]`; `before` is the previous mass `pi rho`."""
    u, diagonal, leave, moved = chain.u[k], chain.diagonal[k], chain.leave[k], chain.moved[k]
    n, edge = u.size, 0
    for x in range(n):
        rho[x] = math.exp(u[x])
        mass = graph.pi[x] * rho[x]
        residual[x] = mass - before[x]
        diagonal[x] = mass
    for x in range(n):
        for e in range(graph.indptr[x], graph.indptr[x + 1]):
            y = graph.neighbor[e]
            if y < x:
                continue
            m, flux, by_x, by_y = entropy_step(beta, V[x] - V[y], u[x] - u[y], rho[x], rho[y])
            scale = chain.steps[k] * graph.conductance[e]
            residual[x] += scale * flux
            residual[y] -= scale * flux
            diagonal[x] += scale * by_x
            diagonal[y] -= scale * by_y
            leave[e] = scale * by_x
            leave[graph.reverse[e]] = -scale * by_y
            moved[edge] = scale * m
            edge += 1


@inner(cache=True)
def _solve_pair(
    graph: Graph, diagonal: Array, leave: Array, right: Array, x: Array, transpose: bool,
    tolerance: float,
) -> bool:  # fmt: skip
    """As `_solve`, for one or two columns: sums in registers take half the time."""
    n, last = right.shape[0], right.shape[1] - 1
    for sweep in range(SWEEP_LIMIT):
        moved, size = 0.0, 0.0
        for step in range(n):
            i = step if sweep % 2 == 0 else n - 1 - step
            first, second = right[i, 0], right[i, last]
            for e in range(graph.indptr[i], graph.indptr[i + 1]):
                y = graph.neighbor[e]
                a = leave[e] if transpose else leave[graph.reverse[e]]
                first += a * x[y, 0]
                second += a * x[y, last]
            inverse = 1.0 / diagonal[i]
            first *= inverse
            second *= inverse
            moved = max(moved, abs(first - x[i, 0]), abs(second - x[i, last]))
            size = max(size, abs(first), abs(second))
            x[i, 0] = first
            x[i, last] = second
        if moved <= tolerance * size:
            return True
        if not math.isfinite(size):
            return False
    return False


@inner(cache=True)
def _solve(
    graph: Graph, diagonal: Array, leave: Array, right: Array, x: Array, transpose: bool,
    tolerance: float,
) -> bool:  # fmt: skip
    """Symmetric Gauss-Seidel for `A x = right` or `A^T x = right`, until `x` hardly moves.

    `x` is the start and receives the solution, in as many columns as `right` has.
    """
    n, k = right.shape
    if k <= 2:
        return _solve_pair(graph, diagonal, leave, right, x, transpose, tolerance)
    total = np.empty(k)
    for sweep in range(SWEEP_LIMIT):
        moved, size = 0.0, 0.0
        for step in range(n):
            i = step if sweep % 2 == 0 else n - 1 - step
            for j in range(k):
                total[j] = right[i, j]
            for e in range(graph.indptr[i], graph.indptr[i + 1]):
                y = graph.neighbor[e]
                a = leave[e] if transpose else leave[graph.reverse[e]]
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


@njit(cache=True)
def forward_chain(graph: Graph, V: Array, beta: float, chain: Chain, tolerance: float) -> bool:
    """Run all steps; the rows of `chain` receive the state after each of them and its matrix.

    Returns whether Newton's method converged in every step.
    """
    n = chain.u0.size
    rho, residual, change = np.empty(n), np.empty(n), np.empty((n, 1))
    before = graph.pi * np.exp(chain.u0)
    for k in range(chain.steps.size):
        current, diagonal = chain.u[k], chain.diagonal[k]
        current[:] = chain.u0 if k == 0 else chain.u[k - 1]
        done = False
        for _ in range(NEWTON_LIMIT):
            _assemble(graph, V, beta, chain, k, before, rho, residual)
            moved = False
            for x in range(n):
                missing = residual[x] / graph.pi[x]
                now = lifted(current[x], 0.0, rho[x], missing, diagonal[x])
                moved = moved or now != current[x]
                current[x] = now
            if moved:
                continue
            for x in range(n):
                if not (diagonal[x] > 0.0):
                    return False
                change[x, 0] = -residual[x] / diagonal[x]
            right = -residual.reshape(n, 1)
            if not _solve(graph, diagonal, chain.leave[k], right, change, False, 1e-4):
                return False
            largest, top, old = 0.0, current.max(), chain.u[k - 1] if k > 0 else chain.u0
            for x in range(n):
                step = bounded_change(change[x, 0], current[x], old[x], top)
                largest = max(largest, abs(step))
                current[x] += step
            if not math.isfinite(largest):
                return False
            if largest < tolerance:
                done = True
                break
        if not done:
            return False
        _assemble(graph, V, beta, chain, k, before, rho, residual)
        for x in range(n):
            before[x] = graph.pi[x] * rho[x]
    return True


@inner(cache=True)
def _subtract_potential(graph: Graph, moved: Array, v: Array, out: Array) -> None:
    """`out -= h M v` for every column of `v`."""
    edge = 0
    for x in range(graph.pi.size):
        for e in range(graph.indptr[x], graph.indptr[x + 1]):
            y = graph.neighbor[e]
            if y < x:
                continue
            w = moved[edge]
            edge += 1
            for j in range(v.shape[1]):
                flux = w * (v[x, j] - v[y, j])
                out[x, j] -= flux
                out[y, j] += flux


@inner(cache=True)
def _heat(graph: Graph, rho: Array, out: Array) -> None:
    """`out_x = sum_y c_xy (rho_x - rho_y)`: the derivative of the step's equation in `beta`."""
    for x in range(rho.size):
        total = 0.0
        for e in range(graph.indptr[x], graph.indptr[x + 1]):
            total += graph.conductance[e] * (rho[x] - rho[graph.neighbor[e]])
        out[x] = total


@njit(cache=True)
def tangent_chain(
    graph: Graph, chain: Chain, du0: Array, dV: Array, dbeta: Array, tolerance: float, out: Array
) -> bool:
    """`out[i] = d u[keep[i]]` for the directions `(du0, dV, dbeta)`, one per column."""
    n, width = du0.shape
    x = du0.copy()
    right = np.empty((n, width))
    rho, warm = np.exp(chain.u0), np.empty(n)
    row = 0
    for k in range(chain.steps.size):
        for i in range(n):
            for j in range(width):
                right[i, j] = graph.pi[i] * rho[i] * x[i, j]
        rho = np.exp(chain.u[k])
        _subtract_potential(graph, chain.moved[k], dV, right)
        _heat(graph, rho, warm)
        for i in range(n):
            for j in range(width):
                right[i, j] -= chain.steps[k] * warm[i] * dbeta[j]
        if not _solve(graph, chain.diagonal[k], chain.leave[k], right, x, False, tolerance):
            return False
        while row < chain.keep.size and chain.keep[row] == k:
            out[row] = x
            row += 1
    return True


@njit(cache=True)
def adjoint_chain(
    graph: Graph, chain: Chain, weights: Array, tolerance: float, g0: Array, gV: Array, gbeta: Array
) -> bool:
    """Add to `(g0, gV, gbeta)` the derivatives of `sum_i weights[i] . u[keep[i]]`."""
    n, width = g0.shape
    back, x = np.zeros((n, width)), np.zeros((n, width))
    warm = np.empty(n)
    row = chain.keep.size - 1
    for k in range(chain.steps.size - 1, -1, -1):
        while row >= 0 and chain.keep[row] == k:
            back += weights[row]
            row -= 1
        if not _solve(graph, chain.diagonal[k], chain.leave[k], back, x, True, tolerance):
            return False
        rho = np.exp(chain.u[k])
        _subtract_potential(graph, chain.moved[k], x, gV)
        _heat(graph, rho, warm)
        previous = np.exp(chain.u[k - 1]) if k > 0 else np.exp(chain.u0)
        for i in range(n):
            mass = graph.pi[i] * previous[i]
            for j in range(width):
                gbeta[j] -= chain.steps[k] * warm[i] * x[i, j]
                back[i, j] = mass * x[i, j]
    g0 += back
    return True
