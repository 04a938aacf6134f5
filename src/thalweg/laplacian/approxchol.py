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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from thalweg._compile import inner, njit
from thalweg._dense import copy
from thalweg._types import Array, Index32
from thalweg.laplacian.pattern import Pattern, Relabelling

_SEED = 20_240_229
"""Seed of the elimination, so that equal inputs give equal factors."""
_UNDERFLOW = 1e-300
"""A kept edge never gets lighter than this: a weight of zero would cut the graph."""


@dataclass(frozen=True, eq=False)
class ApproxCholAnalysis:
    """The graph numbered by reverse Cuthill-McKee, so that neighbours lie near in memory."""

    direct: ClassVar[bool] = False
    pattern: Pattern
    relabelling: Relabelling

    @classmethod
    def of(cls, pattern: Pattern) -> ApproxCholAnalysis:
        nodes = reverse_cuthill_mckee(pattern.matrix_without_ground, symmetric_mode=True)
        if pattern.grounded:
            nodes = np.append(nodes, pattern.n_nodes - 1)
        renamed, relabelling = pattern.relabelled(np.asarray(nodes, dtype=np.int32))
        return cls(renamed, relabelling)

    def factor(self, weights: Array) -> ApproxCholFactor:
        p = self.pattern
        return ApproxCholFactor(*eliminate(p.n_nodes, p.source, p.target, weights, _SEED))


@dataclass(frozen=True, eq=False)
class ApproxCholFactor:
    """Step `k` eliminated `order[k]`, of total weight `pivot[k]`, and gave each of its neighbours
    `rows[start[k]:start[k+1]]` the fraction `fractions[...]` of what it held."""

    order: Index32
    start: NDArray[np.int64]
    rows: Index32
    fractions: Array
    pivot: Array

    def apply(self, r: Array, out: Array) -> None:
        _substitute(self.order, self.start, self.rows, self.fractions, self.pivot, r, out)


@njit(cache=True)
def _substitute(
    order: Index32,
    start: NDArray[np.int64],
    rows: Index32,
    fractions: Array,
    pivot: Array,
    r: Array,
    out: Array,
) -> None:
    """`out = (L D L^T)^+ r`: pass the load down to the last node, then the potential back up."""
    copy(r, out)
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
# edges: nothing is allocated. A half-edge of weight zero is dead. What belongs to one half-edge, or
# to one node, lies in one record: the elimination jumps about, and each jump should cost one cache
# miss.

_HALF = np.dtype([("weight", np.float64), ("neighbor", np.int32), ("following", np.int32)])
_NODE = np.dtype(
    [(name, np.int32) for name in ("head", "degree", "after", "before", "slot")], align=True
)
Records = NDArray[np.void]


