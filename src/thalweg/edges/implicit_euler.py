"""One implicit Euler step in the entropy variable `u = log rho`: residual, Jacobian, relaxation.

The step from masses `a` over a time `h` solves, for every state `x`,

    R_x(u) = pi_x e^{u_x} + h sum_y c_xy m(u_x, u_y) (f_x - f_y) - a_x = 0,   f = E + beta U'(u).

A positive solution exists for every `h`, conserves mass, and has lower free energy. Each row of
Newton's system is divided by its own largest term, `e^{sigma_x}`. Where densities are so small that
their products may underflow, every term is formed from logarithms (a deep step): densities such as
`e^{-2000}`, which still affect the logarithmic mean, then neither vanish nor spoil the solve.

Matrices are written into a flat array `values` through slots, so that all ways to store a matrix
share the loops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array
from thalweg.edges.fluxes import internal_derivative
from thalweg.edges.static import Graph
from thalweg.edges.step import Internal, edge_step_in_logarithms, entropy_step
from thalweg.mobility import formulas

if TYPE_CHECKING:
    from thalweg.kernel import Adjacency

_EMPTY = -1e16
"""The least `u`. A state that runs empty for `beta = 0` falls without end; below this value a mean
like the logarithmic, `1 / |u|`, lets through less than rounding."""
_SPAN = 600.0
"""A row's scale exceeds its right-hand side at most by this factor's logarithm."""
_DEEPEST = -450.0
"""Least log density of a step that is formed from densities."""
Places = NDArray[np.int64]


class Slots(NamedTuple):
    """Where entries of the matrix are stored: `(x, x)`, `(source, target)`, `(target, source)`."""

    diagonal: Places
    upper: Places
    lower: Places


class Equations(NamedTuple):
    """What all steps of a flow share."""

    graph: Graph
    log_conductance: Array
    log_pi: Array
    internal: Internal


class Step(NamedTuple):
    """One step: the potential with the interaction, the length, and the masses before."""

    external: Array
    h: float
    mass: Array
    log_mass: Array


class Work(NamedTuple):
    """Work space: per state the density, the residual and the scaled system; per edge its terms.

    `scale` is `e^sigma`, `inverse` one over it, or zero where it may overflow. A row of `terms`
    holds `log(h c m)` (deep steps only), `h c m`, the flux over the step, and its derivatives at
    both ends; in deep steps these three are divided by `h c m`.
    """

    rho: Array
    residual: Array
    right: Array
    sigma: Array
    scale: Array
    inverse: Array
    terms: Array

    @staticmethod
    def of(n_states: int, n_edges: int) -> Work:
        """Room for a graph of this size."""
        a, b, c, d, e, f = np.empty((6, n_states))
        return Work(a, b, c, d, e, f, np.empty((n_edges, 5)))


@njit(cache=True, error_model="numpy")
def evaluate(
    equations: Equations, step: Step, u: Array, work: Work, deep: bool
) -> tuple[float, bool]:
    """Write `R(u)` and the terms of the edges to `work`; `sum_x |R_x(u)|`, in units of mass.

    Also returns whether the step is deep: because it was asked for, or because a density is tiny. A
    step that is not is under the logarithmic mean, with the entropy.
    """
    graph, log_conductance, log_pi, internal = equations
    external, h, mass, log_mass = step
    residual, terms, rho = work.residual, work.terms, work.rho
    for x in range(u.size):
        if u[x] < _DEEPEST or log_mass[x] - log_pi[x] < _DEEPEST:
            deep = True
        rho[x] = math.exp(u[x])
        residual[x] = graph.pi[x] * rho[x] - mass[x]
    if deep:
        log_h = math.log(h)
        for e in range(graph.source.size):
            x, y = graph.source[e], graph.target[e]
            log_m, fall, by_x, by_y = edge_step_in_logarithms(
                graph.spec, internal, external[x] - external[y], u[x], u[y]
            )
            log_w = log_h + log_conductance[e] + log_m
            weight = math.exp(log_w)
            terms[e, 0], terms[e, 1], terms[e, 2] = log_w, weight, fall
            terms[e, 3], terms[e, 4] = by_x, by_y
            residual[x] += weight * fall
            residual[y] -= weight * fall
    else:
        for e in range(graph.source.size):
            x, y, scale = graph.source[e], graph.target[e], h * graph.conductance[e]
            drop = external[x] - external[y]
            edge = entropy_step(internal.beta, drop, u[x] - u[y], rho[x], rho[y])
            for k in range(4):
                terms[e, 1 + k] = scale * edge[k]
            residual[x] += terms[e, 2]
            residual[y] -= terms[e, 2]
    total = 0.0
    for x in range(u.size):
        total += abs(residual[x])
    return total, deep


@njit(cache=True, error_model="numpy")
def assemble(
    equations: Equations,
    step: Step,
    u: Array,
    work: Work,
    deep: bool,
    slots: Slots,
    values: Array,
) -> None:
    """Newton's system `J du = -R` at the `u` last evaluated, each row divided by `e^sigma`."""
    graph, right, inverse, terms = equations.graph, work.right, work.inverse, work.terms
    if deep:
        _deep_rows(equations, step, u, work, slots.diagonal, values)
    else:
        _rows(graph, work, slots.diagonal, values)
    for e in range(graph.source.size):
        x, y = graph.source[e], graph.target[e]
        at_x, at_y = inverse[x], inverse[y]
        if deep:
            # Products with e^-sigma save the exponentials, where nothing underflows.
            log_w, weight = terms[e, 0], terms[e, 1]
            at_x = weight * at_x if at_x > 0.0 else math.exp(log_w - work.sigma[x])
            at_y = weight * at_y if at_y > 0.0 else math.exp(log_w - work.sigma[y])
            right[x] -= at_x * terms[e, 2]
            right[y] += at_y * terms[e, 2]
        values[slots.diagonal[x]] += at_x * terms[e, 3]
        values[slots.diagonal[y]] -= at_y * terms[e, 4]
        values[slots.upper[e]] = at_x * terms[e, 4]
        values[slots.lower[e]] = -at_y * terms[e, 3]


