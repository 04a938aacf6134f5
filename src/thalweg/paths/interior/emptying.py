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
from thalweg._types import Array, Index, Single
from thalweg.edges import kinetic
from thalweg.edges.static import Graph
from thalweg.kernel import Adjacency
from thalweg.paths.newton import bent

_LARGEST = 24
"""Largest number of states in a cluster; those next to a full one are left to GMRES."""
_FEW = 0.02
"""Share of all states that may be taken out beyond one full cluster."""
_STEPS = 12
"""Largest number of Newton steps of a cluster."""
_OFFSET = 0.03
"""Error of mass allowed in a state's fluxes, relative to its least mass."""


class Clusters(NamedTuple):
    """`states[bounds[k] : bounds[k + 1]]` form cluster `k`; `around` adds their neighbours."""

    states: Index
    bounds: Index
    around: Index
    adjacency: Adjacency

    def members(self) -> list[Index]:
        """The states of each cluster."""
        return np.split(self.states, self.bounds[1:-1])

    def response(
        self, local: Local, table: Single, rho: Array, q: Array, middle: Array
    ) -> Response:
        """How the clusters follow the states around them from here."""
        inverses = [
            np.linalg.inv(_equations(x, self.adjacency, local, rho, q, middle)[0])
            for x in self.members()
        ]
        outside = np.ones(middle.size, np.bool_)
        outside[self.states] = False
        mass = local.graph.pi[self.states, None] * rho[self.states]
        inverse = sparse.csr_array(sparse.block_diag(inverses, format="csr"))
        return Response(self, local, table, mass, inverse, outside)


class Local(NamedTuple):
    """The part of the problem that the equations of single states need."""

    graph: Graph
    gap: Array
    base: Array
    ends: Array
    mid: Array
    weights: Array
    barrier: float


def find_clusters(adjacency: Adjacency, urge: Array) -> Clusters | None:
    """Clusters of the states with an urgency above one, the most urgent first.

    `None` if there are none, or so many that single states are not the difficulty."""
    urgent = np.flatnonzero(urge > 1.0)
    if not 0 < urgent.size <= _LARGEST + _FEW * urge.size:
        return None
    order = urgent[np.argsort(-urge[urgent])]
    states, bounds, around = _grow(order, urge > 1.0, adjacency)
    return Clusters(states, bounds, np.flatnonzero(around), adjacency)


@njit(cache=True, error_model="numpy")
def _grow(
    order: Index, urgent: NDArray[np.bool_], adjacency: Adjacency
) -> tuple[Index, Index, NDArray[np.bool_]]:
    start, neighbor, _ = adjacency
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
                y = neighbor[p]
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
            around[neighbor[p]] = True
    return states[:size], bounds[: count + 1], around


def settle(
    clusters: Clusters, local: Local, goal: float, rho: Array, q: Array, middle: Array
) -> None:
    """Solve the clusters' equations for their densities and potentials, in place, by Newton.

    `goal` is the residual to reach; if none smaller is found, a cluster stays as it was.
    """
    count = local.weights.size
    for x in clusters.members():
        best, least = (rho[x], q[x], middle[x]), np.inf
        for _ in range(_STEPS):
            matrix, right, size, offset = _equations(x, clusters.adjacency, local, rho, q, middle)
            if not np.isfinite(size) or size > 10 * least:
                break
            if size < least:
                best, least = (rho[x], q[x], middle[x]), size
            if size <= goal and offset <= _OFFSET:
                break
            try:
                step = np.linalg.solve(matrix, right.ravel()).reshape(right.shape)
            except np.linalg.LinAlgError:
                break
            rho[x] = bent(rho[x], step[:, :count])
            q[x] += step[:, count:-1]
            middle[x] += step[:, -1]
        rho[x], q[x], middle[x] = best


@njit(cache=True, error_model="numpy")
def _equations(
    members: Index,
    adjacency: Adjacency,
    local: Local,
    rho: Array,
    q: Array,
    middle: Array,
) -> tuple[Array, Array, float, float]:
    """A cluster's matrix, its residuals, their size, and the largest relative to a state's mass."""
    start, neighbor, edges = adjacency
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
            y, c = neighbor[p], local.graph.conductance[edges[p]]
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
    q: Array,
    middle: Array,
    table: Single,
    gain: Array,
    force: Array,
) -> None:
    """Update the result of `kinetic.linearise` in place, at the clusters and their neighbours."""
    start, _, edges = clusters.adjacency
    for x in clusters.around:
        gain[x] = 0.0
        force[x] = 0.0
        for p in range(start[x], start[x + 1]):
            e = edges[p]
            a, b, c = local.graph.source[e], local.graph.target[e], local.graph.conductance[e]
            for i in range(rho.shape[1]):
                d = (q[a, i] + middle[a]) - (q[b, i] + middle[b])
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
    states, (start, neighbor, edges) = clusters.states, clusters.adjacency
    source, count = local.graph.source, w.shape[1]
    gain, push = np.zeros((states.size, count)), np.zeros((states.size, count))
    for j in range(states.size):
        x = states[j]
        for p in range(start[x], start[x + 1]):
            e, y = edges[p], neighbor[p]
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
