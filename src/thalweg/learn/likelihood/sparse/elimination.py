"""Elimination of a matrix with a graph's pattern: planned once, repeated for every time step.

States are eliminated in order of minimum degree, without pivoting, until those that are left are
nearly all joined to each other; that tail is dense and left to LAPACK. The matrices of implicit
steps have dominant columns wherever the flow is resolved; callers check the factors (see
`chains.advance`).
"""

from __future__ import annotations

import heapq
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg.kernel import MarkovKernel

__all__ = ["Plan", "factor", "make_plan", "solve", "solve_many", "solve_transposed"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_DENSE = 0.6
"""Elimination becomes dense once a state is joined to this share of the remaining ones."""
_SMALLEST_TAIL = 8


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
    )


@njit(cache=True)
def factor(plan: Plan, work: Array) -> bool:
    """LU in place over the sparse part of the dense work matrix; the tail keeps its complement."""
    for k in range(plan.split):
        pivot = work[k, k]
        if not abs(pivot) > 1e-300:
            return False
        inverse = 1.0 / pivot
        first, last = plan.pointer[k], plan.pointer[k + 1]
        for q in range(first, last):
            i = plan.later[q]
            ratio = work[i, k] * inverse
            work[i, k] = ratio
            for r in range(first, last):
                j = plan.later[r]
                work[i, j] -= ratio * work[k, j]
    return True


@njit(cache=True)
def solve(plan: Plan, inverse: Array, lower: Array, upper: Array, tail: Array, b: Array) -> None:
    """Solve in place; `inverse` of the pivots, `tail` the inverse of the dense complement."""
    split = plan.split
    for i in range(split):
        value = b[i]
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            b[plan.later[q]] -= lower[q] * value
    b[split:] = np.dot(tail, b[split:].copy())
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
    split = plan.split
    for i in range(split):
        value = b[i] * inverse[i]
        b[i] = value
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            b[plan.later[q]] -= upper[q] * value
    b[split:] = np.dot(b[split:].copy(), tail)
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
    split, columns = plan.split, b.shape[1]
    for i in range(split):
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            ratio, row = lower[q], plan.later[q]
            for j in range(columns):
                b[row, j] -= ratio * b[i, j]
    b[split:] = np.dot(tail, b[split:])
    for i in range(split - 1, -1, -1):
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            ratio, row = upper[q], plan.later[q]
            for j in range(columns):
                b[i, j] -= ratio * b[row, j]
        scale = inverse[i]
        for j in range(columns):
            b[i, j] *= scale
