"""Compiled passes over the edges at all stages of a discretised path: its kinetic energy.

In fluxes, arrays have one row per stage: `rho` and `psi` (stages, states), `flux` (stages, edges).
With `g = F / (c m)` the kinetic energy of an edge, `F^2 / (2 c m(s, t))`, has the second variation
`(dF - c g dm)^2 / (c m) - c g^2 m''[(ds, dt)]^2 / 2`: a convex function for a concave mean.

In potentials (`linearise`, `product`, `diagonals`) the stages are innermost: arrays are `(states,
stages)` and `(edges, coefficients, stages)`, so an edge reads and writes whole rows. Changes of the
density are relative, `w = v / rho`, and forces are multiplied by `rho`: then the second derivatives
of a mean enter as `s t m_st` and the like, which stay of ordinary size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.mobility import formulas

Coefficients = NDArray[np.floating]


def stage_weights(
    source: Index32, target: Index32, conductance: Array, rho: Array, spec: Array
) -> Array:
    """`c m(rho)` for every stage and edge."""
    out = np.empty((rho.shape[0], source.size))
    _stage_weights(source, target, conductance, rho, spec, out)
    return out


# Allocated outside: an allocation in compiled code takes a fifth of a second to compile.
@njit(cache=True, error_model="numpy")
def _stage_weights(
    source: Index32, target: Index32, conductance: Array, rho: Array, spec: Array, out: Array
) -> None:
    for i in range(rho.shape[0]):
        for e in range(source.size):
            m = formulas.fast_mean(spec, rho[i, source[e]], rho[i, target[e]])
            out[i, e] = conductance[e] * m


@njit(cache=True, error_model="numpy")
def stage_derivatives(source: Index32, target: Index32, rho: Array, spec: Array) -> Array:
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
    source: Index32,
    target: Index32,
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
    source: Index32, target: Index32, conductance: Array, rho: Array, flux: Array, spec: Array
) -> Array:
    """`sum_e F^2 / (c m)` at every stage; infinite where mass moves without mobility."""
    weights = stage_weights(source, target, conductance, rho, spec)
    share = np.zeros(flux.shape)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(flux * flux, np.maximum(weights, 0.0), out=share, where=flux != 0.0)
    return np.asarray(share.sum(axis=1))


def flux_gain(source: Index32, target: Index32, flux: Array, n_states: int) -> Array:
    """The gain of each state at every stage."""
    out = np.empty((flux.shape[0], n_states))
    for gain, row in zip(out, flux, strict=True):
        gain[:] = np.bincount(source, row, n_states) - np.bincount(target, row, n_states)
    return out


@njit(cache=True, error_model="numpy")
def linearise_fluxes(
    source: Index32, target: Index32, conductance: Array, rho: Array, flux: Array, spec: Array
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
    source: Index32, target: Index32, conductance: Array, rho: Array, flux: Array, spec: Array
) -> Array:
    """The force alone: half of `c g^2 m_s`, summed."""
    # `linearise` does more, but it is compiled already, and this runs once per path.
    speed = flux / stage_weights(source, target, conductance, rho, spec)
    table = np.empty((source.size, 6, len(rho)), np.float32)
    edges = _Edges(source, target, conductance, speed.T.copy())
    return np.ascontiguousarray(
        _linearised(edges, rho.T.copy(), spec, np.ones(len(rho)), table)[1].T
    )


def linearise(
    source: Index32,
    target: Index32,
    conductance: Array,
    rho: Array,
    psi: Array,
    spec: Array,
    quadrature: Array,
    table: Coefficients,
) -> tuple[Array, Array, Array, Array]:
    """Newton's coefficients `c m, c d s m_s, c d t m_t, c d^2 (s^2 m_ss, s t m_st, t^2 m_tt) / 2`.

    They are written to `table`, `(edges, 6, stages)`, in single or double precision; `d` is the
    difference of the potentials. Returns `M psi`, half the derivative of `psi^T M psi` in `rho`,
    the action at every stage, and the average of `c m`.
    """
    edges = _Edges(source, target, conductance, psi[source] - psi[target])
    return _linearised(edges, rho, spec, quadrature, table)


class _Edges(NamedTuple):
    """The edges with the differences of the potentials along them, `(edges, stages)`."""

    source: Index32
    target: Index32
    conductance: Array
    differences: Array


@inner(cache=True, error_model="numpy")
def edge_terms(
    spec: Array, c: float, s: float, t: float, d: float
) -> tuple[float, float, float, float, float, float, float, float]:
    """The six coefficients of `linearise` for one edge, and half of `c d^2 (m_s, m_t)`.

    `s` and `t` are the densities at its ends, `d` is the difference of the potentials.
    """
    m, first, second, ss, st, tt = formulas.fast_derivatives(spec, s, t)
    half = 0.5 * c * d * d
    return (
        c * m, c * d * first * s, c * d * second * t,
        half * ss * s * s, half * st * s * t, half * tt * t * t,
        half * first, half * second,
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _linearised(
    edges: _Edges, rho: Array, spec: Array, quadrature: Array, table: Coefficients
) -> tuple[Array, Array, Array, Array]:
    source, target, conductance, differences = edges
    gain, force, action = np.zeros(rho.shape), np.zeros(rho.shape), np.zeros(rho.shape[1])
    average = np.empty(source.size)
    stages = rho.shape[1]
    for e in range(source.size):
        x, y, c = source[e], target[e], conductance[e]
        total = 0.0
        for i in range(stages):
            d = differences[e, i]
            weight, by_s, by_t, ss, st, tt, at_s, at_t = edge_terms(
                spec, c, rho[x, i], rho[y, i], d
            )
            table[e, 0, i], table[e, 1, i], table[e, 2, i] = weight, by_s, by_t
            table[e, 3, i], table[e, 4, i], table[e, 5, i] = ss, st, tt
            gain[x, i] += weight * d
            gain[y, i] -= weight * d
            force[x, i] += at_s
            force[y, i] += at_t
            action[i] += weight * d * d
            total += quadrature[i] * weight
        average[e] = total
    return gain, force, action, average


def product(
    source: Index32,
    target: Index32,
    table: Coefficients,
    psi: Array,
    change: Array,
    gain: Array,
    push: Array,
) -> None:
    """Gain and `rho` times force of the linearised system for potentials and relative changes."""
    gain.fill(0.0)
    push.fill(0.0)
    _product(source, target, table, psi, change, gain, push)


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def _product(
    source: Index32,
    target: Index32,
    table: Coefficients,
    psi: Array,
    change: Array,
    gain: Array,
    push: Array,
) -> None:
    stages = psi.shape[1]
    for e in range(source.size):
        x, y = source[e], target[e]
        for i in range(stages):
            difference = psi[x, i] - psi[y, i]
            ds, dt = change[x, i], change[y, i]
            a, b, cross = table[e, 1, i], table[e, 2, i], table[e, 4, i]
            flux = table[e, 0, i] * difference + a * ds + b * dt
            gain[x, i] += flux
            gain[y, i] -= flux
            push[x, i] += a * difference + table[e, 3, i] * ds + cross * dt
            push[y, i] += b * difference + cross * ds + table[e, 5, i] * dt


def diagonals(
    source: Index32, target: Index32, table: Coefficients, n_states: int
) -> tuple[Array, Array, Array]:
    """Diagonal of `product`, for a state's own potential and its own change: `M`, `A`, `K`."""
    m, a, k = (np.zeros((n_states, table.shape[2])) for _ in range(3))
    _diagonals(source, target, table, m, a, k)
    return m, a, k


# Compiled: in numpy it took a tenth of the time of a geodesic on a large graph.
@njit(cache=True, error_model="numpy")
def _diagonals(
    source: Index32, target: Index32, table: Coefficients, m: Array, a: Array, k: Array
) -> None:
    for e in range(source.size):
        x, y = source[e], target[e]
        for i in range(m.shape[1]):
            m[x, i] += table[e, 0, i]
            m[y, i] += table[e, 0, i]
            a[x, i] += table[e, 1, i]
            a[y, i] -= table[e, 2, i]
            k[x, i] += table[e, 3, i]
            k[y, i] += table[e, 5, i]
