"""The gradient flow with its exact discrete sensitivities, compiled, for small dense problems.

The unknown is `u = log rho`, so a state may empty down to `exp(-2000)` and stay positive. One step
of implicit Euler in mass form,

    pi e^{u1} = pi e^{u0} - h M(u1) f(u1),    f = V(t) + W p + beta U'(u),

is stable for any step, keeps the mass to rounding and never leaves the simplex. Three chains with
steps `h`, `h/2`, `h/4` run side by side over the whole horizon and are extrapolated in `u` where an
output is wanted: order three, positive, and each chain stays implicit Euler. Rows are divided by
`exp(w_x)`, the largest density that touches state `x`, so that nothing underflows where a whole
region is empty.

Sensitivities are those of the scheme itself: `J dU1 = diag(pi e^{u0}) dU0 - h M dF`, with the
Newton matrix `J` of the step.

Absent parts of a model (interactions, features, births, ...) are `None`, and the dimensions of
`pivot` select the solver of the dense systems: numba drops unused branches before it types them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._dense import copy, factor, solve, solve_factored
from thalweg._types import Array
from thalweg.edges.fluxes import internal_derivative
from thalweg.edges.static import Graph
from thalweg.edges.step import Internal, bounded_change, edge_step, lifted
from thalweg.learn.likelihood.births import Births, grow
from thalweg.mobility import formulas

Pivots = NDArray[np.int64]

# Weights of the chains with 1, 2, 4 steps: they cancel the errors of order h and h^2.
EXTRAPOLATION = np.array([[1.0, 0.0, 0.0], [-1.0, 2.0, 0.0], [1.0 / 3.0, -2.0, 8.0 / 3.0]])

_NEWTON_LIMIT = 60
_NEWTON_TOLERANCE = 1e-7  # size of the last update; convergence is quadratic
_HAND_MADE = 24  # largest size at which an LU written out is faster than a call to LAPACK


class Landscape(NamedTuple):
    """Terms of every model: order of the internal energy, beta, and the parts of the potential.

    Parameters
    ----------
    order : float
        Order of the internal energy; 1 for the entropy.
    beta : float
        Noise.
    learn_beta : bool
        Whether `log beta` is a parameter.
    fixed : array
        Known part of the potential, shape (N,).
    fields : array
        Potential of each function of the time basis, shape (n_basis, N).
    """

    order: float
    beta: float
    learn_beta: bool
    fixed: Array
    fields: Array


class Steps(NamedTuple):
    """Intervals, steps of the coarsest chain in each, first row of the time basis, chains."""

    lengths: Array
    substeps: NDArray[np.int64]
    basis_start: int
    n_levels: int


class Chains(NamedTuple):
    """State of the chains, and the arrays that receive it after each interval.

    Parameters
    ----------
    logs : array
        Log densities of each chain, shape (levels, N).
    slopes : array
        Their derivatives, shape (levels, N, P).
    starts : array
        Log densities at which the intervals start, each by itself, shape (intervals, N); if it is
        empty, each starts where the last one ended.
    out, out_slopes : array
        Values and derivatives after each interval, (levels, intervals, N) and (..., N, P).
    """

    logs: Array
    slopes: Array
    starts: Array
    out: Array
    out_slopes: Array


class _Work(NamedTuple):
    """Scratch space of a step: `weights[e]` holds `h c m / (pi_x exp(level_x))` for both ends."""

    potential: Array
    level: Array
    weights: Array
    jacobian: Array
    update: Array


class Interactions(NamedTuple):
    """Interactions between the states.

    Parameters
    ----------
    total : array
        Sum of the interactions in force, shape (N, N).
    learned : array
        Those whose strengths are parameters, shape (n, N, N).
    """

    total: Array
    learned: Array


def pivots(n_states: int) -> Pivots:
    """Work space for the row exchanges of a small dense LU; two-dimensional if LAPACK solves."""
    return np.empty(n_states if n_states <= _HAND_MADE else (0, 0), dtype=np.int64)


@inner(cache=True, error_model="numpy")
def _assemble(
    graph: Graph,
    landscape: Landscape,
    interactions: Interactions | None,
    h: float,
    u0: Array,
    u: Array,
    work: _Work,
) -> float:
    """Residual and Newton matrix of one step, rows divided by `pi_x exp(level_x)`.

    Returns the largest residual.
    """
    source, target, conductance, pi, spec = graph
    potential, level, weights, jacobian, residual = work
    internal = Internal(landscape.order, landscape.beta)
    n, n_edges, degree = pi.size, source.size, formulas.degree(spec)
    lowest = u[0]
    for x in range(n):
        lowest = min(lowest, u[x], u0[x])
    deep = lowest < -250.0
    for x in range(n):
        level[x] = max(u[x], u0[x]) if deep else 0.0
    if deep:
        for e in range(n_edges):
            top = degree * max(u[source[e]], u[target[e]])
            level[source[e]] = max(level[source[e]], top)
            level[target[e]] = max(level[target[e]], top)
    for x in range(n):
        for z in range(n):
            jacobian[x, z] = 0.0
        own = math.exp(u[x] - level[x])
        jacobian[x, x] = own
        residual[x, 0] = own - math.exp(u0[x] - level[x])
    if interactions is not None:
        mass, field = pi * np.exp(u), np.zeros(n)
        for x in range(n):
            for z in range(n):
                field[x] += interactions.total[x, z] * mass[z]
    for e in range(n_edges):
        x, y = source[e], target[e]
        factor_x, factor_y, top = h * conductance[e] / pi[x], h * conductance[e] / pi[y], 0.0
        if deep:
            top = max(u[x], u[y])
            factor_x *= math.exp(degree * top - level[x])
            factor_y *= math.exp(degree * top - level[y])
        drop = potential[x] - potential[y]
        if interactions is not None:
            drop += field[x] - field[y]
        s, t = math.exp(u[x] - top), math.exp(u[y] - top)
        m, flux, by_x, by_y = edge_step(spec, internal, drop, u[x], u[y], s, t, top)
        weights[e, 0], weights[e, 1] = factor_x * m, factor_y * m
        residual[x, 0] += factor_x * flux
        residual[y, 0] -= factor_y * flux
        jacobian[x, x] += factor_x * by_x
        jacobian[x, y] += factor_x * by_y
        jacobian[y, x] -= factor_y * by_x
        jacobian[y, y] -= factor_y * by_y
        if interactions is not None:
            for z in range(n):
                kick = (interactions.total[x, z] - interactions.total[y, z]) * mass[z]
                jacobian[x, z] += weights[e, 0] * kick
                jacobian[y, z] -= weights[e, 1] * kick
    worst = 0.0
    for x in range(n):
        size = abs(residual[x, 0])
        if not size <= worst:
            worst = size
    return worst


@inner(cache=True, error_model="numpy")
def _lift(u: Array, work: _Work) -> bool:
    """Lift states that are about to fill to where Newton's method can start; whether any was."""
    moved = False
    for x in range(u.size):
        own = math.exp(u[x] - work.level[x])
        now = lifted(u[x], work.level[x], own, work.update[x, 0], work.jacobian[x, x])
        moved = moved or now != u[x]
        u[x] = now
    return moved


