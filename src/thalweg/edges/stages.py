"""Compiled passes over all stages of a discretised path: one row per stage, plain arrays.

`rho` and `psi` have shape (stages, states), `flux` (stages, edges). With `g = F / (c m)` the
kinetic energy of an edge, `F^2 / (2 c m(s, t))`, has the second variation
`(dF - c g dm)^2 / (c m) - c g^2 m''[(ds, dt)]^2 / 2`: a convex function for a concave mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg.edges import packed
from thalweg.mobility import formulas

Array = NDArray[np.float64]
Index = NDArray[np.int32]


def stage_weights(
    source: Index, target: Index, conductance: Array, rho: Array, spec: Array
) -> Array:
    """`c m(rho)` for every stage and edge."""
    out = np.empty((rho.shape[0], source.size))
    _stage_weights(source, target, conductance, rho, spec, out)
    return out


@njit(cache=True, error_model="numpy")
def _stage_weights(
    source: Index, target: Index, conductance: Array, rho: Array, spec: Array, out: Array
) -> None:
    for i in range(rho.shape[0]):
        for e in range(source.size):
            m = formulas.fast_mean(spec, rho[i, source[e]], rho[i, target[e]])
            out[i, e] = conductance[e] * m


@njit(cache=True, error_model="numpy")
def stage_derivatives(source: Index, target: Index, rho: Array, spec: Array) -> Array:
    """`m_s, m_t, m_ss, m_st, m_tt` of every stage and edge, (stages, edges, 5)."""
    out = np.empty((rho.shape[0], source.size, 5))
    for i in range(rho.shape[0]):
        for e in range(source.size):
            s, t = rho[i, source[e]], rho[i, target[e]]
            _, out[i, e, 0], out[i, e, 1], out[i, e, 2], out[i, e, 3], out[i, e, 4] = (
                formulas.fast_derivatives(spec, s, t)
            )
    return out


@njit(cache=True, error_model="numpy")
def sweep(
    source: Index,
    target: Index,
    conductance: Array,
    rho: Array,
    psi: Array,
    spec: Array,
    quadrature: Array,
) -> tuple[Array, Array, Array]:
    """Half the derivative of `psi^T M psi` in `rho`; the weights `c m`, and their average."""
    stages, n = rho.shape
    force = np.zeros((stages, n))
    edge, average = np.empty((stages, source.size)), np.zeros(source.size)
    for i in range(stages):
        b = quadrature[i]
        for e in range(source.size):
            x, y = source[e], target[e]
            m, first, second = formulas.fast_first(spec, rho[i, x], rho[i, y])
            difference = psi[i, x] - psi[i, y]
            edge[i, e] = conductance[e] * m
            average[e] += b * edge[i, e]
            half = 0.5 * conductance[e] * difference * difference
            force[i, x] += half * first
            force[i, y] += half * second
    return force, edge, average


def flux_action(
    source: Index, target: Index, conductance: Array, rho: Array, flux: Array, spec: Array
) -> Array:
    """`sum_e F^2 / (c m)` at every stage; infinite where mass moves without mobility."""
    weights = stage_weights(source, target, conductance, rho, spec)
    share = np.zeros(flux.shape)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(flux * flux, np.maximum(weights, 0.0), out=share, where=flux != 0.0)
    return np.asarray(share.sum(axis=1))


def flux_gain(source: Index, target: Index, flux: Array, n_states: int) -> Array:
    """What each state gains at every stage."""
    out = np.empty((flux.shape[0], n_states))
    for gain, row in zip(out, flux, strict=True):
        gain[:] = np.bincount(source, row, n_states) - np.bincount(target, row, n_states)
    return out


@njit(cache=True, error_model="numpy")
def linearise(
    source: Index, target: Index, conductance: Array, rho: Array, flux: Array, spec: Array
) -> tuple[Array, Array, Array]:
    """Coefficients of Newton's system: per edge `c m, c g m_s, c g m_t, c g^2 m''/2` (three).

    Returns the coefficients (stages, edges, 6), the force at `flux` (half of `c g^2 m_s`, summed)
    and the actions.
    """
    stages, n = rho.shape
    table = np.empty((stages, source.size, 6))
    force, action = np.zeros((stages, n)), np.zeros(stages)
    for i in range(stages):
        for e in range(source.size):
            x, y = source[e], target[e]
            s, t, c = rho[i, x], rho[i, y], conductance[e]
            m, first, second, ss, st, tt = formulas.fast_derivatives(spec, s, t)
            weight = c * m
            g = flux[i, e] / weight
            cg = c * g
            half = 0.5 * cg * g
            table[i, e, 0] = weight
            table[i, e, 1] = cg * first
            table[i, e, 2] = cg * second
            table[i, e, 3] = half * ss
            table[i, e, 4] = half * st
            table[i, e, 5] = half * tt
            force[i, x] += half * first
            force[i, y] += half * second
            action[i] += flux[i, e] * g
    return table, force, action


def flux_force(
    source: Index, target: Index, conductance: Array, rho: Array, flux: Array, spec: Array
) -> Array:
    """The force alone: half of `c g^2 m_s`, summed."""
    # `linearise` of `packed` does more, but it is compiled already, and this runs once per path.
    speed = flux / stage_weights(source, target, conductance, rho, spec)
    found = packed.linearise(source, target, conductance, rho.T.copy(), speed.T.copy(), spec)
    return np.ascontiguousarray(found.force.T)
