"""Compiled passes over the edges with the stages of a path innermost: one edge, all its times.

Arrays are `(states, stages)` and `(edges, coefficients, stages)`, so an edge reads and writes whole
rows. Changes of the density are relative, `w = v / rho`, and forces are multiplied by `rho`: then
the second derivatives of a mean enter as `s t m_st` and the like, which stay of ordinary size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg.mobility import formulas

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Index = NDArray[np.int32]
Coefficients = NDArray[np.floating]

__all__ = ["Linearised", "diagonals", "linearise", "product"]


class Linearised(NamedTuple):
    """What `linearise` gives, beside the coefficients.

    Parameters
    ----------
    gain : `M psi` at every stage.
    force : Half the derivative of `psi^T M psi` in `rho`.
    action : `psi^T M psi` at every stage.
    average : `c m`, averaged over the stages.
    """

    gain: Array
    force: Array
    action: Array
    average: Array


def linearise(
    source: Index,
    target: Index,
    conductance: Array,
    rho: Array,
    difference: Array,
    spec: Array,
    quadrature: Array | None = None,
    table: Coefficients | None = None,
) -> Linearised:
    """Newton's coefficients `c m, c d s m_s, c d t m_t, c d^2 (s^2 m_ss, s t m_st, t^2 m_tt) / 2`.

    They are put into `table`, `(edges, 6, stages)`, single or double; `d` is the difference of the
    potentials, `(edges, stages)`.
    """
    (n, stages), edges = rho.shape, source.size
    if table is None:
        table = np.empty((edges, 6, stages), np.float32)
    weights = np.ones(stages) if quadrature is None else quadrature
    found = Linearised(
        np.zeros((n, stages)), np.zeros((n, stages)), np.zeros(stages), np.empty(edges)
    )
    _linearise(source, target, conductance, rho, difference, spec, weights, table, *found)
    return found


@njit(cache=True, error_model="numpy")
def _linearise(
    source: Index,
    target: Index,
    conductance: Array,
    rho: Array,
    differences: Array,
    spec: Array,
    quadrature: Array,
    table: Coefficients,
    gain: Array,
    force: Array,
    action: Array,
    average: Array,
) -> None:
    stages = rho.shape[1]
    for e in range(source.size):
        x, y, c = source[e], target[e], conductance[e]
        total = 0.0
        for i in range(stages):
            s, t = rho[x, i], rho[y, i]
            m, first, second, ss, st, tt = formulas.fast_derivatives(spec, s, t)
            difference = differences[e, i]
            weight = c * m
            flux = weight * difference
            half = 0.5 * c * difference * difference
            table[e, 0, i] = weight
            table[e, 1, i] = c * difference * first * s
            table[e, 2, i] = c * difference * second * t
            table[e, 3, i] = half * ss * s * s
            table[e, 4, i] = half * st * s * t
            table[e, 5, i] = half * tt * t * t
            gain[x, i] += flux
            gain[y, i] -= flux
            force[x, i] += half * first
            force[y, i] += half * second
            action[i] += flux * difference
            total += quadrature[i] * weight
        average[e] = total


def product(
    source: Index,
    target: Index,
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
    source: Index,
    target: Index,
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
    source: Index, target: Index, table: Coefficients, n_states: int
) -> tuple[Array, Array, Array]:
    """What `product` gives a state for its own potential and its own change: `M`, `A`, `K`."""
    stages = table.shape[2]
    each = np.arange(stages)
    ends = [(states[:, None] * stages + each).ravel() for states in (source, target)]

    def summed(end: NDArray[np.intp], coefficient: int) -> Array:
        total = np.bincount(end, table[:, coefficient].ravel(), n_states * stages)
        return np.asarray(total, np.float64).reshape(n_states, stages)

    m = summed(ends[0], 0) + summed(ends[1], 0)
    a = summed(ends[0], 1) - summed(ends[1], 2)
    k = summed(ends[0], 3) + summed(ends[1], 5)
    return m, a, k