@inner(cache=True, error_model="numpy")
def _rows(graph: Graph, work: Work, diagonal: Places, values: Array) -> None:
    """The scales, the right-hand side, and the masses on the diagonal."""
    scale = work.scale
    for x in range(scale.size):
        scale[x] = graph.pi[x] * work.rho[x]
        values[diagonal[x]] = scale[x]
    for e in range(graph.source.size):
        x, y = graph.source[e], graph.target[e]
        scale[x] = max(scale[x], work.terms[e, 1])
        scale[y] = max(scale[y], work.terms[e, 1])
    for x in range(scale.size):
        work.inverse[x] = 1.0 / scale[x]
        values[diagonal[x]] *= work.inverse[x]
        work.right[x] = -work.residual[x] * work.inverse[x]


@inner(cache=True, error_model="numpy")
def _deep_rows(
    equations: Equations, step: Step, u: Array, work: Work, diagonal: Places, values: Array
) -> None:
    """As `_rows`, from logarithms, with the masses alone on the right-hand side."""
    graph, sigma, log_mass = equations.graph, work.sigma, step.log_mass
    for x in range(u.size):
        sigma[x] = max(equations.log_pi[x] + u[x], log_mass[x] - _SPAN)
    for e in range(graph.source.size):
        x, y = graph.source[e], graph.target[e]
        sigma[x] = max(sigma[x], work.terms[e, 0])
        sigma[y] = max(sigma[y], work.terms[e, 0])
    for x in range(u.size):
        work.scale[x] = math.exp(sigma[x])
        work.inverse[x] = math.exp(-sigma[x]) if sigma[x] > -300.0 else 0.0
        own = math.exp(equations.log_pi[x] + u[x] - sigma[x])
        values[diagonal[x]] = own
        work.right[x] = math.exp(log_mass[x] - sigma[x]) - own


