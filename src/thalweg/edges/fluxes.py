"""Compiled edge loops of the gradient flow in the variable `p`.

The flux along an edge, from `x` to `y`, is

    J = c [m(rho_x, rho_y) (E_x - E_y) + beta m(rho_x, rho_y) (U'(rho_x) - U'(rho_y))]

with `E = V + W p`. For a mean matched to the internal energy the second product is a difference of
powers, `rho_x^r - rho_y^r` (`r = 1` for the entropy under the logarithmic mean): it is used in that
form, which has no logarithm to blow up where a density vanishes.
"""

from __future__ import annotations

import math

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.energy import Entropy, FreeEnergy, PowerEnergy
from thalweg.errors import InputError
from thalweg.mobility import (
    LogMean,
    Mobility,
    PorousMediumMean,
    PowerHeatMean,
    formulas,
    logarithmic,
)


def internal_spec(energy: FreeEnergy, mobility: Mobility) -> Array:
    """`[q, r]`: the order of the internal energy (1: entropy), and the `r` of the closed form.

    `r = 0` if mean and energy are not matched.
    """
    if isinstance(energy.internal, Entropy):
        q, heat, porous = 1.0, [LogMean(), PowerHeatMean(1.0), PorousMediumMean(1.0)], []
    elif isinstance(energy.internal, PowerEnergy):
        q = energy.internal.q
        porous = [energy.internal.porous_mobility]
        heat = [PowerHeatMean(q)] if q <= 2 else []
    else:
        raise InputError(
            f"the flow does not know the internal energy {type(energy.internal).__name__}; "
            "use Entropy() or PowerEnergy(q)."
        )
    if mobility in heat:
        return np.array([q, 1.0])
    return np.array([q, q if mobility in porous else 0.0])


@inner(cache=True)
def internal_derivative(q: float, log_rho: float) -> float:
    """`U'(rho)` up to a constant, from `log rho`."""
    if q == 1.0:
        return log_rho
    return q * math.expm1((q - 1.0) * log_rho) / (q - 1.0)


@inner(cache=True)
def internal_log_slope(q: float, log_rho: float) -> float:
    """`d U'(rho) / d log rho`."""
    if q == 1.0:
        return 1.0
    return q * math.exp((q - 1.0) * log_rho)


@inner(cache=True)
def edge_flux(s: float, t: float, drop: float, beta: float, spec: Array, inner: Array) -> float:
    """`m(s, t) (drop + beta (U'(s) - U'(t)))`: the flux from the density `s` to the density `t`."""
    if inner[1] == 1.0:
        spread = s - t
    elif inner[1] != 0.0:
        spread = s ** inner[1] - t ** inner[1]
    else:
        m = formulas.mean(spec, s, t)
        if beta == 0.0 or m == 0.0:
            return m * drop
        if s <= 0.0 or t <= 0.0:
            # A mean that is positive here, like the arithmetic; the entropy's pull is infinite.
            low = -750.0
            ls = math.log(s) if s > 0.0 else low
            lt = math.log(t) if t > 0.0 else low
            return m * (
                drop
                + beta * (internal_derivative(inner[0], ls) - internal_derivative(inner[0], lt))
            )
        if inner[0] == 1.0:
            return m * (drop + beta * logarithmic.log_ratio(s, t))
        difference = internal_derivative(inner[0], math.log(s)) - internal_derivative(
            inner[0], math.log(t)
        )
        return m * (drop + beta * difference)
    if drop == 0.0:
        return beta * spread
    return formulas.mean(spec, s, t) * drop + beta * spread


@njit(cache=True)
def edge_fluxes(
    source: Index32,
    target: Index32,
    conductance: Array,
    rho: Array,
    external: Array,
    beta: float,
    spec: Array,
    inner: Array,
) -> Array:
    """The flux from `source` to `target` along each edge."""
    out = np.empty(source.size)
    for e in range(source.size):
        x, y = source[e], target[e]
        out[e] = conductance[e] * edge_flux(
            rho[x], rho[y], external[x] - external[y], beta, spec, inner
        )
    return out


@njit(cache=True)
def accumulate_velocity(
    source: Index32,
    target: Index32,
    conductance: Array,
    pi: Array,
    p: Array,
    external: Array,
    beta: float,
    spec: Array,
    inner: Array,
    rho: Array,
    out: Array,
) -> None:
    """Write `p_dot` to `out`, with `rho` as work space: one pass over the edges, no allocation."""
    for x in range(p.size):
        # An explicit stage may dip below zero; the density used here may not.
        rho[x] = max(p[x], 0.0) / pi[x]
        out[x] = 0.0
    if formulas.is_logarithmic(spec) and inner[1] == 1.0:
        # The usual case: a loop without branches on the kind of mean is several times faster.
        for e in range(source.size):
            x, y = source[e], target[e]
            s, t = rho[x], rho[y]
            m = logarithmic.mean(s, t)
            flux = conductance[e] * (m * (external[x] - external[y]) + beta * (s - t))
            out[x] -= flux
            out[y] += flux
        return
    for e in range(source.size):
        x, y = source[e], target[e]
        flux = conductance[e] * edge_flux(
            rho[x], rho[y], external[x] - external[y], beta, spec, inner
        )
        out[x] -= flux
        out[y] += flux


@njit(cache=True)
def steepness(
    source: Index32,
    target: Index32,
    conductance: Array,
    pi: Array,
    p: Array,
    external: Array,
    beta: float,
    floor: float,
    spec: Array,
    inner: Array,
) -> float:
    """The largest rate, `|d flux / d p_x|`, at which an emptier end of an edge reacts.

    Beside a full state, means have steep derivatives at zero, of which error estimates of explicit
    steps know nothing. Edges that carry less mass than `floor` in a unit of time do not count.
    """
    worst = 0.0
    for e in range(source.size):
        x, y = source[e], target[e]
        if p[x] * pi[y] < p[y] * pi[x]:
            x, y = y, x
        s, t = p[x] / pi[x], max(p[y] / pi[y], 1e-300)
        drop = external[x] - external[y]
        if conductance[e] * s * (abs(drop) + beta) <= floor:
            continue
        m, _, slope = formulas.mean_partials(spec, s, t)
        if beta > 0.0 and inner[1] == 0.0:
            own = internal_derivative(inner[0], math.log(t))
            drop += beta * (internal_derivative(inner[0], math.log(s)) - own)
            slope = abs(drop) * slope + beta * m * inner[0] * t ** (inner[0] - 2.0)
        else:
            slope = abs(drop) * slope
        worst = max(worst, conductance[e] / pi[y] * slope)
    return worst
