"""Compiled passes of the weak form over snapshots and edges; plain arrays, no checks.

Memory is linear in states and edges, whatever the number of snapshots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from thalweg._compile import njit
from thalweg._types import Array, Index
from thalweg.edges.fluxes import Drive, accumulate_velocity
from thalweg.edges.static import Graph
from thalweg.mobility import formulas

_BLOCK = 8
"""Number of snapshots processed together: the densities of a state then share a cache line."""


class Points(NamedTuple):
    """The nodes of a quadrature: each sits at `(P[left] + P[right]) / 2` with a weight.

    Its share of the increments is `share (P[before] - P[after])`.
    """

    left: Index
    right: Index
    weight: Array
    before: Index
    after: Index
    share: Array


@njit(cache=True)
def normal_equations(
    graph: Graph, points: Points, p: Array, with_beta: bool
) -> tuple[Array, Array, float, float]:
    """Edge weights, the column of beta, its Gram entry and its moment, summed over the nodes."""
    source, target, conductance, stationary, spec = graph
    left, right, node_weight, before, after, share = points
    n, count, n_nodes = stationary.size, source.size, node_weight.size
    is_log = formulas.is_logarithmic(spec)
    weights = np.zeros(count)
    column = np.zeros(n)
    average = np.zeros(n)
    gram, moment = 0.0, 0.0
    width = min(_BLOCK, n_nodes)
    rho = np.empty((n, width))
    log_rho = np.zeros((n, width))
    for first in range(0, n_nodes, width):
        inside = min(width, n_nodes - first)
        for i in range(inside):
            j = first + i
            for x in range(n):
                value = 0.5 * (p[left[j], x] + p[right[j], x]) / stationary[x]
                rho[x, i] = value
                average[x] += node_weight[j] * value
                if with_beta or is_log:
                    log_rho[x, i] = np.log(value) if value > 0.0 else -np.inf
                if with_beta:
                    moment += share[j] * log_rho[x, i] * (p[before[j], x] - p[after[j], x])
        for e in range(count):
            x, y = source[e], target[e]
            total, energy, flux = 0.0, 0.0, 0.0
            for i in range(inside):
                w = node_weight[first + i]
                s, t = rho[x, i], rho[y, i]
                z = log_rho[x, i] - log_rho[y, i]
                m = formulas.mean_from_difference(spec, z, s, t)
                total += w * m
                if with_beta:
                    current = s - t if is_log else m * z
                    flux += w * current
                    energy += w * current * z
            weights[e] += conductance[e] * total
            gram += conductance[e] * energy
            if with_beta and not is_log:
                column[x] += conductance[e] * flux
                column[y] -= conductance[e] * flux
    if with_beta and is_log:
        for e in range(count):
            x, y = source[e], target[e]
            flux = conductance[e] * (average[x] - average[y])
            column[x] += flux
            column[y] -= flux
    return weights, column, gram, moment


@njit(cache=True)
def unexplained(
    graph: Graph, drive: Drive, points: Points, steps: Array, shared: bool, p: Array
) -> float:
    """`sum_k |p_{k-1} - p_k - integral|_1` of a fixed energy; `shared`: a node serves two."""
    source, target, conductance, stationary, spec = graph
    external, beta, order, power = drive
    n = stationary.size
    here, rho, rate, before = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    total = 0.0
    for j in range(points.left.size):
        before, rate = rate, before
        for x in range(n):
            here[x] = 0.5 * (p[points.left[j], x] + p[points.right[j], x])
        accumulate_velocity(
            source, target, conductance, stationary, spec, external, beta, order, power,
            here, rho, rate,
        )  # fmt: skip
        if shared and j == 0:
            continue
        k = j - 1 if shared else j
        for x in range(n):
            drift = 0.5 * (rate[x] + before[x]) if shared else rate[x]
            total += abs(p[k, x] - p[k + 1, x] + steps[k] * drift)
    return total
