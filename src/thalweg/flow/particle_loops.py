"""Compiled loops of the particle simulators, which move counts instead of single individuals.

The rates of a step are given by the fluxes along the edges at the population's distribution: an
individual at `x` leaves towards `y` with rate `J(x, y) / p_x` where the flux `J` leads away from
`x`, and not at all otherwise. `indptr`, `neighbor` and `edge` are `MarkovKernel.adjacency`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Index32
from thalweg.edges.fluxes import edge_flux
from thalweg.edges.static import Graph
from thalweg.kernel import Adjacency

Counts = NDArray[np.int64]
Offsets = NDArray[np.int64]


class Field(NamedTuple):
    """The drivers of a flux besides the densities: see `thalweg.edges.fluxes.edge_flux`."""

    external: Array
    beta: float
    inner: Array


@njit(cache=True)
def slot_rates(
    indptr: Offsets, edge: Offsets, source: Index32, flux: Array, p: Array, fastest: float
) -> tuple[Array, Array]:
    """Rates per adjacency slot and per state; a state's total is cut to `fastest`.

    No individual leaves an empty state. That is the limit of the rate where `beta > 0`: its first
    variation falls below its neighbours' as it empties.
    """
    n = p.size
    rate = np.zeros(edge.size)
    leaving = np.zeros(n)
    for x in range(n):
        total = 0.0
        for k in range(indptr[x], indptr[x + 1]):
            e = edge[k]
            out = flux[e] if source[e] == x else -flux[e]
            if out > 0.0 and p[x] > 0.0:
                rate[k] = min(out / p[x], 1e300 / (indptr[x + 1] - indptr[x]))
                total += rate[k]
        if total > fastest:
            for k in range(indptr[x], indptr[x + 1]):
                rate[k] *= fastest / total
            total = fastest
        leaving[x] = total
    return rate, leaving


@inner(cache=True)
def _send(
    x: int,
    movers: int,
    total: float,
    indptr: Offsets,
    neighbor: Index32,
    rate: Array,
    out: Counts,
    rng: np.random.Generator,
) -> None:
    """Distribute `movers` among the neighbours of `x`, in proportion to the rates."""
    left = total
    last = -1
    for k in range(indptr[x], indptr[x + 1]):
        if movers == 0:
            return
        if rate[k] > 0.0:
            share = rate[k] / left
            gone = movers if share >= 1.0 else rng.binomial(movers, share)
            out[neighbor[k]] += gone
            movers -= gone
            left -= rate[k]
            last = neighbor[k]
    # Rounding may leave `left` a hair above zero at the last slot.
    if movers > 0:
        out[last] += movers


@njit(cache=True)
def leap(
    indptr: Offsets,
    neighbor: Index32,
    rate: Array,
    leaving: Array,
    counts: Counts,
    dt: float,
    rng: np.random.Generator,
) -> Counts:
    """Let every individual leave at most once in `dt`, with probability `1 - exp(-dt leaving)`."""
    out = counts.copy()
    for x in range(counts.size):
        if counts[x] > 0 and leaving[x] > 0.0:
            movers = rng.binomial(counts[x], -math.expm1(-dt * leaving[x]))
            out[x] -= movers
            _send(x, movers, leaving[x], indptr, neighbor, rate, out, rng)
    return out


@njit(cache=True)
def jump(
    indptr: Offsets,
    neighbor: Index32,
    rate: Array,
    leaving: Array,
    counts: Counts,
    stop: Array,
    clock: float,
    rng: np.random.Generator,
) -> Counts:
    """Exact jumps in constant rates, by uniformisation with the clock rate `clock`.

    Each individual's clock ticks a Poisson number of times, independent of its path; `stop[j]` is
    the probability that it has ticked its last after `j` ticks. At each tick an individual at `x`
    moves with probability `leaving / clock`.
    """
    done = np.zeros_like(counts)
    active = counts.copy()
    for j in range(stop.size):
        following = np.zeros_like(counts)
        alive = 0
        for x in range(counts.size):
            if active[x] == 0:
                continue
            ended = active[x] if stop[j] >= 1.0 else rng.binomial(active[x], stop[j])
            done[x] += ended
            rest = active[x] - ended
            if rest > 0:
                alive += rest
                chance = min(leaving[x] / clock, 1.0)
                movers = rng.binomial(rest, chance) if chance > 0.0 else 0
                following[x] += rest - movers
                _send(x, movers, leaving[x], indptr, neighbor, rate, following, rng)
        if alive == 0:
            break
        active = following
    return done


@njit(cache=True)
def spread(
    indptr: Offsets,
    neighbor: Index32,
    rate: Array,
    leaving: Array,
    p: Array,
    weights: Array,
    clock: float,
) -> Array:
    """`p exp(dt Q)` by uniformisation: `weights[j]` is the probability of `j` ticks."""
    now = p.copy()
    out = weights[0] * now
    for j in range(1, weights.size):
        following = np.zeros_like(now)
        for x in range(p.size):
            if now[x] == 0.0:
                continue
            following[x] += now[x] * max(1.0 - leaving[x] / clock, 0.0)
            for k in range(indptr[x], indptr[x + 1]):
                following[neighbor[k]] += now[x] * (rate[k] / clock)
        now = following
        out += weights[j] * now
    return out


@njit(cache=True)
def gillespie(
    adjacency: Adjacency,
    graph: Graph,
    field: Field,
    counts: Counts,
    pseudo: float,
    time: float,
    rng: np.random.Generator,
) -> int:
    """Simulate exact jumps of the interacting population for `time`; returns their number.

    The propensity of an edge is `counts_x J / p_x` with `p` the population's own distribution. A
    jump changes `p` at two states, so only the edges around them are recomputed; a binary tree
    of sums over the states finds the next jump.
    """
    indptr, neighbor, edge = adjacency
    source, conductance, pi, spec = graph.source, graph.conductance, graph.pi, graph.spec
    external, beta, inner = field
    n = counts.size
    total_mass = counts.sum() + pseudo * n
    size = 1
    while size < n:
        size *= 2
    tree = np.zeros(2 * size)
    rho = np.empty(n)
    for x in range(n):
        rho[x] = (counts[x] + pseudo) / (total_mass * pi[x])
    flux = np.zeros(conductance.size)
    for x in range(n):
        for k in range(indptr[x], indptr[x + 1]):
            e = edge[k]
            if source[e] == x:
                y = neighbor[k]
                flux[e] = conductance[e] * edge_flux(
                    rho[x], rho[y], external[x] - external[y], beta, spec, inner
                )
    for x in range(n):
        tree[size + x] = _propensity(x, indptr, edge, source, flux, counts, pseudo, total_mass)
    for i in range(size - 1, 0, -1):
        tree[i] = tree[2 * i] + tree[2 * i + 1]
    clock, jumps = 0.0, 0
    while tree[1] > 0.0:
        clock += rng.exponential() / tree[1]
        if clock >= time:
            break
        x = _descend(tree, size, rng.random() * tree[1])
        if x >= n or counts[x] == 0 or tree[size + x] <= 0.0:
            continue
        y = _destination(x, indptr, neighbor, edge, source, flux, rng)
        if y < 0:
            continue
        counts[x] -= 1
        counts[y] += 1
        jumps += 1
        for z in (x, y):
            rho[z] = (counts[z] + pseudo) / (total_mass * pi[z])
        for z in (x, y):
            for k in range(indptr[z], indptr[z + 1]):
                e, w = edge[k], neighbor[k]
                a, b = (z, w) if source[e] == z else (w, z)
                flux[e] = conductance[e] * edge_flux(
                    rho[a], rho[b], external[a] - external[b], beta, spec, inner
                )
        for z in (x, y):
            for k in range(indptr[z], indptr[z + 1]):
                w = neighbor[k]
                _set(
                    tree,
                    size + w,
                    _propensity(w, indptr, edge, source, flux, counts, pseudo, total_mass),
                )
    return jumps


@inner(cache=True)
def _propensity(
    x: int,
    indptr: Offsets,
    edge: Offsets,
    source: Index32,
    flux: Array,
    counts: Counts,
    pseudo: float,
    total_mass: float,
) -> float:
    if counts[x] == 0:
        return 0.0
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        e = edge[k]
        total += max(flux[e] if source[e] == x else -flux[e], 0.0)
    return total * counts[x] / ((counts[x] + pseudo) / total_mass)


@inner(cache=True)
def _set(tree: Array, i: int, value: float) -> None:
    """Store a leaf and sum the branch above it again, so that sums never drift."""
    tree[i] = value
    i //= 2
    while i >= 1:
        tree[i] = tree[2 * i] + tree[2 * i + 1]
        i //= 2


@inner(cache=True)
def _descend(tree: Array, size: int, level: float) -> int:
    i = 1
    while i < size:
        i *= 2
        if level >= tree[i] and tree[i + 1] > 0.0:
            level -= tree[i]
            i += 1
    return i - size


@inner(cache=True)
def _destination(
    x: int,
    indptr: Offsets,
    neighbor: Index32,
    edge: Offsets,
    source: Index32,
    flux: Array,
    rng: np.random.Generator,
) -> int:
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        e = edge[k]
        total += max(flux[e] if source[e] == x else -flux[e], 0.0)
    level = rng.random() * total
    chosen = -1
    for k in range(indptr[x], indptr[x + 1]):
        e = edge[k]
        out = flux[e] if source[e] == x else -flux[e]
        if out > 0.0:
            chosen = neighbor[k]
            level -= out
            if level < 0.0:
                break
    return chosen