@njit(cache=True)
def eliminate(
    n_nodes: int, source: Index32, target: Index32, weights: Array, seed: int
) -> tuple[Index32, NDArray[np.int64], Index32, Array, Array]:
    """`order, start, rows, fractions, pivot` of `ApproxCholFactor`."""
    half, node = _half_edges(n_nodes, source, target, weights)
    # Nodes of equal degree form a doubly linked list. The number of these buckets is not capped: a
    # hub among nodes of smaller degree would go too early and spoil the factor.
    bucket = np.empty(source.size + 2, np.int32)
    for v in range(bucket.size):
        bucket[v] = -1
    for v in range(n_nodes - 1, -1, -1):
        _link(v, node, bucket)
    lowest = 0
    order = np.empty(n_nodes, np.int32)
    start = np.zeros(n_nodes + 1, np.int64)
    rows = np.empty(2 * source.size + n_nodes, np.int32)
    fractions = np.empty(rows.size)
    pivot = np.empty(n_nodes)
    star, light, gain = np.empty(64, np.int32), np.empty(64), np.empty(64, np.int32)
    beyond = np.empty(65)
    random = np.empty(1, dtype=np.uint64)
    random[0] = seed
    count = 0
    for step in range(n_nodes):
        start[step] = count
        while bucket[lowest] < 0:
            lowest += 1
        v = bucket[lowest]
        _unlink(v, node, bucket)
        order[step] = v
        # Gather the star of `v`, parallel edges merged; `gain` is the change of a degree.
        d = 0
        h = node[v].head
        while h >= 0:
            if half[h].weight > 0.0:
                j = half[h].neighbor
                k = node[j].slot
                if k < 0:
                    if d == star.size:
                        star, light, gain = _double(star), _double(light), _double(gain)
                        beyond = np.empty(star.size + 1)
                    node[j].slot = d
                    star[d], light[d], gain[d] = h, half[h].weight, 0
                    d += 1
                else:
                    light[k] += half[h].weight
                    half[h ^ 1].weight = 0.0
                    gain[k] -= 1
            h = half[h].following
        pivot[step] = 1.0
        if d == 0:
            continue
        for i in range(d):
            node[half[star[i]].neighbor].slot = -1
        _sort(light, star, gain, d)
        beyond[d] = 0.0
        for i in range(d - 1, -1, -1):
            beyond[i] = beyond[i + 1] + light[i]
        total = beyond[0]
        pivot[step] = total
        while count + d > rows.size:
            rows, fractions = _double(rows), _double(fractions)
        for i in range(d):
            rows[count + i] = half[star[i]].neighbor
            fractions[count + i] = light[i] / total
        # Keep one edge for each neighbour but the heaviest.
        for i in range(d - 1):
            h = star[i]
            drawn = _draw(beyond, i + 1, d - 1, random)
            gain[drawn] += 1
            k = rows[count + drawn]
            kept = max(light[i] * (beyond[i + 1] / total), _UNDERFLOW)
            half[h ^ 1].neighbor = k
            half[h ^ 1].weight = kept
            half[h].weight = kept
            half[h].following = node[k].head
            node[k].head = h
        half[star[d - 1] ^ 1].weight = 0.0
        gain[d - 1] -= 1
        for i in range(d):
            if gain[i] != 0:
                j = rows[count + i]
                _unlink(j, node, bucket)
                node[j].degree += gain[i]
                _link(int(j), node, bucket)
                lowest = min(lowest, node[j].degree)
        count += d
    start[n_nodes] = count
    return order, start, rows[:count].copy(), fractions[:count].copy(), pivot


@inner(cache=True)
def _half_edges(
    n_nodes: int, source: Index32, target: Index32, weights: Array
) -> tuple[Records, Records]:
    half = np.empty(2 * source.size, dtype=_HALF)
    node = np.empty(n_nodes, dtype=_NODE)
    for v in range(n_nodes):
        node[v].head = -1
        node[v].degree = 0
        node[v].slot = -1
    for e in range(source.size - 1, -1, -1):
        if weights[e] > 0.0:
            for h, x, y in ((2 * e, source[e], target[e]), (2 * e + 1, target[e], source[e])):
                half[h].neighbor = y
                half[h].weight = weights[e]
                half[h].following = node[x].head
                node[x].head = h
                node[x].degree += 1
    return half, node


@inner(cache=True)
def _link(v: int, node: Records, bucket: Index32) -> None:
    degree = node[v].degree
    first = bucket[degree]
    node[v].after = first
    node[v].before = -1
    if first >= 0:
        node[first].before = v
    bucket[degree] = v


@inner(cache=True)
def _unlink(v: int, node: Records, bucket: Index32) -> None:
    previous, following = node[v].before, node[v].after
    if previous >= 0:
        node[previous].after = following
    else:
        bucket[node[v].degree] = following
    if following >= 0:
        node[following].before = previous


@inner(cache=True)
def _double(array: Any) -> Any:
    """The array, extended to twice its length."""
    out = np.empty(2 * array.size, array.dtype)
    for i in range(array.size):
        out[i] = array[i]
    return out


@inner(cache=True)
def _sort(keys: Array, first: Index32, second: Index32, count: int) -> None:
    """Sort the first `count` keys in increasing order, and two more arrays along with them."""
    # Shell's sort: for few keys plain insertion; numba's `argsort` takes seconds to compile.
    gap = 1
    while count > 40 and 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, one, two = keys[i], first[i], second[i]
            j = i - gap
            while j >= 0 and keys[j] > key:
                keys[j + gap], first[j + gap], second[j + gap] = keys[j], first[j], second[j]
                j -= gap
            keys[j + gap], first[j + gap], second[j + gap] = key, one, two
        gap //= 3


@inner(cache=True)
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
