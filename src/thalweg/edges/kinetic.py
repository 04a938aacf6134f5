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

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.edges.static import Graph, edge_divergence, stage_weights
from thalweg.mobility import formulas

Coefficients = NDArray[np.floating]


@njit(cache=True, error_model="numpy")
def stage_forces(graph: Graph, rho: Array, differences: Array) -> Array:
    """Half the derivative of `psi^T M(rho) psi` in `rho`, from the differences along the edges."""
    source, target, conductance, _, spec = graph
    force = np.zeros(rho.shape)
    for i in range(rho.shape[0]):
        for e in range(source.size):
            x, y = source[e], target[e]
            _, first, second = formulas.mean_partials(spec, rho[i, x], rho[i, y])
            half = 0.5 * conductance[e] * differences[i, e] ** 2
            force[i, x] += half * first
            force[i, y] += half * second
    return force


def flux_force(graph: Graph, rho: Array, flux: Array) -> Array:
    """The same from the fluxes: half of `c g^2 m_s`, summed."""
    return stage_forces(graph, rho, flux / stage_weights(graph, rho))


def flux_action(graph: Graph, rho: Array, flux: Array) -> Array:
    """`sum_e F^2 / (c m)` at every stage; infinite where mass moves without mobility."""
    weights = stage_weights(graph, rho)
    share = np.zeros(flux.shape)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(flux * flux, np.maximum(weights, 0.0), out=share, where=flux != 0.0)
    return np.asarray(share.sum(axis=1))


def flux_gain(source: Index32, target: Index32, flux: Array, n_states: int) -> Array:
    """The gain of each state at every stage."""
    return np.array([edge_divergence(source, target, row, n_states) for row in flux])


@njit(cache=True, error_model="numpy")
def linearise_stages(graph: Graph, rho: Array, differences: Array) -> tuple[Array, Array]:
    """Coefficients of Newton's system: per edge `c m, c g m_s, c g m_t, c g^2 m''/2` (three).

    `g` is the difference of the potentials along the edge. Returns the coefficients (stages, edges,
    6) and the forces.
    """
    source, target, conductance, _, spec = graph
    table = np.empty((rho.shape[0], source.size, 6))
    force = np.zeros(rho.shape)
    for i in range(rho.shape[0]):
        for e in range(source.size):
            x, y = source[e], target[e]
            s, t, c, g = rho[i, x], rho[i, y], conductance[e], differences[i, e]
            m, first, second, ss, st, tt = formulas.mean_derivatives(spec, s, t)
            cg = c * g
            half = 0.5 * cg * g
            table[i, e, 0] = c * m
            table[i, e, 1] = cg * first
            table[i, e, 2] = cg * second
            table[i, e, 3] = half * ss
            table[i, e, 4] = half * st
            table[i, e, 5] = half * tt
            force[i, x] += half * first
            force[i, y] += half * second
    return table, force


def linearise(
    graph: Graph, rho: Array, psi: Array, quadrature: Array, table: Coefficients
) -> tuple[Array, Array, Array, Array]:
    """Newton's coefficients `c m, c d s m_s, c d t m_t, c d^2 (s^2 m_ss, s t m_st, t^2 m_tt) / 2`.

    They are written to `table`, `(edges, 6, stages)`, in single or double precision; `d` is the
    difference of the potentials. Returns `M psi`, half the derivative of `psi^T M psi` in `rho`,
    the action at every stage, and the average of `c m`.
    """
    return _linearise(graph, rho, psi[graph.source] - psi[graph.target], quadrature, table)


@inner(cache=True, error_model="numpy")
def edge_terms(
    spec: Array, c: float, s: float, t: float, d: float
) -> tuple[float, float, float, float, float, float, float, float]:
    """The six coefficients of `linearise` for one edge, and half of `c d^2 (m_s, m_t)`.

    `s` and `t` are the densities at its ends, `d` is the difference of the potentials.
    """
    m, first, second, ss, st, tt = formulas.mean_derivatives(spec, s, t)
    half = 0.5 * c * d * d
    return (
        c * m, c * d * first * s, c * d * second * t,
        half * ss * s * s, half * st * s * t, half * tt * t * t,
        half * first, half * second,
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _linearise(
    graph: Graph, rho: Array, differences: Array, quadrature: Array, table: Coefficients
) -> tuple[Array, Array, Array, Array]:
    source, target, conductance, _, spec = graph
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


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def product(
    graph: Graph, table: Coefficients, psi: Array, change: Array, gain: Array, push: Array
) -> None:
    """Gain and `rho` times force of the linearised system for potentials and relative changes."""
    source, target = graph.source, graph.target
    gain[:] = 0.0
    push[:] = 0.0
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


def diagonals(graph: Graph, table: Coefficients) -> tuple[Array, Array, Array]:
    """Diagonal of `product`, for a state's own potential and its own change: `M`, `A`, `K`."""
    m, a, k = (np.zeros((graph.pi.size, table.shape[2])) for _ in range(3))
    _diagonals(graph.source, graph.target, table, m, a, k)
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
