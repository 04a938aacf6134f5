"""One edge in one implicit Euler step: its flux, and the derivatives of that in the log densities.

A step of length `h` from masses `a` solves, in `u = log rho`,

    pi_x e^{u_x} + h sum_y c_xy J_xy(u) = a_x,    J = m (drop + beta (U'(rho_x) - U'(rho_y))),

with `drop` the fall of the potential from `x` to `y`. The solvers differ in how they store the
Newton matrix (dense, by slots, by outflow) and in how they scale its rows; what an edge adds to it
is written here, once: in densities, where these are numbers, and in logarithms for all depths.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from thalweg._compile import inner
from thalweg._types import Array
from thalweg.edges.fluxes import internal_derivative, internal_log_slope
from thalweg.mobility import formulas, logarithmic

_FILLING = 0.3
"""Share of a state's mass that must be missing for it to count as filling."""


class Internal(NamedTuple):
    """The internal energy `beta U`; `order` 1 is the entropy."""

    order: float
    beta: float


@inner(cache=True, error_model="numpy")
def entropy_step(
    beta: float, drop: float, z: float, s: float, t: float
) -> tuple[float, float, float, float]:
    """`m, J, dJ/du, dJ/dv` for the logarithmic mean and the entropy, from `z = u - v`.

    `J = m drop + beta (s - t)` has no logarithm, and is homogeneous: scaled densities give a
    scaled flux.
    """
    m_u, m_v = logarithmic.from_difference(z, s, t)
    m = m_u + m_v
    return m, m * drop + beta * (s - t), m_u * drop + beta * s, m_v * drop - beta * t


@inner(cache=True, error_model="numpy")
def edge_step(
    spec: Array, internal: Internal, drop: float, u: float, v: float, s: float, t: float, top: float
) -> tuple[float, float, float, float]:
    """`m, J, dJ/du, dJ/dv` at the log densities `u, v`, for densities divided by `e^top`.

    `s` and `t` are `e^{u - top}` and `e^{v - top}`; results are divided by `e^{k top}`, with `k`
    the degree of the mean.
    """
    order, beta = internal
    if spec.ndim == 3 and order == 1.0:
        return entropy_step(beta, drop, u - v, s, t)
    m, m_u, m_v = formulas.mean_log_partials(spec, u - top, v - top)
    fall, slope_u, slope_v = _fall(internal, drop, u, v)
    return m, m * fall, m_u * fall + m * slope_u, m_v * fall - m * slope_v


@inner(cache=True, error_model="numpy")
def edge_step_in_logarithms(
    spec: Array, internal: Internal, drop: float, u: float, v: float
) -> tuple[float, float, float, float]:
    """`log m`, and `J / m, (dJ/du) / m, (dJ/dv) / m`: nothing under- or overflows."""
    log_m, by_u, by_v = formulas.log_mean_partials(spec, u, v)
    fall, slope_u, slope_v = _fall(internal, drop, u, v)
    return log_m, fall, by_u * fall + slope_u, by_v * fall - slope_v


@inner(cache=True, error_model="numpy")
def _fall(internal: Internal, drop: float, u: float, v: float) -> tuple[float, float, float]:
    """The fall of the first variation, its derivative in `u`, and minus that in `v`."""
    order, beta = internal
    if beta == 0.0:
        return drop, 0.0, 0.0
    fall = drop + beta * (internal_derivative(order, u) - internal_derivative(order, v))
    return fall, beta * internal_log_slope(order, u), beta * internal_log_slope(order, v)


@inner(cache=True)
def lifted(now: float, level: float, own: float, residual: float, slope: float) -> float:
    """The log density at which Newton's method can start for a state that is about to fill.

    Inflow into a nearly empty state falls like `1/z` with its depth `z` below its neighbours, and
    so the residual, mass missing, vanishes as the state empties: Newton then points downwards,
    without end. Where it would, the state is given what the present fluxes bring.

    Parameters
    ----------
    now : float
        The log density.
    level : float
        The logarithm of the scale of the next three.
    own, residual, slope : float
        The state's density, its residual in units of density, and its diagonal entry.
    """
    if slope < 0.0 and residual < -_FILLING * own:
        return level + math.log(own - residual)
    return now


@inner(cache=True)
def bounded_change(change: float, now: float, before: float, top: float) -> float:
    """Newton's change of a log density `now`, kept within what a step can be trusted with.

    The balance of an emptying state behaves like `1/z - beta` in its depth `z` below the fullest
    state, at `top`: there Newton doubles `z` and overshoots upwards, so the limits follow the
    depth. `before` is the log density at the start of the time step.
    """
    depth = top - now
    if change > 0.0:
        # What a state had is where its own mass alone would hold it.
        return min(change, before - now if before - now > 2.0 else max(2.0, 0.5 * depth))
    return max(change, -max(20.0, 1.5 * depth))
