"""One implicit Euler step in the entropy variable `u = log rho`: residual, Jacobian, relaxation.

The step from masses `a` over a time `h` solves, for every state `x`,

    R_x(u) = pi_x e^{u_x} + h sum_y c_xy m(u_x, u_y) (f_x - f_y) - a_x = 0,   f = E + beta U'(u).

A positive solution exists for every `h`, conserves mass, and has lower free energy. Each row is
divided by `e^{sigma_x}`, its own largest term, and every term is formed from logarithms: densities
such as `e^{-2000}`, which still affect the logarithmic mean, neither underflow nor spoil the solve.

Matrices are written into a flat array `values` through slots: position `diagonal[x]` holds the
entry `(x, x)`, `upper[e]` the entry `(source, target)` and `lower[e]` the entry
`(target, source)`, so that dense and sparse storage share the loops.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.edges.fluxes import internal_derivative, internal_log_slope
from thalweg.mobility import formulas

_EMPTY = -1e16
"""The least `u`. A state that runs empty for `beta = 0` falls without end; below this value a mean
like the logarithmic, `1 / |u|`, lets through less than rounding."""
Slots = NDArray[np.int64]

# A row never counts terms smaller than its right-hand side by more than this factor's logarithm.
_SPAN = 600.0


@njit(cache=True)
def evaluate(
    source: Index32,
    target: Index32,
    log_conductance: Array,
    log_pi: Array,
    u: Array,
    external: Array,
    beta: float,
    spec: Array,
    q: float,
    h: float,
    mass: Array,
    terms: Array,
    residual: Array,
) -> float:
    """Write `R(u)` to `residual` and return `sum_x |R_x(u)|`, in units of mass.

    `terms[e]` receives what the Jacobian needs of an edge: `log(h c m)`, `h c m`, the drop
    `f_x - f_y`, and the derivatives of `log m`.
    """
    log_h = math.log(h)
    for x in range(u.size):
        residual[x] = math.exp(log_pi[x] + u[x]) - mass[x]
    for e in range(source.size):
        x, y = source[e], target[e]
        log_m, by_x, by_y = formulas.log_mean_partials(spec, u[x], u[y])
        drop = external[x] - external[y]
        if beta > 0.0:
            drop += beta * (internal_derivative(q, u[x]) - internal_derivative(q, u[y]))
        log_w = log_h + log_conductance[e] + log_m
        weight = math.exp(log_w)
        terms[e, 0], terms[e, 1], terms[e, 2] = log_w, weight, drop
        terms[e, 3], terms[e, 4] = by_x, by_y
        residual[x] += weight * drop
        residual[y] -= weight * drop
    total = 0.0
    for x in range(u.size):
        total += abs(residual[x])
    return total


@njit(cache=True)
def assemble(
    source: Index32,
    target: Index32,
    log_pi: Array,
    u: Array,
    beta: float,
    q: float,
    log_mass: Array,
    terms: Array,
    diagonal: Slots,
    upper: Slots,
    lower: Slots,
    values: Array,
    right: Array,
    sigma: Array,
) -> None:
    """Newton's system `J du = -R` at the `u` last evaluated, each row divided by `e^sigma`."""
    n = u.size
    for x in range(n):
        sigma[x] = max(log_pi[x] + u[x], log_mass[x] - _SPAN)
    for e in range(source.size):
        x, y = source[e], target[e]
        sigma[x] = max(sigma[x], terms[e, 0])
        sigma[y] = max(sigma[y], terms[e, 0])
    # Products with e^-sigma save the exponentials, where nothing underflows.
    inverse = np.zeros(n)
    for x in range(n):
        if sigma[x] > -300.0:
            inverse[x] = math.exp(-sigma[x])
        own = math.exp(log_pi[x] + u[x] - sigma[x])
        values[diagonal[x]] = own
        right[x] = math.exp(log_mass[x] - sigma[x]) - own
    for e in range(source.size):
        x, y = source[e], target[e]
        log_w, weight, drop = terms[e, 0], terms[e, 1], terms[e, 2]
        slope_x, slope_y = 0.0, 0.0
        if beta > 0.0:
            slope_x = beta * internal_log_slope(q, u[x])
            slope_y = beta * internal_log_slope(q, u[y])
        at_x = weight * inverse[x] if inverse[x] > 0.0 else math.exp(log_w - sigma[x])
        at_y = weight * inverse[y] if inverse[y] > 0.0 else math.exp(log_w - sigma[y])
        d_x = terms[e, 3] * drop + slope_x
        d_y = terms[e, 4] * drop - slope_y
        right[x] -= at_x * drop
        right[y] += at_y * drop
        values[diagonal[x]] += at_x * d_x
        values[diagonal[y]] -= at_y * d_y
        values[upper[e]] = at_x * d_y
        values[lower[e]] = -at_y * d_x


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
def add_interaction(
    source: Index32, target: Index32, terms: Array, sigma: Array, response: Array, matrix: Array
) -> None:
    """Add to a dense Newton matrix the change of `W p` with `u`: `h M W diag(p)`, rows scaled."""
    for e in range(source.size):
        x, y = source[e], target[e]
        at_x, at_y = math.exp(terms[e, 0] - sigma[x]), math.exp(terms[e, 0] - sigma[y])
        for z in range(sigma.size):
            difference = response[x, z] - response[y, z]
            matrix[x, z] += at_x * difference
            matrix[y, z] -= at_y * difference


