"""One interval, and a chain of intervals, under frozen rates: compiled, with derivatives.

At the start of an interval the density sets the first variation `f`, and `f` sets the rates
`Q_xy = c_xy m_xy / (pi_x rho_x) [f_x - f_y]_+`; then the population moves by `exp(dt Q)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array
from thalweg.edges.fluxes import internal_derivative, internal_log_slope
from thalweg.edges.static import Graph
from thalweg.learn.likelihood.chain.exponential import FASTEST, exponential
from thalweg.mobility import formulas

LEAST = 1e-290
"""Smallest mass of a state, so that its logarithm exists."""


class Energy(NamedTuple):
    """Terms of the first variation other than the potential of each interval."""

    order: float
    beta: float
    beta_column: int
    """Position of `log beta` among the parameters; -1 if beta is known."""
    interaction: Array
    """Known and learned interactions, shape (N, N); empty if there are none."""
    basis: Array
    """Interactions whose strengths are parameters, from `basis_column` on."""
    basis_column: int


class Parts(NamedTuple):
    """All intervals of a chain: graph, energy, and the potential of each with its derivatives."""

    graph: Graph
    energy: Energy
    potentials: Array
    """Shape (intervals, N)."""
    columns: Array
    """Shape (intervals, N, parameters of the potential)."""


@inner(cache=True)
def _first_variation(
    energy: Energy, potential: Array, columns: Array, u: Array, u_slopes: Array, p: Array
) -> tuple[Array, Array]:
    n, size = u_slopes.shape
    f, slopes = potential.copy(), np.zeros((n, size))
    for x in range(n):
        entropy = internal_derivative(energy.order, u[x])
        steep = internal_log_slope(energy.order, u[x])
        f[x] += energy.beta * entropy
        for j in range(size):
            slopes[x, j] = energy.beta * steep * u_slopes[x, j]
        if size:
            for j in range(columns.shape[1]):
                slopes[x, j] += columns[x, j]
            if energy.beta_column >= 0:
                slopes[x, energy.beta_column] += energy.beta * entropy
    w = energy.interaction
    for x in range(w.shape[0]):
        for y in range(n):
            f[x] += w[x, y] * p[y]
            for j in range(size):
                slopes[x, j] += w[x, y] * p[y] * u_slopes[y, j]
            if size:
                for i in range(energy.basis.shape[0]):
                    slopes[x, energy.basis_column + i] += energy.basis[i, x, y] * p[y]
    return f, slopes


@njit(cache=True)
def move(
    parts: Parts, k: int, u: Array, u_slopes: Array, mass: Array, mass_slopes: Array, dt: float
) -> tuple[Array, Array, Array]:
    """`mass exp(dt Q(u))` over interval `k`, its derivatives, and the matrix itself.

    `u` is the log density that sets the rates; `u_slopes` (N, P) and `mass_slopes` (rows, N, P) are
    derivatives in the parameters; with `P = 0` none are computed.
    """
    graph, energy = parts.graph, parts.energy
    n, size = u_slopes.shape
    pi = graph.pi
    p = np.zeros(n)
    if energy.interaction.shape[0]:
        for x in range(n):
            p[x] = pi[x] * math.exp(u[x])
    f, f_slopes = _first_variation(energy, parts.potentials[k], parts.columns[k], u, u_slopes, p)
    order = np.argsort(-f)
    rank = np.empty(n, np.int64)
    for i in range(n):
        rank[order[i]] = i
    count = graph.source.size
    start, end = np.empty(count, np.int64), np.empty(count, np.int64)
    rates, rate_slopes = np.empty(count), np.zeros((count, size))
    for e in range(count):
        x, y = graph.source[e], graph.target[e]
        if rank[x] > rank[y]:
            x, y = y, x
        start[e], end[e] = rank[x], rank[y]
        top = max(u[x], u[y])
        m, m_x, m_y = formulas.mean_log_partials(graph.spec, u[x] - top, u[y] - top)
        # Mobility over the density of the state that is left.
        ratio = (
            graph.conductance[e]
            / pi[x]
            * math.exp(min(formulas.degree(graph.spec) * top - u[x], 600.0))
        )
        drop = f[x] - f[y]
        rate = ratio * m * drop
        if rate > FASTEST / dt:
            rates[e] = FASTEST / dt
            continue
        rates[e] = rate
        for j in range(size):
            rate_slopes[e, j] = (
                ratio * drop * (m_x * u_slopes[x, j] + m_y * u_slopes[y, j])
                - rate * u_slopes[x, j]
                + ratio * m * (f_slopes[x, j] - f_slopes[y, j])
            )
    rows = mass.shape[0]
    ranked = np.empty((rows, n))
    for i in range(n):
        for r in range(rows):
            ranked[r, i] = mass[r, order[i]]
    matrix_ranked, responses = exponential(n, start, end, rates, dt, ranked, size > 0)
    matrix = np.zeros((n, n))
    for i in range(n):
        for k in range(i, n):
            matrix[order[i], order[k]] = matrix_ranked[i, k]
    out, out_slopes = np.zeros((rows, n)), np.zeros((rows, n, size))
    for r in range(rows):
        for x in range(n):
            for y in range(n):
                out[r, y] += mass[r, x] * matrix[x, y]
        for e in range(count if size else 0):
            for i in range(start[e], n):
                v = responses[r, e, i]
                if v != 0.0:
                    for j in range(size):
                        out_slopes[r, order[i], j] += v * rate_slopes[e, j]
        for x in range(n):
            for y in range(n):
                v = matrix[x, y]
                if v != 0.0:
                    for j in range(size):
                        out_slopes[r, y, j] += v * mass_slopes[r, x, j]
    return out, out_slopes, matrix


@njit(cache=True)
def move_each(
    parts: Parts, u: Array, u_slopes: Array, mass: Array, mass_slopes: Array, dt: Array
) -> tuple[Array, Array, Array]:
    """`move` for each interval by itself: one log density and one row of mass per interval."""
    count, n, size = u_slopes.shape
    out, out_slopes = np.empty((count, n)), np.empty((count, n, size))
    matrices = np.empty((count, n, n))
    for k in range(count):
        moved, moved_slopes, matrices[k] = move(
            parts, k, u[k], u_slopes[k], mass[k : k + 1], mass_slopes[k : k + 1], dt[k]
        )
        out[k], out_slopes[k] = moved[0], moved_slopes[0]
    return out, out_slopes, matrices


@inner(cache=True)
def _pulled(a: float, count: float, gain: float) -> tuple[float, float]:
    """An expected count `a` pulled towards one seen, in logarithms, and its derivative in `a`.

    With a count `c > 0` it is `(a + 1/2)^(1 - gain) (c + 1/2)^gain - 1/2`; a state where nobody was
    seen keeps its order of magnitude: `a ((1/2) / (a + 1/2))^gain`.
    """
    pull = ((count + 0.5) / (a + 0.5)) ** gain
    if count > 0.0:
        return (a + 0.5) * pull - 0.5, (1.0 - gain) * pull
    return a * pull, pull * (1.0 - gain * a / (a + 0.5))


@njit(cache=True)
def follow(
    parts: Parts,
    u: Array,
    u_slopes: Array,
    shares: Array,
    dt: Array,
    counts: Array,
    gain: float,
) -> tuple[Array, Array, Array, Array, Array]:
    """The infinite population from log density `u`, and what its rates do to the `shares` seen.

    `shares` (intervals, N), or no rows. Gives probabilities and the derivatives of their logarithms
    at every time, the shares moved and their derivatives, and the matrices. With a `gain` above 0
    the population is pulled towards the `counts` (times, N) after each interval.
    """
    (n, size), count = u_slopes.shape, dt.size
    p, slopes = np.empty((count + 1, n)), np.empty((count + 1, n, size))
    moved, moved_slopes = np.empty(shares.shape), np.empty((shares.shape[0], n, size))
    matrices = np.empty((count, n, n))
    rows = 1 if shares.shape[0] == 0 else 2
    mass, mass_slopes = np.zeros((rows, n)), np.zeros((rows, n, size))
    pi = parts.graph.pi
    p[0], slopes[0] = pi * np.exp(u), u_slopes
    for k in range(count):
        mass[0] = p[k]
        for x in range(n):
            mass_slopes[0, x] = p[k, x] * slopes[k, x]
        if rows == 2:
            mass[1] = shares[k]
        out, out_slopes, matrices[k] = move(
            parts, k, np.log(p[k] / pi), slopes[k], mass, mass_slopes, dt[k]
        )
        if rows == 2:
            moved[k], moved_slopes[k] = out[1], out_slopes[1]
        if gain > 0.0:
            size_seen = counts[k + 1].sum()
            for y in range(n):
                new, steep = _pulled(size_seen * out[0, y], counts[k + 1, y], gain)
                out[0, y] = new / size_seen
                out_slopes[0, y] *= steep
        now = np.maximum(out[0], LEAST)
        total = now.sum()
        p[k + 1] = now / total
        for j in range(size):
            mean = out_slopes[0, :, j].sum() / total
            for y in range(n):
                slopes[k + 1, y, j] = out_slopes[0, y, j] / now[y] - mean
    return p, slopes, moved, moved_slopes, matrices


@njit(cache=True)
def doubts(parts: Parts, p: Array, shares: Array, dt: Array, counts: Array, gain: float) -> Array:
    """Covariances of the shares moved (intervals, N, N) that come from not knowing the density.

    A population pulled towards the counts takes over their noise, `1 / c` in logarithms, which the
    rates of later intervals carry on and further pulls forget. `p` are its probabilities; the
    energy must not learn anything, and `parts` has no columns.
    """
    count, n = shares.shape
    out = np.empty((count, n, n))
    unknown = np.zeros((n, n))
    mass, mass_slopes = np.empty((2, n)), np.zeros((2, n, n))
    for k in range(count):
        mass[0], mass[1] = p[k], shares[k]
        mass_slopes[0] = np.diag(p[k])
        moved, slopes, _ = move(
            parts, k, np.log(p[k] / parts.graph.pi), np.eye(n), mass, mass_slopes, dt[k]
        )
        out[k] = slopes[1] @ unknown @ slopes[1].T
        ahead = np.ascontiguousarray(slopes[0])
        noise, total = np.empty(n), counts[k + 1].sum()
        for y in range(n):
            a, c = total * max(moved[0, y], LEAST), counts[k + 1, y]
            new, steep = _pulled(a, c, gain)
            keep = steep * a / new
            ahead[y] *= keep * total / a
            noise[y] = (1.0 - keep) ** 2 / (c + 0.5)
        unknown = ahead @ unknown @ ahead.T + np.diag(noise)
        for y in range(n):
            if unknown[y, y] > 1.0:
                scale = 1.0 / math.sqrt(unknown[y, y])
                unknown[y] *= scale
                unknown[:, y] *= scale
    return out
