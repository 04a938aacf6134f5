"""Approximate Cholesky by randomised elimination of edges (Gao, Kyng and Spielman, 2023).

Eliminating a node with neighbours `1 .. d` and weights `w_1 <= ... <= w_d` of sum `S` leaves the
clique `w_i w_j / S` on its neighbours. Instead of all `d (d - 1) / 2` edges, one is kept for each
`i < d`, to a neighbour `k > i` drawn with probability `w_k / R_i`, `R_i = w_{i+1} + ... + w_d`, and
given the weight `w_i R_i / S`: the expectation is the clique, the number of edges falls by one, and
every weight stays positive, so no pivot can fail whatever the range of the weights. The result is
`L D L^T` of a Laplacian close to `M`, exact on trees and cycles; PCG does the rest.

Nodes go in the order of their current number of edges, hubs last. Memory is linear in the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from thalweg.laplacian.pattern import Array, Index, Pattern, Relabelling

_SEED = 20_240_229
_UNDERFLOW = 1e-300
"""A kept edge never gets lighter than this: a weight of zero would cut the graph."""


@dataclass(frozen=True, eq=False)
class ApproxCholAnalysis:
    """The graph numbered by reverse Cuthill-McKee, so that neighbours lie near in memory."""

    pattern: Pattern
    relabelling: Relabelling
    seed: int = _SEED

    @classmethod
    def of(cls, pattern: Pattern, *, seed: int = _SEED) -> ApproxCholAnalysis:
        nodes = reverse_cuthill_mckee(pattern.matrix_without_ground, symmetric_mode=True)
        if pattern.grounded:
            nodes = np.append(nodes, pattern.n_nodes - 1)
        renamed, relabelling = pattern.relabelled(np.asarray(nodes, dtype=np.int32))
        return cls(renamed, relabelling, seed)

    def factor(self, weights: Array) -> ApproxCholFactor:
        p = self.pattern
        return ApproxCholFactor(*eliminate(p.n_nodes, p.source, p.target, weights, self.seed))


@dataclass(frozen=True, eq=False)
class ApproxCholFactor:
    """Step `k` eliminated `order[k]`, of total weight `pivot[k]`, and gave each of its neighbours
    `rows[start[k]:start[k+1]]` the fraction `fractions[...]` of what it held."""

    order: Index
    start: NDArray[np.int64]
    rows: Index
    fractions: Array
    pivot: Array

    def apply(self, r: Array, out: Array) -> None:
        _substitute(self.order, self.start, self.rows, self.fractions, self.pivot, r, out)


@njit(cache=True)
def _substitute(
    order: Index,
    start: NDArray[np.int64],
    rows: Index,
    fractions: Array,
    pivot: Array,
    r: Array,
    out: Array,
) -> None:
    """`out = (L D L^T)^+ r`: pass the load down to the last node, then the potential back up."""
    out[:] = r
    last = order.size - 1
    for k in range(last):
        v = order[k]
        load = out[v]
        for p in range(start[k], start[k + 1]):
            out[rows[p]] += fractions[p] * load
        out[v] = load / pivot[k]
    out[order[last]] = 0.0
    for k in range(last - 1, -1, -1):
        v = order[k]
        potential = out[v]
        for p in range(start[k], start[k + 1]):
            potential += fractions[p] * out[rows[p]]
        out[v] = potential


# Each edge is two half-edges, `2 e` in the list of one end and `2 e + 1` in that of the other, so
# the twin of `h` is `h ^ 1`. When a node goes, the half-edges of its star become those of the kept
# edges: nothing is allocated. A half-edge of weight zero is dead.


@njit(cache=True)
def eliminate(
    n_nodes: int, source: Index, target: Index, weights: Array, seed: int
) -> tuple[Index, NDArray[np.int64], Index, Array, Array]:
    """`order, start, rows, fractions, pivot` of `ApproxCholFactor`."""
    neighbor, weight, following, head, degree = _half_edges(n_nodes, source, target, weights)
    bucket, after, before = _sort_by_degree(degree, source.size + 2)
    lowest = 0
    order = np.empty(n_nodes, np.int32)
    start = np.zeros(n_nodes + 1, np.int64)
    rows = np.empty(2 * source.size + n_nodes, np.int32)
    fractions = np.empty(rows.size)
    pivot = np.ones(n_nodes)
    slot = np.full(n_nodes, -1, np.int32)
    star, light = np.empty(64, np.int32), np.empty(64)
    beyond = np.empty(65)
    random = np.array([seed], dtype=np.uint64)
    count = 0
    for step in range(n_nodes):
        start[step] = count
        while bucket[lowest] < 0:
            lowest += 1
        v = bucket[lowest]
        _unlink(v, degree, bucket, after, before)
        order[step] = v
        # Gather the star of `v`, parallel edges merged.
        d = 0
        h = head[v]
        while h >= 0:
            if weight[h] > 0.0:
                j = neighbor[h]
                if slot[j] < 0:
                    if d == star.size:
                        star, light = _double(star), _double(light)
                        beyond = np.empty(star.size + 1)
                    slot[j] = d
                    star[d], light[d] = h, weight[h]
                    d += 1
                else:
                    light[slot[j]] += weight[h]
                    weight[h ^ 1] = 0.0
                    _shift(j, -1, degree, bucket, after, before)
                    lowest = min(lowest, degree[j])
            h = following[h]
        if d == 0:
            continue
        _sort(light, star, d)
        beyond[d] = 0.0
        for i in range(d - 1, -1, -1):
            beyond[i] = beyond[i + 1] + light[i]
        total = beyond[0]
        pivot[step] = total
        while count + d > rows.size:
            rows, fractions = _double(rows), _double(fractions)
        for i in range(d):
            j = neighbor[star[i]]
            slot[j] = -1
            rows[count] = j
            fractions[count] = light[i] / total
            count += 1
        # Keep one edge for each neighbour but the heaviest.
        for i in range(d - 1):
            h = star[i]
            j = neighbor[h]
            k = neighbor[star[_draw(beyond, i + 1, d - 1, random)]]
            kept = max(light[i] * (beyond[i + 1] / total), _UNDERFLOW)
            neighbor[h ^ 1], weight[h ^ 1] = k, kept
            neighbor[h], weight[h] = j, kept
            following[h], head[k] = head[k], h
            _shift(k, 1, degree, bucket, after, before)
        heaviest = star[d - 1]
        weight[heaviest ^ 1] = 0.0
        _shift(neighbor[heaviest], -1, degree, bucket, after, before)
        lowest = min(lowest, degree[neighbor[heaviest]])
    start[n_nodes] = count
    return order, start, rows[:count].copy(), fractions[:count].copy(), pivot


@njit(cache=True)
def _half_edges(
    n_nodes: int, source: Index, target: Index, weights: Array
) -> tuple[Index, Array, Index, Index, Index]:
    neighbor = np.empty(2 * source.size, np.int32)
    weight = np.empty(2 * source.size)
    following = np.empty(2 * source.size, np.int32)
    head = np.full(n_nodes, -1, np.int32)
    degree = np.zeros(n_nodes, np.int32)
    for e in range(source.size - 1, -1, -1):
        if weights[e] > 0.0:
            for h, x, y in ((2 * e, source[e], target[e]), (2 * e + 1, target[e], source[e])):
                neighbor[h], weight[h] = y, weights[e]
                following[h], head[x] = head[x], h
                degree[x] += 1
    return neighbor, weight, following, head, degree


# Nodes of equal degree form a doubly linked list. The number of buckets is not capped: a hub put
# among nodes of smaller degree would go too early and spoil the factor.


@njit(cache=True)
def _sort_by_degree(degree: Index, n_buckets: int) -> tuple[Index, Index, Index]:
    bucket = np.full(n_buckets, -1, np.int32)
    after = np.empty(degree.size, np.int32)
    before = np.empty(degree.size, np.int32)
    for v in range(degree.size - 1, -1, -1):
        _link(v, degree, bucket, after, before)
    return bucket, after, before


@njit(cache=True, inline="always")
def _link(v: int, degree: Index, bucket: Index, after: Index, before: Index) -> None:
    first = bucket[degree[v]]
    after[v], before[v] = first, -1
    if first >= 0:
        before[first] = v
    bucket[degree[v]] = v


@njit(cache=True, inline="always")
def _unlink(v: int, degree: Index, bucket: Index, after: Index, before: Index) -> None:
    previous, following = before[v], after[v]
    if previous >= 0:
        after[previous] = following
    else:
        bucket[degree[v]] = following
    if following >= 0:
        before[following] = previous


@njit(cache=True, inline="always")
def _shift(v: int, by: int, degree: Index, bucket: Index, after: Index, before: Index) -> None:
    _unlink(v, degree, bucket, after, before)
    degree[v] += by
    _link(v, degree, bucket, after, before)


@njit(cache=True)
def _double(array: Any) -> Any:
    return np.concatenate((array, np.empty_like(array)))


@njit(cache=True)
def _sort(keys: Array, values: Index, count: int) -> None:
    """Sort the first `count` keys in increasing order, and the values along with them."""
    if count > 32:
        by = np.argsort(keys[:count])
        keys[:count], values[:count] = keys[:count][by], values[:count][by]
        return
    for i in range(1, count):
        key, value = keys[i], values[i]
        j = i - 1
        while j >= 0 and keys[j] > key:
            keys[j + 1], values[j + 1] = keys[j], values[j]
            j -= 1
        keys[j + 1], values[j + 1] = key, value


@njit(cache=True)
def _draw(beyond: Array, low: int, high: int, random: NDArray[np.uint64]) -> int:
    """An index in `low .. high` with probability proportional to `beyond[k] - beyond[k + 1]`."""
    state = random[0]
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    random[0] = state
    level = np.float64(state >> np.uint64(11)) * 2.0**-53 * beyond[low]
    while low < high:
        middle = (low + high + 1) // 2
        if beyond[middle] > level:
            low = middle
        else:
            high = middle - 1
    return low