@njit(cache=True)
def newton_update(u: Array, step: Array, fraction: float, log_pi: Array, out: Array) -> None:
    """`out = u + fraction * step`, limited to masses of at most one and to one jump down.

    Upwards the step is read as a relative change of mass, `log(1 + step)`, which is exact where
    the residual is linear in the mass.
    """
    for x in range(u.size):
        d = fraction * step[x]
        if d > 0.0:
            if u[x] + log_pi[x] > -40.0:
                d = math.log1p(d)
            out[x] = min(u[x] + d, max(-log_pi[x], u[x]))
        else:
            out[x] = max(u[x] + max(d, -30.0 - abs(u[x])), _EMPTY)


@njit(cache=True)
def add_interaction(graph: Graph, work: Work, response: Array, matrix: Array) -> None:
    """Add to a dense Newton matrix the change of `W p` with `u`: `h M W diag(p)`, rows scaled.

    The step must be a deep one.
    """
    for e in range(graph.source.size):
        x, y = graph.source[e], graph.target[e]
        log_w = work.terms[e, 0]
        at_x, at_y = math.exp(log_w - work.sigma[x]), math.exp(log_w - work.sigma[y])
        for z in range(work.sigma.size):
            difference = response[x, z] - response[y, z]
            matrix[x, z] += at_x * difference
            matrix[y, z] -= at_y * difference


@inner(cache=True)
def _state_residual(
    equations: Equations, adjacency: Adjacency, step: Step, u: Array, x: int, v: float, shift: float
) -> float:
    """`e^{-shift} R_x` as a function of `u_x = v` alone."""
    log_h, (order, beta) = math.log(step.h), equations.internal
    total = math.exp(min(equations.log_pi[x] + v - shift, 700.0))
    total -= math.exp(min(step.log_mass[x] - shift, 700.0))
    own = beta * internal_derivative(order, v) if beta > 0.0 else 0.0
    for k in range(adjacency.indptr[x], adjacency.indptr[x + 1]):
        y = adjacency.neighbor[k]
        drop = step.external[x] - step.external[y]
        if beta > 0.0:
            drop += own - beta * internal_derivative(order, u[y])
        log_w = log_h + equations.log_conductance[adjacency.edge[k]]
        log_w += formulas.log_mean_partials(equations.graph.spec, v, u[y])[0]
        total += math.exp(min(log_w - shift, 690.0)) * drop
    return total


@njit(cache=True)
def relax(equations: Equations, adjacency: Adjacency, step: Step, u: Array, sweeps: int) -> None:
    """Nonlinear Gauss-Seidel on `u`, in place: each state in turn solves its own equation.

    `R_x` is negative for `u_x` low enough and positive for `u_x` high enough, so that a root is
    always bracketed: starting from the present value, going up where mass is missing, down where
    there is too much.
    """
    indptr, neighbor, edge = adjacency
    n, log_h = u.size, math.log(step.h)
    for sweep in range(2 * sweeps):
        for i in range(n):
            x = i if sweep % 2 == 0 else n - 1 - i
            shift = max(step.log_mass[x], equations.log_pi[x] + u[x])
            for k in range(indptr[x], indptr[x + 1]):
                log_w = (
                    log_h
                    + equations.log_conductance[edge[k]]
                    + formulas.log_mean_partials(equations.graph.spec, u[x], u[neighbor[k]])[0]
                )
                shift = max(shift, log_w)
            near = far = u[x]
            r = _state_residual(equations, adjacency, step, u, x, far, shift)
            if abs(r) < 1e-12:
                continue
            up = r < 0.0
            width = 1.0 if up else -1.0
            while (r < 0.0 and far < 800.0) if up else (r > 0.0 and far > -1e6):
                near = far
                far += width
                width *= 2.0
                r = _state_residual(equations, adjacency, step, u, x, far, shift)
            low, high = min(near, far), max(near, far)
            for _ in range(60):
                if high - low < 1e-3:
                    break
                middle = 0.5 * (low + high)
                r = _state_residual(equations, adjacency, step, u, x, middle, shift)
                if r > 0.0:
                    high = middle
                else:
                    low = middle
            u[x] = high
