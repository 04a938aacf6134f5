"""The flow with jump rates frozen over each interval, as in the paper's simulations.

With `Q(p_k)` the jump rates at the start of an interval, `p_{k+1} = p_k exp(dt Q(p_k))`. A state
that is nearly empty has enormous rates, so the exponential's action is computed by implicit Euler,
positive and stable for any rate, extrapolated over 1, 2 and 4 steps; derivatives are exact for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg.learn.likelihood.dynamics import EXTRAPOLATION, _factor, _solve
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, saturated
from thalweg.mobility import formulas

__all__ = ["EMPTY", "FrozenObjective", "frozen_interval", "frozen_intervals", "transition"]

Array = NDArray[np.float64]
Index = NDArray[np.int32]

EMPTY = -1e6  # log density of a state with no individuals
_FASTEST = 1e12  # a rate beyond this is as good as immediate


@njit(cache=True)
def transition(
    source: Index,
    target: Index,
    conductance: Array,
    pi: Array,
    spec: Array,
    u: Array,
    f: Array,
    u_slopes: Array,
    f_slopes: Array,
    p: Array,
    p_slopes: Array,
    dt: float,
    n_steps: int,
) -> tuple[Array, Array, Array]:
    """`p exp(dt Q(u))`, its derivatives, and the matrix `exp(dt Q)` itself.

    `u_slopes`, `f_slopes`, `p_slopes` (N, P): derivatives of log density, first variation and
    mass at the start.
    """
    n, n_columns = pi.size, p_slopes.shape[1]
    n_edges = source.size
    generator = np.zeros((n, n))  # transposed: columns sum to zero
    start, end = np.empty(n_edges, np.int64), np.empty(n_edges, np.int64)
    rate_slopes = np.zeros((n_edges, n_columns))
    for e in range(n_edges):
        x, y = source[e], target[e]
        if f[x] < f[y]:
            x, y = y, x
        start[e], end[e] = x, y
        top = max(u[x], u[y])
        m, m_x, m_y = formulas.mean_log_partials(spec, u[x] - top, u[y] - top)
        # Mobility over the density of the state that is left.
        ratio = conductance[e] / pi[x] * math.exp(min(spec[2] * top - u[x], 600.0))
        rate = ratio * m * (f[x] - f[y])
        if rate > _FASTEST:
            rate = _FASTEST
        else:
            drop = ratio * (f[x] - f[y])
            for j in range(n_columns):
                rate_slopes[e, j] = (
                    drop * (m_x * u_slopes[x, j] + m_y * u_slopes[y, j])
                    - rate * u_slopes[x, j]
                    + ratio * m * (f_slopes[x, j] - f_slopes[y, j])
                )
        generator[y, x] += rate
        generator[x, x] -= rate
    out, out_slopes, out_matrix = np.zeros(n), np.zeros((n, n_columns)), np.zeros((n, n))
    system, pivot = np.empty((n, n)), np.empty(n, np.int64)
    for chain in range(3):
        steps = n_steps * 2**chain
        h = dt / steps
        for i in range(n):
            for j in range(n):
                system[i, j] = -h * generator[i, j]
            system[i, i] += 1.0
        _factor(system, pivot)
        now = np.empty((n, 1))
        now[:, 0] = p
        slopes, matrix = p_slopes.copy(), np.eye(n)
        for _ in range(steps):
            _solve(system, pivot, now)
            _solve(system, pivot, matrix)
            for e in range(n_edges):
                mass = h * now[start[e], 0]
                for j in range(n_columns):
                    flow = mass * rate_slopes[e, j]
                    slopes[start[e], j] -= flow
                    slopes[end[e], j] += flow
            _solve(system, pivot, slopes)
        c = EXTRAPOLATION[2, chain]
        out += c * now[:, 0]
        out_slopes += c * slopes
        out_matrix += c * matrix
        if chain == 2:
            for x in range(n):
                # Extrapolation may cross zero where hardly anything is left.
                if p[x] >= 0.0 and now[x, 0] >= 0.0 and out[x] < 0.1 * now[x, 0]:
                    out[x] = now[x, 0]
                    out_slopes[x] = slopes[x]
    return out, out_slopes, out_matrix


@njit(cache=True)
def _transitions(
    source: Index,
    target: Index,
    conductance: Array,
    pi: Array,
    spec: Array,
    u: Array,
    f: Array,
    u_slopes: Array,
    f_slopes: Array,
    p: Array,
    p_slopes: Array,
    dt: Array,
    n_steps: NDArray[np.int64],
) -> tuple[Array, Array, Array]:
    """`transition` for each interval by itself."""
    count, n = u.shape
    out, out_slopes = np.empty((count, n)), np.empty((count, n, p_slopes.shape[2]))
    matrices = np.empty((count, n, n))
    for k in range(count):
        out[k], out_slopes[k], matrices[k] = transition(
            source, target, conductance, pi, spec, u[k], f[k], u_slopes[k], f_slopes[k], p[k],
            p_slopes[k], dt[k], n_steps[k],
        )  # fmt: skip
    return out, out_slopes, matrices


def frozen_intervals(
    model: FlowModel,
    theta: Array,
    spans: Array,
    u: Array,
    slopes: Array,
    n_steps: NDArray[np.int64],
    mass: tuple[Array, Array] | None = None,
) -> tuple[Array, Array, Array]:
    """Spans of time (intervals, 2), each under the rates at its log density `u` (intervals, N).

    `slopes` (intervals, N, P) are the derivatives of `u`. Gives the masses at the ends, their
    derivatives, and the matrices that move them (columns sum to one). `mass`: what moves, and its
    derivatives, if it is not the population of that density.
    """
    kernel, n = model.kernel, model.n_states
    pi = kernel.stationary
    p = np.where(u > 0.5 * EMPTY, pi * np.exp(u), 0.0)
    columns = (np.eye(n) if model.features is None else model.features)[None]
    if model.time_basis is not None:
        parts = [model.time_basis.averages(span) for span in spans]
        columns = np.array([np.kron(part, columns[0]) for part in parts])
    beta = model.beta(theta)
    slope = model.internal.derivative(u)
    f = columns @ theta[model.potential_slice] + beta * slope
    if model.fixed_potential is not None:
        f = f + model.fixed_potential
    f_slopes = (beta * model.internal.log_slope(u))[:, :, None] * slopes
    f_slopes[:, :, model.potential_slice] += columns
    if model.learns_beta:
        f_slopes[:, :, model.beta_index] += beta * slope
    if model.n_interactions or model.fixed_interaction.size:
        w = np.tensordot(theta[model.interaction_slice], model.interactions, 1)
        if model.fixed_interaction.size:
            w = w + model.fixed_interaction
        f = f + p @ w.T
        f_slopes += (w * p[:, None, :]) @ slopes
        for j in range(model.n_interactions):
            f_slopes[:, :, model.n_potential + j] += p @ model.interactions[j].T
    moving, moving_slopes = (p, p[:, :, None] * slopes) if mass is None else mass
    return _transitions(
        *kernel.edges, pi, model.mobility.spec, u, f, slopes, f_slopes, moving, moving_slopes,
        np.diff(spans)[:, 0], n_steps,
    )  # fmt: skip


def frozen_interval(
    model: FlowModel,
    theta: Array,
    interval: int,
    u: Array,
    slopes: Array,
    n_steps: int,
    piece: tuple[int, int] = (0, 1),
) -> tuple[Array, Array, Array]:
    """One interval under the rates at `u`; `piece = (i, m)`: only the i-th of m equal parts."""
    t0, t1 = model.times[interval], model.times[interval + 1]
    span = t0 + (t1 - t0) * (piece[0] + np.array([[0.0, 1.0]])) / piece[1]
    found = frozen_intervals(model, theta, span, u[None], slopes[None], np.array([n_steps]))
    return found[0][0], found[1][0], found[2][0]


@dataclass(frozen=True, eq=False)
class FrozenObjective:
    """Independent snapshots of the chain of frozen rates."""

    model: FlowModel
    counts: Array
    pieces: int = 1
    """Rates are renewed this often within an interval: many is the continuous flow."""

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        path = self.trajectory(theta, mesh)
        if path is None:
            return None
        p, slopes = path
        size = self.model.n_parameters
        expected = self.counts.sum(axis=1, keepdims=True) * p
        with np.errstate(all="ignore"):
            log_slopes = slopes / p[:, :, None]
            flat = log_slopes.reshape(-1, size)
            gradient = -flat.T @ (self.counts - expected).ravel()
            information = flat.T @ (flat * expected.ravel()[:, None])
            excess = np.maximum(self.counts - expected, 0.0).ravel()
            curvature = information + flat.T @ (flat * excess[:, None])
            value = saturated(self.counts) - float(np.sum(self.counts * np.log(p)))
        if not (np.isfinite(value) and np.isfinite(curvature).all()):
            return None
        return Evaluation(value, gradient, curvature, information, 0.0)

    def trajectory(self, theta: Array, mesh: Mesh) -> tuple[Array, Array] | None:
        """Probabilities at the times and their derivatives."""
        model, pi = self.model, self.model.kernel.stationary
        u = model.log_density(theta)
        p = pi * np.exp(u)
        slopes = np.zeros((model.n_states, model.n_parameters))
        if model.n_initial:
            slopes[:, model.initial_slice] = np.eye(model.n_states) - p
        rows, row_slopes = [p], [p[:, None] * slopes]
        for k in range(model.times.size - 1):
            steps = max(1, int(mesh.substeps[k]) // self.pieces)
            q, q_slopes = p, slopes
            for i in range(self.pieces):
                q, q_slopes, _ = frozen_interval(
                    model, theta, k, u, slopes, steps, (i, self.pieces)
                )
                if not np.isfinite(q).all():
                    return None
                q, q_slopes = _unit_mass(q, q_slopes)
                u, slopes = np.log(q / pi), q_slopes / q[:, None]
            rows.append(q)
            row_slopes.append(q_slopes)
        return np.array(rows), np.array(row_slopes)


def _unit_mass(q: Array, slopes: Array) -> tuple[Array, Array]:
    """Mass one, kept positive: a state left to its finest chain breaks the sum a little."""
    q = np.maximum(q, 1e-290)
    total = q.sum()
    return q / total, slopes / total - np.outer(q, slopes.sum(axis=0)) / total**2
