"""States that nearly empty on the way, taken out of Newton's system.

Where a density falls to 1e-4 and rises again, mobility and force change by orders of magnitude
within a step: a handful of such states holds nearly all of the residual, and Newton's and GMRES'
iterations go into them. They are instead solved for separately, in small clusters, with the states
around them held fixed: first exactly (`settle`), then, linearised, as a response to the states
around them (`Response`). No cluster touches another, so each is solved alone.

The unknowns of a state in a cluster are the relative change of its density and its potential at all
stages, and its potential at the middle; its equations are those of collocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._compile import inner, njit
from thalweg._dense import solve
from thalweg._types import Array, Index, Index32, Single
from thalweg.edges import kinetic
from thalweg.edges.static import Graph

_LARGEST = 24
"""Largest number of states in a cluster; those next to a full one are left to GMRES."""
_FEW = 0.02
"""Share of all states that may be taken out beyond one full cluster."""
_STEPS = 12
"""Largest number of Newton steps of a cluster."""
_OFFSET = 0.03
"""Error of mass allowed in a state's fluxes, relative to its least mass."""


class Clusters(NamedTuple):
    """`states[bounds[k] : bounds[k + 1]]` form cluster `k`; `around` adds their neighbours.

    The edges at state `x` are `edges[start[x] : start[x + 1]]`.
    """

    states: Index
    bounds: Index
    around: Index
    start: Index
    edges: Index


class Local(NamedTuple):
    """The part of the problem that the equations of single states need."""

    graph: Graph
    gap: Array
    base: Array
    ends: Array
    mid: Array
    weights: Array
    barrier: float


def find_clusters(source: Index32, target: Index32, urge: Array) -> Clusters | None:
    """Clusters of the states with an urgency above one, the most urgent first.

    `None` if there are none, or so many that single states are not the difficulty."""
    urgent = np.flatnonzero(urge > 1.0)
    if not 0 < urgent.size <= _LARGEST + _FEW * urge.size:
        return None
    start, edges = _incidence(source, target, urge.size)
    order = urgent[np.argsort(-urge[urgent])]
    states, bounds, around = _grow(order, urge > 1.0, source, target, start, edges)
    return Clusters(states, bounds, np.flatnonzero(around), start, edges)


@njit(cache=True, error_model="numpy")
def _incidence(source: Index32, target: Index32, n: int) -> tuple[Index, Index]:
    start = np.zeros(n + 1, np.int64)
    for e in range(source.size):
        start[source[e] + 1] += 1
        start[target[e] + 1] += 1
    for x in range(n):
        start[x + 1] += start[x]
    at = start[:-1].copy()
    edges = np.empty(2 * source.size, np.int64)
    for e in range(source.size):
        for x in (source[e], target[e]):
            edges[at[x]] = e
            at[x] += 1
    return start, edges


@njit(cache=True, error_model="numpy")
def _grow(
    order: Index,
    urgent: NDArray[np.bool_],
    source: Index32,
    target: Index32,
    start: Index,
    edges: Index,
) -> tuple[Index, Index, NDArray[np.bool_]]:
    seen = np.zeros(urgent.size, np.bool_)
    states, bounds = np.empty(order.size, np.int64), np.zeros(order.size + 1, np.int64)
    size, count = 0, 0
    for first in order:
        if seen[first]:
            continue
        low = size
        states[size] = first
        seen[first] = True
        size += 1
        k = low
        while k < size:
            x = states[k]
            for p in range(start[x], start[x + 1]):
                y = source[edges[p]] + target[edges[p]] - x
                if urgent[y] and not seen[y] and size - low < _LARGEST:
                    states[size] = y
                    size += 1
                seen[y] = True
            k += 1
        count += 1
        bounds[count] = size
    around = np.zeros(urgent.size, np.bool_)
    for x in states[:size]:
        around[x] = True
        for p in range(start[x], start[x + 1]):
            around[source[edges[p]] + target[edges[p]] - x] = True
    return states[:size], bounds[: count + 1], around


def settle(
    clusters: Clusters, local: Local, goal: float, rho: Array, q: Array, middle: Array
) -> None:
    """Solve the clusters' equations for their densities and potentials, in place, by Newton.

    `goal` is the residual to reach; if none smaller is found, a cluster stays as it was.
    """
    states = clusters.states
    before = rho[states], q[states], middle[states]
    if not _settle(clusters, local, goal, rho, q, middle):
        rho[states], q[states], middle[states] = before