@inner(cache=True, error_model="numpy")
def _move(u0: Array, u: Array, work: _Work, damp: float) -> float:
    """Newton's update of `u`, damped and limited; its largest entry relative to the depth."""
    biggest, top = 0.0, u.max()
    for x in range(u.size):
        change = -work.update[x, 0]
        if not math.isfinite(change):
            return math.inf
        biggest = max(biggest, abs(change) / max(1.0, top - u[x]))
        u[x] += damp * bounded_change(change, u[x], u0[x], top)
    return biggest


@inner(cache=True, error_model="numpy")
def _step(
    graph: Graph,
    landscape: Landscape,
    interactions: Interactions | None,
    h: float,
    u0: Array,
    u: Array,
    work: _Work,
    pivot: Pivots,
) -> bool:
    """One step from `u0`, into `u`, by Newton's method; where that fails, along the path of growing
    step sizes. On success `work.jacobian` is factored there (small sizes)."""
    jacobian, update = work.jacobian, work.update
    reached, part, keep = 0.0, h, u0
    while reached < h:
        trial = min(h, reached + part)
        copy(keep, u)
        damp, before, solved = 1.0, math.inf, False
        for iteration in range(_NEWTON_LIMIT):
            worst = _assemble(graph, landscape, interactions, trial, u0, u, work)
            if not math.isfinite(worst):
                break
            if _lift(u, work):
                continue
            if pivot.ndim == 1:
                if not factor(jacobian, pivot):
                    break
                solve_factored(jacobian, pivot, update)
            elif not solve(jacobian, update):
                break
            biggest = _move(u0, u, work, damp)
            if not math.isfinite(biggest):
                break
            if biggest < _NEWTON_TOLERANCE and worst < 1e-5:
                solved = True
                break
            # A cycle between two points is broken by halving.
            if iteration > 12 and biggest > 0.5 * before:
                damp = max(0.25, 0.5 * damp)
            elif damp < 1.0:
                damp = min(1.0, 1.5 * damp)
            before = biggest
        if solved:
            reached = trial
            if reached < h:
                keep = u.copy()
            part *= 2.0
        else:
            part *= 0.25 if part < h else 0.0625
            if part < 1e-9 * h:
                return False
    return True


