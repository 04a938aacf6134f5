"""Compiled edge loops of the gradient flow in the variable `p`.

The flux along an edge, from `x` to `y`, is

    J = c [m(rho_x, rho_y) (E_x - E_y) + beta m(rho_x, rho_y) (U'(rho_x) - U'(rho_y))]

with `E = V + W p`. For a mean matched to the internal energy the second product is a difference of
powers, `rho_x^r - rho_y^r` (`r = 1` for the entropy under the logarithmic mean): it is used in that
form, which has no logarithm to blow up where a density vanishes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.edges.static import Graph
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


def internal_spec(energy: FreeEnergy, mobility: Mobility) -> tuple[float, float]:
    """`q`, the order of the internal energy (1: entropy), and the power `r` of the closed form.

    `r = 0` if mean and energy are not matched.
    """
    if isinstance(energy.internal, Entropy):
        q, heat, porous = 1.0, [LogMean(), PowerHeatMean(1.0), PorousMediumMean(1.0)], []
    elif isinstance(energy.internal, PowerEnergy):
        q = float(energy.internal.q)
        porous = [energy.internal.porous_mobility]
        heat = [PowerHeatMean(q)] if q <= 2 else []
    else:
        raise InputError(
            f"the flow does not know the internal energy {type(energy.internal).__name__}; "
            "use Entropy() or PowerEnergy(q)."
        )
    if mobility in heat:
        return q, 1.0
    return q, q if mobility in porous else 0.0


class Drive(NamedTuple):
    """What moves mass beside the densities: `E`, `beta`, and the `internal_spec` of the energy."""

    external: Array
    beta: float
    order: float
    power: float

    @staticmethod
    def of(energy: FreeEnergy, mobility: Mobility, p: Array) -> Drive:
        """The drive at the distribution `p`, which matters to an interaction only."""
        return Drive(energy.external(p), energy.beta, *internal_spec(energy, mobility))


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


_LOG_OF_ZERO = -750.0
"""Stands for the logarithm of an empty state: below that of the smallest float."""


@inner(cache=True)
def _log(rho: float) -> float:
    return math.log(rho) if rho > 0.0 else _LOG_OF_ZERO


@inner(cache=True)
def edge_flux(
    spec: Array, s: float, t: float, fall: float, beta: float, order: float, power: float
) -> float:
    """`J / c` from the density `s` to the density `t`, with `fall = E_x - E_y`."""
    if power != 0.0:
        spread = s - t if power == 1.0 else s**power - t**power
        if fall == 0.0:
            return beta * spread
        return formulas.mean(spec, s, t) * fall + beta * spread
    m = formulas.mean(spec, s, t)
    if beta == 0.0 or m == 0.0:
        return m * fall
    # A mean that is positive where a state is empty, like the arithmetic, has a huge flux there.
    if order == 1.0 and s > 0.0 and t > 0.0:
        return m * (fall + beta * logarithmic.log_ratio(s, t))
    own = internal_derivative(order, _log(t))
    return m * (fall + beta * (internal_derivative(order, _log(s)) - own))


@njit(cache=True)
def edge_fluxes(graph: Graph, drive: Drive, rho: Array) -> Array:
    """The flux from `source` to `target` along each edge."""
    source, target, conductance, _, spec = graph
    external, beta, order, power = drive
    out = np.empty(source.size)
    for e in range(source.size):
        x, y = source[e], target[e]
        fall = external[x] - external[y]
        out[e] = conductance[e] * edge_flux(spec, rho[x], rho[y], fall, beta, order, power)
    return out


@njit(cache=True)
def accumulate_velocity(
    source: Index32,
    target: Index32,
    conductance: Array,
    pi: Array,
    spec: Array,
    external: Array,
    beta: float,
    order: float,
    power: float,
    p: Array,
    rho: Array,
    out: Array,
) -> None:
    """Write `p_dot` to `out`, with `rho` as work space: one pass over the edges, no allocation.

    Call it with `*graph, *drive`: taking them apart in Python is quicker than in numba, by a fifth
    of the time of a flow on ten states.
    """
    for x in range(p.size):
        # An explicit stage may dip below zero; the density used here may not.
        rho[x] = max(p[x], 0.0) / pi[x]
        out[x] = 0.0
    if formulas.is_logarithmic(spec) and power == 1.0:
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
        fall = external[x] - external[y]
        flux = conductance[e] * edge_flux(spec, rho[x], rho[y], fall, beta, order, power)
        out[x] -= flux
        out[y] += flux


@njit(cache=True)
def steepness(graph: Graph, drive: Drive, p: Array, floor: float) -> float:
    """The largest rate, `|d flux / d p_x|`, at which an emptier end of an edge reacts.

    Beside a full state, means have steep derivatives at zero, of which error estimates of explicit
    steps know nothing. Edges that carry less mass than `floor` in a unit of time do not count.
    """
    source, target, conductance, pi, spec = graph
    external, beta, order, power = drive
    worst = 0.0
    for e in range(source.size):
        x, y, c = source[e], target[e], conductance[e]
        if p[x] * pi[y] < p[y] * pi[x]:
            x, y = y, x
        s, t = p[x] / pi[x], max(p[y] / pi[y], 1e-300)
        fall = external[x] - external[y]
        if c * s * (abs(fall) + beta) <= floor:
            continue
        m, _, slope = formulas.mean_partials(spec, s, t)
        if beta > 0.0 and power == 0.0:
            own = internal_derivative(order, math.log(t))
            fall += beta * (internal_derivative(order, math.log(s)) - own)
            slope = abs(fall) * slope + beta * m * order * t ** (order - 2.0)
        else:
            slope = abs(fall) * slope
        worst = max(worst, c / pi[y] * slope)
    return worst