@njit(cache=True, error_model="numpy")
def _settle(
    clusters: Clusters, local: Local, goal: float, rho: Array, q: Array, middle: Array
) -> bool:
    states, bounds, _, start, edges = clusters
    count = local.weights.size
    for k in range(bounds.size - 1):
        members = states[bounds[k] : bounds[k + 1]]
        best = np.empty((members.size, 2 * count + 1))
        least = np.inf
        _store(members, best, rho, q, middle)
        for _ in range(_STEPS):
            matrix, right, size, offset = _equations(members, start, edges, local, rho, q, middle)
            if not np.isfinite(size) or size > 10 * least:
                break
            if size < least:
                least = size
                _store(members, best, rho, q, middle)
            if size <= goal and offset <= _OFFSET:
                break
            step = right.reshape((right.size, 1))
            if not solve(matrix, step):
                return False
            for j in range(members.size):
                x, low = members[j], j * (2 * count + 1)
                _move(step[low : low + 2 * count, 0], rho[x], q[x])
                middle[x] += step[low + 2 * count, 0]
        _restore(members, best, rho, q, middle)
    return True


@inner(cache=True, error_model="numpy")
def _store(members: Index, kept: Array, rho: Array, q: Array, middle: Array) -> None:
    count = rho.shape[1]
    for j in range(members.size):
        x = members[j]
        for i in range(count):
            kept[j, i] = rho[x, i]
            kept[j, count + i] = q[x, i]
        kept[j, 2 * count] = middle[x]


@inner(cache=True, error_model="numpy")
def _restore(members: Index, kept: Array, rho: Array, q: Array, middle: Array) -> None:
    count = rho.shape[1]
    for j in range(members.size):
        x = members[j]
        for i in range(count):
            rho[x, i] = kept[j, i]
            q[x, i] = kept[j, count + i]
        middle[x] = kept[j, 2 * count]


@inner(cache=True, error_model="numpy")
def _move(step: Array, rho: Array, q: Array) -> None:
    """A step bent like those of the whole path: a state neither empties nor grows out of bounds."""
    count = rho.size
    for i in range(count):
        w = step[i]
        if w < -0.5:
            rho[i] *= 0.25 / -w
        elif w > 3.0:
            rho[i] *= 4.0 + 4.0 * np.log((1.0 + w) / 4.0)
        else:
            rho[i] *= 1.0 + w
        q[i] += step[count + i]


@njit(cache=True, error_model="numpy")
def _equations(
    members: Index,
    start: Index,
    edges: Index,
    local: Local,
    rho: Array,
    q: Array,
    middle: Array,
) -> tuple[Array, Array, float, float]:
    """A cluster's matrix, its residuals, their size, and the largest relative to a state's mass."""
    count = local.weights.size
    wide = 2 * count + 1
    matrix = np.zeros((members.size * wide, members.size * wide))
    right = np.empty((members.size, wide))
    size, defect, offset = 0.0, 0.0, 0.0
    for j in range(members.size):
        x = members[j]
        pi = local.graph.pi[x]
        mass = pi * rho[x]
        gain, force = np.zeros(count), np.zeros(count)
        own = np.zeros((4, count))
        rows = matrix[j * wide : (j + 1) * wide]
        for p in range(start[x], start[x + 1]):
            e = edges[p]
            y = local.graph.source[e] + local.graph.target[e] - x
            c = local.graph.conductance[e]
            other = np.zeros((4, count))
            for i in range(count):
                d = q[x, i] + middle[x] - q[y, i] - middle[y]
                weight, by_s, by_t, ss, st, _, at_s, _ = kinetic.edge_terms(
                    local.graph.spec, c, rho[x, i], rho[y, i], d
                )
                gain[i] += weight * d
                force[i] += at_s
                own[0, i] += by_s
                own[1, i] += weight
                own[2, i] += ss
                own[3, i] += by_s
                other[0, i] = by_t
                other[1, i] = -weight
                other[2, i] = st
                other[3, i] = -by_s
            for k in range(members.size):
                if members[k] == y:
                    _couple(rows[:, k * wide : (k + 1) * wide], other, mass, local)
        for i in range(count):
            own[2, i] -= local.barrier * pi
        _couple(rows[:, j * wide : (j + 1) * wide], own, mass, local)
        for i in range(2 * count):
            rows[i, j * wide + i] += 1.0
        for i in range(count):
            moved, pushed = 0.0, 0.0
            for k in range(count):
                moved += gain[k] * local.ends[k, i]
                pushed += (force[k] / pi + local.barrier / rho[x, k]) * local.mid[k, i]
            right[j, i] = (local.base[x, i] + moved / pi) / rho[x, i] - 1.0
            right[j, count + i] = -pushed - q[x, i]
            size += local.weights[i] * mass[i] * (right[j, i] ** 2 + right[j, count + i] ** 2)
            offset = max(offset, abs(right[j, i]))
        right[j, -1] = local.gap[x]
        least = mass[0]
        for i in range(count):
            right[j, -1] -= gain[i] * local.weights[i]
            least = min(least, mass[i])
        defect += abs(right[j, -1])
        offset = max(offset, abs(right[j, -1]) / least)
    return matrix, right, max(np.sqrt(size), defect), offset