def extrapolate(chains: Array, slopes: Array) -> tuple[Array, Array, Array]:
    """Chains (levels, outputs, N) and their sensitivities, extrapolated in the step.

    Returns the log densities, those of one order less, for the error, and the sensitivities.
    """
    levels = len(chains)
    fine = chains[-1]
    best, coarse = (
        np.tensordot(EXTRAPOLATION[max(k, 0), :levels], chains, 1) - fine
        for k in (levels - 1, levels - 2)
    )
    correction, share = limited(best)
    total = np.tensordot(EXTRAPOLATION[levels - 1, :levels], slopes, 1)
    total -= slopes[-1]
    total *= share[:, :, None]
    total += slopes[-1]
    return fine + correction, fine + limited(coarse)[0], total


def limited(correction: Array) -> tuple[Array, Array]:
    """A correction of `log p` kept within `+-2`, and the derivative: at depth chains differ wildly.

    It leaves small corrections alone to fifth order, so the order of the scheme stays.
    """
    power = np.minimum(abs(0.5 * correction), 1e15) ** 4
    kept = (1.0 + power) ** -0.25
    return correction * kept, kept**5


@njit(cache=True, error_model="numpy")
def integrate(
    graph: Graph,
    landscape: Landscape,
    features: Array | None,
    basis: Array | None,
    interactions: Interactions | None,
    births: Births | None,
    forces: Array | None,
    pivot: Pivots,
    steps: Steps,
    chains: Chains,
) -> bool:
    """Advance all chains over the intervals; outputs of each chain after each of them.

    Columns of a sensitivity: the potential's coefficients (basis function by feature), the
    interaction strengths, the rates of birth, `log beta`, then those that start in the initial
    distribution, last the responses to `forces` (edges, n) that would be added to the differences
    of the first variation. `features` (N, n) is `None` for one coefficient per state. `basis`
    (fine steps, n_basis) holds the time basis averaged over the steps of the finest chain, `None`
    if nothing varies. `pivot` is that of `pivots`. Returns False where a step could not be solved.
    """
    source, target, pi = graph.source, graph.target, graph.pi
    order, beta, learn_beta, fixed, fields = landscape
    lengths, substeps, first_fine, n_levels = steps
    sensitivities, starts = chains.slopes, chains.starts
    n, n_edges = pi.size, source.size
    n_columns = sensitivities.shape[2]
    n_features, n_basis = n, fields.shape[0]
    if features is not None:
        n_features = features.shape[1]
    u = np.empty(n)
    potential, level, weights = np.empty(n), np.empty(n), np.empty((n_edges, 2))
    jacobian = np.empty((n, n))
    work = _Work(potential, level, weights, jacobian, np.empty((n, 1)))
    right = np.empty((n, n_columns))
    parts = np.empty(n_basis)
    finest = 2 ** (n_levels - 1)
    n_energy = n_basis * n_features + (1 if learn_beta else 0)
    if interactions is not None:
        n_energy += interactions.learned.shape[0]
    if births is not None:
        n_energy += births.columns.shape[1] if n_columns > 0 else 0

    for k in range(lengths.size):
        if starts.shape[0] > 0:
            for chain in range(n_levels):
                for x in range(n):
                    chains.logs[chain, x] = starts[k, x]
                    for j in range(n_columns):
                        sensitivities[chain, x, j] = 0.0
        for chain in range(n_levels):
            count = substeps[k] * 2**chain
            h = lengths[k] / count
            group = finest // 2**chain
            u0, s0 = chains.logs[chain], sensitivities[chain]
            for s in range(count):
                moved = s == 0
                if basis is not None:
                    moved = True
                if moved:
                    copy(fixed, potential)
                    for j in range(n_basis):
                        parts[j] = 1.0
                        if basis is not None:
                            total = 0.0
                            for i in range(group):
                                total += basis[first_fine + s * group + i, j]
                            parts[j] = total / group
                        for x in range(n):
                            potential[x] += parts[j] * fields[j, x]
                if not _step(graph, landscape, interactions, h, u0, u, work, pivot):
                    return False
                if n_columns > 0:
                    for x in range(n):
                        share = math.exp(u0[x] - level[x])
                        for j in range(n_columns):
                            right[x, j] = share * s0[x, j]
                    for e in range(n_edges):
                        x, y = source[e], target[e]
                        w_x, w_y = weights[e, 0], weights[e, 1]
                        if features is None:
                            for j in range(n_basis):
                                offset = j * n_features
                                right[x, offset + x] -= w_x * parts[j]
                                right[x, offset + y] += w_x * parts[j]
                                right[y, offset + x] += w_y * parts[j]
                                right[y, offset + y] -= w_y * parts[j]
                        else:
                            for j in range(n_basis):
                                for i in range(n_features):
                                    gap = parts[j] * (features[x, i] - features[y, i])
                                    right[x, j * n_features + i] -= w_x * gap
                                    right[y, j * n_features + i] += w_y * gap
                        if forces is not None:
                            offset = n_columns - forces.shape[1]
                            for j in range(forces.shape[1]):
                                right[x, offset + j] -= w_x * forces[e, j]
                                right[y, offset + j] += w_y * forces[e, j]
                        if learn_beta:
                            gap = internal_derivative(order, u[x])
                            gap = beta * (gap - internal_derivative(order, u[y]))
                            right[x, n_energy - 1] -= w_x * gap
                            right[y, n_energy - 1] += w_y * gap
                    if interactions is not None:
                        field = np.empty(n)
                        for j in range(interactions.learned.shape[0]):
                            column = n_basis * n_features + j
                            for x in range(n):
                                field[x] = 0.0
                                for z in range(n):
                                    mass = pi[z] * math.exp(u[z])
                                    field[x] += interactions.learned[j, x, z] * mass
                            for e in range(n_edges):
                                x, y = source[e], target[e]
                                right[x, column] -= weights[e, 0] * (field[x] - field[y])
                                right[y, column] += weights[e, 1] * (field[x] - field[y])
                    if pivot.ndim == 1:
                        solve_factored(jacobian, pivot, right)
                    elif not solve(jacobian, right):
                        return False
                    for x in range(n):
                        for j in range(n_columns):
                            s0[x, j] = right[x, j]
                copy(u, u0)
                if births is not None:
                    grow(births, chain, h, pi, u0, s0)
        first_fine += substeps[k] * finest
        if births is not None:
            for chain in range(n_levels):
                c = EXTRAPOLATION[n_levels - 1, chain]
                births.out[k, 0] += c * births.log_mass[chain]
                for j in range(births.slopes.shape[1]):
                    births.out[k, 1 + j] += c * births.slopes[chain, j]
        for chain in range(n_levels):
            for x in range(n):
                chains.out[chain, k, x] = chains.logs[chain, x]
                for j in range(n_columns):
                    chains.out_slopes[chain, k, x, j] = sensitivities[chain, x, j]
    return True
