"""Elimination of a matrix with a graph's pattern: planned once, repeated for every time step.

States are eliminated in order of minimum degree, without pivoting, until those that are left are
nearly all joined to each other; that tail is dense. The matrices of implicit
steps have dominant columns wherever the flow is resolved; callers check the factors (see
`chains.advance`).
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from thalweg._compile import inner
from thalweg._types import Array, Index
from thalweg.kernel import MarkovKernel

__all__ = ["Plan", "factor", "make_plan", "solve", "solve_many", "solve_transposed"]


_DENSE = 0.6
"""Elimination becomes dense once a state is joined to this share of the remaining ones."""
_SMALLEST_TAIL = 8
_EDGE = 60.0
"""Operations that take as long as the flux of an edge, most of it two exponentials."""
_BLOCK = 24
"""Rows of the tail that are solved for at once; the rest of their products is left to BLAS."""


class Plan(NamedTuple):
    """The order of elimination, its pattern, and the graph in that order."""

    order: Index
    """State at each place."""
    split: int
    """Places from here on are the dense tail."""
    pointer: Index
    later: Index
    """`later[pointer[i] : pointer[i + 1]]`: later places joined to place `i` at its turn."""
    source: Index
    target: Index
    conductance: Array
    pi: Array
    patience: float
    """Iterations with old factors that cost as much as one with new ones."""


_plans: WeakKeyDictionary[MarkovKernel, Plan] = WeakKeyDictionary()


def make_plan(kernel: MarkovKernel) -> Plan:
    """The plan of a graph, made when first asked for.

    >>> kernel = MarkovKernel.from_weights(np.diag(np.ones(19), 1) + np.diag(np.ones(19), -1))
    >>> plan = make_plan(kernel)
    >>> plan.split, int(np.diff(plan.pointer).max())
    (12, 1)
    """
    if kernel not in _plans:
        _plans[kernel] = _new_plan(kernel)
    return _plans[kernel]


def _new_plan(kernel: MarkovKernel) -> Plan:
    source, target, conductance = kernel.edges
    n = kernel.n_states
    near: list[set[int]] = [set() for _ in range(n)]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    heap = [(len(near[i]), i) for i in range(n)]
    heapq.heapify(heap)
    done = np.zeros(n, dtype=bool)
    order: list[int] = []
    patterns: list[list[int]] = []
    while heap:
        degree, i = heapq.heappop(heap)
        if done[i] or degree != len(near[i]):
            continue
        left = n - len(order)
        if left <= _SMALLEST_TAIL or degree >= _DENSE * (left - 1):
            break
        done[i] = True
        order.append(i)
        patterns.append(list(near[i]))
        for j in near[i]:
            near[j] |= near[i]
            near[j] -= {i, j}
            heapq.heappush(heap, (len(near[j]), j))
    full = np.array(order + [i for i in range(n) if not done[i]], dtype=np.int64)
    place = np.empty(n, dtype=np.int64)
    place[full] = np.arange(n)
    index = [np.sort(place[pattern]) for pattern in patterns]
    pointer = np.concatenate([[0], np.cumsum([p.size for p in index])]).astype(np.int64)
    return Plan(
        full,
        len(order),
        pointer,
        np.concatenate([*index, np.zeros(0, dtype=np.int64)]).astype(np.int64),
        place[source],
        place[target],
        np.ascontiguousarray(conductance, dtype=np.float64),
        np.ascontiguousarray(kernel.stationary[full]),
        _patience(np.array([p.size for p in index]), n - len(order), source.size),
    )


def _patience(later: Index, dense: int, edges: int) -> float:
    """Operations of an iteration with new factors, in units of one with old ones."""
    solved = 4.0 * later.sum() + 2.0 * dense**2 + _EDGE * edges
    factored = 2.0 * float(later @ later) + 2.0 / 3.0 * dense**3 + _EDGE * edges
    return float(1.0 + factored / solved)


@inner(cache=True)
def factor(plan: Plan, work: Array) -> bool:
    """LU in place: over the pattern of the sparse part, then over the whole tail."""
    n, split = work.shape[0], plan.split
    joined = np.empty(n)
    for k in range(split):
        pivot = work[k, k]
        if not abs(pivot) > 1e-300:
            return False
        inverse = 1.0 / pivot
        later, own = plan.later[plan.pointer[k] : plan.pointer[k + 1]], work[k]
        for r in range(later.size):
            joined[r] = own[later[r]]
        for i in later:
            row = work[i]
            ratio = row[k] * inverse
            row[k] = ratio
            for r in range(later.size):
                row[later[r]] -= ratio * joined[r]
    for k in range(split, n):
        pivot = work[k, k]
        if not 1e-300 < abs(pivot) < math.inf:
            return False
        inverse = 1.0 / pivot
        upper = work[k, k + 1 :]
        for i in range(k + 1, n):
            ratio = work[i, k] * inverse
            work[i, k] = ratio
            row = work[i, k + 1 :]
            for j in range(row.size):
                row[j] -= ratio * upper[j]
    return True


@inner(cache=True, fastmath={"reassoc", "contract"})
def _dot(a: Array, b: Array) -> float:
    total = 0.0
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@inner(cache=True)
def solve(plan: Plan, inverse: Array, lower: Array, upper: Array, tail: Array, b: Array) -> None:
    """Solve in place; `inverse` of all pivots, `tail` the factors of the dense part."""
    split, dense = plan.split, tail.shape[0]
    for i in range(split):
        value = b[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            b[plan.later[q]] -= lower[q] * value
    end = b[split:]
    for i in range(dense):
        end[i] -= _dot(tail[i, :i], end[:i])
    for i in range(dense - 1, -1, -1):
        end[i] = (end[i] - _dot(tail[i, i + 1 :], end[i + 1 :])) * inverse[split + i]
    for i in range(split - 1, -1, -1):
        value = b[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            value -= upper[q] * b[plan.later[q]]
        b[i] = value * inverse[i]


@inner(cache=True)
def solve_transposed(
    plan: Plan, inverse: Array, lower: Array, upper: Array, tail: Array, b: Array
) -> None:
    """Solve the transposed system in place."""
    split, dense = plan.split, tail.shape[0]
    for i in range(split):
        value = b[i] * inverse[i]
        b[i] = value
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            b[plan.later[q]] -= upper[q] * value
    end = b[split:]
    for i in range(dense):
        value = end[i] * inverse[split + i]
        end[i] = value
        row, rest = tail[i, i + 1 :], end[i + 1 :]
        for j in range(row.size):
            rest[j] -= row[j] * value
    for i in range(dense - 1, -1, -1):
        value = end[i]
        row = tail[i, :i]
        for j in range(i):
            end[j] -= row[j] * value
    for i in range(split - 1, -1, -1):
        value = b[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            value -= lower[q] * b[plan.later[q]]
        b[i] = value


@inner(cache=True)
def solve_many(
    plan: Plan, inverse: Array, lower: Array, upper: Array, tail: Array, b: Array
) -> None:
    """Solve in place for every column of `b`."""
    split, dense = plan.split, tail.shape[0]
    for i in range(split):
        own = b[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            _subtract(b[plan.later[q]], lower[q], own)
    end = b[split:]
    for first in range(0, dense, _BLOCK):
        last = min(first + _BLOCK, dense)
        if first > 0:
            end[first:last] -= np.dot(np.ascontiguousarray(tail[first:last, :first]), end[:first])
        for i in range(first, last):
            for j in range(first, i):
                _subtract(end[i], tail[i, j], end[j])
    for first in range((dense - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        last = min(first + _BLOCK, dense)
        if last < dense:
            end[first:last] -= np.dot(np.ascontiguousarray(tail[first:last, last:]), end[last:])
        for i in range(last - 1, first - 1, -1):
            own, scale = end[i], inverse[split + i]
            for j in range(i + 1, last):
                _subtract(own, tail[i, j], end[j])
            for c in range(own.size):
                own[c] *= scale
    for i in range(split - 1, -1, -1):
        own, scale = b[i], inverse[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            _subtract(own, upper[q], b[plan.later[q]])
        for c in range(own.size):
            own[c] *= scale


@inner(cache=True)
def _subtract(a: Array, factor: float, b: Array) -> None:
    for c in range(a.size):
        a[c] -= factor * b[c]
