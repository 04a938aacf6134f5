"""Compiled loops of the particle simulators, which move counts instead of single individuals.

The rates of a step are given by the fluxes along the edges at the population's distribution: an
individual at `x` leaves towards `y` with rate `J(x, y) / p_x` where the flux `J` leads away from
`x`, and not at all otherwise. `indptr`, `neighbor` and `edge` are `MarkovKernel.adjacency`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Counts, Index, Index32
from thalweg.edges.fluxes import Drive, edge_flux, edge_fluxes
from thalweg.edges.static import Graph
from thalweg.kernel import Adjacency


class Jumps(NamedTuple):
    """The rate of each slot of the adjacency, and that of leaving each state, their sum."""

    adjacency: Adjacency
    rate: Array
    leaving: Array


@inner(cache=True)
def _outward(edge: Index, source: Index32, flux: Array, x: int, k: int) -> float:
    """The flux that leaves `x` through its slot `k`; negative if it enters."""
    e = edge[k]
    return flux[e] if source[e] == x else -flux[e]


@njit(cache=True)
def slot_rates(
    adjacency: Adjacency, source: Index32, flux: Array, p: Array, fastest: float
) -> Jumps:
    """The rates at `p`; a state's total is cut to `fastest`.

    No individual leaves an empty state. That is the limit of the rate where `beta > 0`: its first
    variation falls below its neighbours' as it empties.
    """
    indptr, _, edge = adjacency
    rate, leaving = np.zeros(edge.size), np.zeros(p.size)
    for x in range(p.size):
        total = 0.0
        for k in range(indptr[x], indptr[x + 1]):
            out = _outward(edge, source, flux, x, k)
            if out > 0.0 and p[x] > 0.0:
                rate[k] = min(out / p[x], 1e300 / (indptr[x + 1] - indptr[x]))
                total += rate[k]
        if total > fastest:
            for k in range(indptr[x], indptr[x + 1]):
                rate[k] *= fastest / total
            total = fastest
        leaving[x] = total
    return Jumps(adjacency, rate, leaving)


@inner(cache=True)
def _send(x: int, movers: int, jumps: Jumps, out: Counts, rng: np.random.Generator) -> None:
    """Distribute `movers` among the neighbours of `x`, in proportion to the rates."""
    (indptr, neighbor, _), rate, leaving = jumps
    left, last = leaving[x], -1
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
def leap(jumps: Jumps, counts: Counts, dt: float, rng: np.random.Generator) -> Counts:
    """Let every individual leave at most once in `dt`, with probability `1 - exp(-dt leaving)`."""
    out, leaving = counts.copy(), jumps.leaving
    for x in range(counts.size):
        if counts[x] > 0 and leaving[x] > 0.0:
            movers = rng.binomial(counts[x], -math.expm1(-dt * leaving[x]))
            out[x] -= movers
            _send(x, movers, jumps, out, rng)
    return out


@njit(cache=True)
def jump(
    jumps: Jumps, counts: Counts, stop: Array, clock: float, rng: np.random.Generator
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
                chance = min(jumps.leaving[x] / clock, 1.0)
                movers = rng.binomial(rest, chance) if chance > 0.0 else 0
                following[x] += rest - movers
                _send(x, movers, jumps, following, rng)
        if alive == 0:
            break
        active = following
    return done


@njit(cache=True)
def gillespie(
    adjacency: Adjacency,
    graph: Graph,
    drive: Drive,
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
    source, target, conductance, pi, spec = graph
    external, beta, order, power = drive
    n = counts.size
    mass = counts.sum() + pseudo * n
    size = 1
    while size < n:
        size *= 2
    tree = np.zeros(2 * size)
    rho = np.empty(n)
    for x in range(n):
        rho[x] = (counts[x] + pseudo) / (mass * pi[x])
    flux = edge_fluxes(graph, drive, rho)
    for x in range(n):
        tree[size + x] = _propensity(adjacency, source, flux, x, counts[x], pseudo, mass)
    for i in range(size - 1, 0, -1):
        tree[i] = tree[2 * i] + tree[2 * i + 1]
    clock, n_jumps = 0.0, 0
    while tree[1] > 0.0:
        clock += rng.exponential() / tree[1]
        if clock >= time:
            break
        x = _descend(tree, size, rng.random() * tree[1])
        if x >= n or counts[x] == 0 or tree[size + x] <= 0.0:
            continue
        y = _destination(adjacency, source, flux, x, rng)
        if y < 0:
            continue
        counts[x] -= 1
        counts[y] += 1
        n_jumps += 1
        for z in (x, y):
            rho[z] = (counts[z] + pseudo) / (mass * pi[z])
        for z in (x, y):
            for k in range(indptr[z], indptr[z + 1]):
                e = edge[k]
                a, b = source[e], target[e]
                fall = external[a] - external[b]
                flow = edge_flux(spec, rho[a], rho[b], fall, beta, order, power)
                flux[e] = conductance[e] * flow
        for z in (x, y):
            for k in range(indptr[z], indptr[z + 1]):
                w = neighbor[k]
                rate = _propensity(adjacency, source, flux, w, counts[w], pseudo, mass)
                _set(tree, size + w, rate)
    return n_jumps


@inner(cache=True)
def _propensity(
    adjacency: Adjacency, source: Index32, flux: Array, x: int, count: int, pseudo: float,
    mass: float,
) -> float:  # fmt: skip
    """The rate at which any of `count` individuals leaves `x`."""
    share = (count + pseudo) / mass
    return _outflow(adjacency, source, flux, x) * count / share if count > 0 else 0.0


@inner(cache=True)
def _outflow(adjacency: Adjacency, source: Index32, flux: Array, x: int) -> float:
    """The sum of the fluxes that leave `x`."""
    indptr, _, edge = adjacency
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        total += max(_outward(edge, source, flux, x, k), 0.0)
    return total


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
    adjacency: Adjacency, source: Index32, flux: Array, x: int, rng: np.random.Generator
) -> int:
    """The neighbour to which an individual of `x` jumps; -1 if no flux leaves `x`."""
    level = rng.random() * _outflow(adjacency, source, flux, x)
    chosen = -1
    indptr, neighbor, edge = adjacency
    for k in range(indptr[x], indptr[x + 1]):
        out = _outward(edge, source, flux, x, k)
        if out > 0.0:
            chosen = neighbor[k]
            level -= out
            if level < 0.0:
                break
    return chosen