class Relaxation(NamedTuple):
    """The parts of the equations of single states: adjacency, logarithms, the energy.

    `q` is the order of the internal energy, `external` the potential with the interaction.
    """

    indptr: Slots
    neighbor: Index32
    edge: Slots
    log_conductance: Array
    log_pi: Array
    spec: Array
    q: float
    beta: float
    external: Array


@inner(cache=True)
def _state_residual(
    given: Relaxation, v: float, x: int, u: Array, log_h: float, log_mass: float, shift: float
) -> float:
    """`e^{-shift} R_x` as a function of `u_x = v` alone."""
    indptr, neighbor, edge, log_conductance, log_pi, spec, q, beta, external = given
    total = math.exp(min(log_pi[x] + v - shift, 700.0)) - math.exp(min(log_mass - shift, 700.0))
    own = beta * internal_derivative(q, v) if beta > 0.0 else 0.0
    for k in range(indptr[x], indptr[x + 1]):
        y = neighbor[k]
        drop = external[x] - external[y]
        if beta > 0.0:
            drop += own - beta * internal_derivative(q, u[y])
        log_w = log_h + log_conductance[edge[k]] + formulas.log_mean_partials(spec, v, u[y])[0]
        total += math.exp(min(log_w - shift, 690.0)) * drop
    return total


@njit(cache=True)
def relax(given: Relaxation, u: Array, h: float, log_mass: Array, sweeps: int) -> None:
    """Nonlinear Gauss-Seidel on `u`, in place: each state in turn solves its own equation.

    `R_x` is negative for `u_x` low enough and positive for `u_x` high enough, so that a root is
    always bracketed: starting from the present value, going up where mass is missing, down where
    there is too much.
    """
    indptr, neighbor, edge = given.indptr, given.neighbor, given.edge
    n, log_h = u.size, math.log(h)
    for sweep in range(2 * sweeps):
        for i in range(n):
            x = i if sweep % 2 == 0 else n - 1 - i
            shift = max(log_mass[x], given.log_pi[x] + u[x])
            for k in range(indptr[x], indptr[x + 1]):
                log_w = (
                    log_h
                    + given.log_conductance[edge[k]]
                    + formulas.log_mean_partials(given.spec, u[x], u[neighbor[k]])[0]
                )
                shift = max(shift, log_w)
            low = high = u[x]
            r_low = r_high = r = _state_residual(given, u[x], x, u, log_h, log_mass[x], shift)
            if abs(r) < 1e-12:
                continue
            width = 1.0
            while r_high < 0.0 and high < 800.0:
                low, r_low = high, r_high
                high += width
                width *= 2.0
                r_high = _state_residual(given, high, x, u, log_h, log_mass[x], shift)
            width = 1.0
            while r_low > 0.0 and low > -1e6:
                high, r_high = low, r_low
                low -= width
                width *= 2.0
                r_low = _state_residual(given, low, x, u, log_h, log_mass[x], shift)
            for _ in range(60):
                if high - low < 1e-3:
                    break
                middle = 0.5 * (low + high)
                r = _state_residual(given, middle, x, u, log_h, log_mass[x], shift)
                if r > 0.0:
                    high = middle
                else:
                    low = middle
            u[x] = high