@inner(cache=True, error_model="numpy")
def _couple(block: Array, by: Array, mass: Array, local: Local) -> None:
    """Add the effect of a state's changes to a state's equations.

    `by` holds the derivatives of the gain and of the push by density and potential.
    """
    count = mass.size
    for j in range(count):
        gain_w, gain_q = by[0, j], by[1, j]
        push_w, push_q = by[2, j] / mass[j], by[3, j] / mass[j]
        for i in range(count):
            drift, turn = -local.ends[j, i] / mass[i], local.mid[j, i]
            block[i, j] += drift * gain_w
            block[i, count + j] += drift * gain_q
            block[i, -1] += drift * gain_q
            block[count + i, j] += turn * push_w
            block[count + i, count + j] += turn * push_q
            block[count + i, -1] += turn * push_q
        b = local.weights[j]
        block[-1, j] += b * gain_w
        block[-1, count + j] += b * gain_q
        block[-1, -1] += b * gain_q


@njit(cache=True, error_model="numpy")
def refresh(
    clusters: Clusters,
    local: Local,
    rho: Array,
    psi: Array,
    table: Single,
    gain: Array,
    force: Array,
) -> None:
    """Update the result of `kinetic.linearise` in place, at the clusters and their neighbours."""
    for x in clusters.around:
        gain[x] = 0.0
        force[x] = 0.0
        for p in range(clusters.start[x], clusters.start[x + 1]):
            e = clusters.edges[p]
            a, b, c = local.graph.source[e], local.graph.target[e], local.graph.conductance[e]
            for i in range(rho.shape[1]):
                d = psi[a, i] - psi[b, i]
                weight, by_s, by_t, ss, st, tt, at_s, at_t = kinetic.edge_terms(
                    local.graph.spec, c, rho[a, i], rho[b, i], d
                )
                table[e, 0, i], table[e, 1, i], table[e, 2, i] = weight, by_s, by_t
                table[e, 3, i], table[e, 4, i], table[e, 5, i] = ss, st, tt
                gain[x, i] += weight * d if a == x else -weight * d
                force[x, i] += at_s if a == x else at_t


@dataclass(frozen=True, eq=False)
class Response:
    """The response of the clusters to the states around them, by their linearised equations."""

    clusters: Clusters
    local: Local
    table: Single
    mass: Array
    inverse: sparse.csr_array
    outside: NDArray[np.bool_]
    """States in no cluster."""

    @classmethod
    def of(
        cls,
        clusters: Clusters,
        local: Local,
        table: Single,
        rho: Array,
        q: Array,
        middle: Array,
    ) -> Response:
        states, bounds, _, start, edges = clusters
        inverses = [
            np.linalg.inv(_equations(states[low:high], start, edges, local, rho, q, middle)[0])
            for low, high in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        outside = np.ones(middle.size, np.bool_)
        outside[states] = False
        mass = local.graph.pi[states, None] * rho[states]
        inverse = sparse.csr_array(sparse.block_diag(inverses, format="csr"))
        return cls(clusters, local, table, mass, inverse, outside)

    def follow(self, w: Array, q: Array, middle: Array, right: Array | None = None) -> None:
        """Fill in the rows of the clusters, in place, so that their equations give `right`."""
        states, local, count = self.clusters.states, self.local, self.local.weights.size
        gain, push = _from_outside(self.clusters, local, self.outside, self.table, w, q, middle)
        own = np.empty((states.size, 2 * count + 1))
        own[:, :count] = gain @ local.ends / self.mass
        own[:, count:-1] = -(push / self.mass) @ local.mid
        own[:, -1] = -gain @ local.weights
        if right is not None:
            own += right
        own = (self.inverse @ own.ravel()).reshape(own.shape)
        w[states], q[states], middle[states] = own[:, :count], own[:, count:-1], own[:, -1]


@njit(cache=True, error_model="numpy")
def _from_outside(
    clusters: Clusters,
    local: Local,
    outside: NDArray[np.bool_],
    table: Single,
    w: Array,
    q: Array,
    middle: Array,
) -> tuple[Array, Array]:
    """The rows of `kinetic.product` for some states, by what changes outside the clusters."""
    states, _, _, start, edges = clusters
    source, target, count = local.graph.source, local.graph.target, w.shape[1]
    gain, push = np.zeros((states.size, count)), np.zeros((states.size, count))
    for j in range(states.size):
        x = states[j]
        for p in range(start[x], start[x + 1]):
            e = edges[p]
            y = source[e] + target[e] - x
            if not outside[y]:
                continue
            first = source[e] == x
            here, there = (1, 2) if first else (2, 1)
            sign = 1.0 if first else -1.0
            for i in range(count):
                difference = -sign * (q[y, i] + middle[y])
                flux = table[e, 0, i] * difference + table[e, there, i] * w[y, i]
                gain[j, i] += sign * flux
                push[j, i] += table[e, here, i] * difference + table[e, 4, i] * w[y, i]
    return gain, push
