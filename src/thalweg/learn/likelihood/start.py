"""Start of the optimiser: the weak form on smoothed counts, dense, for any parametrisation.

Metric-weighted least squares of `p_dot = -M f` with trapezoids in time: with `F` the columns
`df / dtheta` at a snapshot, `sum_k w_k F_k^T M_k F_k theta = sum_k mean(F)_k^T (p_k - p_{k+1})`.
"""

from __future__ import annotations

import numpy as np

from thalweg._types import Array
from thalweg.edges.static import edge_weights
from thalweg.learn.likelihood.model import FlowModel
from thalweg.snapshots.density import smoothed


def weak_start(model: FlowModel, counts: Array) -> tuple[Array, float, float]:
    """Potential coefficients and interactions, beta, and the typical size of the potential."""
    kernel, times = model.kernel, model.times
    n, pi = model.n_states, kernel.stationary
    source, target, conductance = kernel.edges
    p = smoothed(counts)
    rho = p / pi
    lengths = np.diff(times)
    weights = np.zeros(times.size)
    weights[:-1] += 0.5 * lengths
    weights[1:] += 0.5 * lengths
    features = np.eye(n) if model.features is None else model.features
    parts = np.ones((times.size, 1))
    if model.time_basis is not None:
        edge = 1e-9 * (times[-1] - times[0])
        cells = np.stack([times - edge, times + edge], axis=1)
        parts = np.concatenate([model.time_basis.averages(cell) for cell in cells])
    q = model.n_potential + model.n_interactions + 1
    normal, right = np.zeros((q, q)), np.zeros(q)
    known, before = np.zeros(q), np.zeros((n, q))
    for k in range(times.size):
        columns = np.empty((n, q))
        columns[:, : model.n_potential] = np.kron(parts[k][None, :], features)
        for j in range(model.n_interactions):
            columns[:, model.n_potential + j] = model.interactions[j] @ p[k]
        columns[:, -1] = model.internal.derivative(np.log(rho[k]))
        w = edge_weights(source, target, conductance, rho[k], model.mobility.spec)
        gaps = columns[source] - columns[target]
        normal += weights[k] * gaps.T @ (w[:, None] * gaps)
        fixed = np.zeros(n) if model.fixed_potential is None else model.fixed_potential
        if model.fixed_interaction.size:
            fixed = fixed + model.fixed_interaction @ p[k]
        known += weights[k] * gaps.T @ (w * (fixed[source] - fixed[target]))
        if k:
            right += 0.5 * (columns + before).T @ (p[k - 1] - p[k])
        before = columns
    right -= known
    beta = model.fixed_beta
    if beta is None:
        answer = _solve(normal, right)
        beta = float(answer[-1])
        floor = 1e-2 * max(1e-300, float(np.abs(answer[:-1]).max(initial=0.0)), abs(beta))
        if not beta > floor:
            # Noise near empty states drives the weak beta negative: solve again without it.
            beta = floor
            answer = _solve(normal[:-1, :-1], right[:-1] - beta * normal[:-1, -1])
        else:
            answer = answer[:-1]
    else:
        answer = _solve(normal[:-1, :-1], right[:-1] - beta * normal[:-1, -1])
    potential = np.kron(np.ones((1, model.n_basis)), features) @ answer[: model.n_potential]
    spread = float(np.sqrt(pi @ (potential - pi @ potential) ** 2)) if potential.size else 0.0
    moved = float(np.abs(np.diff(p, axis=0)).sum() / (times[-1] - times[0]))
    scale = max(spread + beta, 1e-3 * moved, 1e-9 / float(times[-1] - times[0]))
    return np.asarray(answer), beta, scale


def _solve(normal: Array, right: Array) -> Array:
    """Minimum-norm solution with a small ridge, accurate enough for a start."""
    ridge = 1e-6 * float(np.trace(normal)) / max(1, right.size)
    return np.asarray(np.linalg.lstsq(normal + ridge * np.eye(right.size), right, rcond=1e-12)[0])


def starting_points(model: FlowModel, counts: Array) -> tuple[list[Array], float, float]:
    """Starts in the order in which they are tried, the weak beta, and the potential's scale."""
    answer, beta, scale = weak_start(model, counts)
    answer = np.clip(answer, -5 * scale, 5 * scale)
    beta = float(np.clip(beta, 0.02 * scale, 2 * scale)) if model.learns_beta else beta
    initial = np.log(smoothed(counts[0]) / model.kernel.stationary)

    def start(shrink: float, level: float) -> Array:
        theta = np.zeros(model.n_parameters)
        theta[: answer.size] = shrink * answer
        if model.learns_beta:
            theta[model.beta_index] = np.log(level)
        if model.n_initial:
            theta[model.initial_slice] = initial - initial.mean()
        return theta

    choices = [(1.0, beta), (1.0, 0.1 * scale), (0.5, 0.3 * scale), (0.0, 0.1 * scale)]
    choices += [(1.0, 0.02 * scale), (0.0, scale)]
    return [start(*choice) for choice in choices], beta, scale
