"""In which order the states of a graph are eliminated, and what that costs.

Newton's system for a path couples the unknowns of a state over all times with those of its
neighbours. Taking all times of a state together, it is a matrix on the graph with dense blocks: the
order of elimination, its fill and its cost follow from the graph alone, once for all meshes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu

from thalweg.kernel import MarkovKernel

__all__ = ["Elimination", "Front"]

Index = NDArray[np.int64]

_SMALL = 6
"""Fronts of so few states are joined with their parents: calls cost more than arithmetic."""
_ZEROS = 0.15
"""The share of zeros that joining two fronts may add."""


class Front(NamedTuple):
    """States eliminated together, the later states they touch, and where it hangs in the tree."""

    states: Index
    border: Index
    edges: Index
    """Edges of the kernel whose earlier end is eliminated here."""
    ends: NDArray[np.int64]
    """The places of their two ends among `states`, then `border`; shape (edges, 2)."""
    parent: int
    """The front that takes over the border; -1 at a root."""
    places: Index
    """The places of the border among the parent's `states`, then `border`."""


@dataclass(frozen=True, eq=False)
class Elimination:
    """Fronts in an order in which children come before their parents.

    >>> path = MarkovKernel.from_weights(np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1))
    >>> sum(front.states.size for front in Elimination.of(path).fronts)
    5
    """

    fronts: tuple[Front, ...]

    @classmethod
    def of(cls, kernel: MarkovKernel) -> Elimination:
        """Minimum degree, then fronts of neighbouring columns with like structure."""
        n = kernel.n_states
        source, target, _ = kernel.edges
        upper = sparse.coo_array((np.ones(source.size), (source, target)), shape=(n, n)).tocsr()
        adjacency = sparse.csr_array(upper + upper.T)
        order = _minimum_degree(adjacency)
        name = np.empty(n, dtype=np.int64)
        name[order] = np.arange(n)
        groups = _joined(*_columns(adjacency, order, name))
        return cls(_fronts(groups, order, name, np.asarray(source), np.asarray(target)))

    @cached_property
    def sizes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        states = np.array([f.states.size for f in self.fronts], dtype=float)
        border = np.array([f.border.size for f in self.fronts], dtype=float)
        return states, border

    def flops(self, block: int) -> float:
        """Multiplications and additions of a factorisation with `block` unknowns a state."""
        s, r = self.sizes
        return float(block**3 * (s**3 / 3 + s**2 * r + s * r**2).sum())

    def entries(self, block: int) -> float:
        """Numbers to keep for a factorisation."""
        s, r = self.sizes
        return float(block**2 * (s * (s + r)).sum())


def _minimum_degree(adjacency: sparse.csr_array) -> Index:
    """SuperLU's ordering of a matrix with this pattern, children right before their parents."""
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    matrix = sparse.csc_array(sparse.diags_array(degree + 1.0) - adjacency)
    lu = splu(
        matrix,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    order = np.empty(degree.size, dtype=np.int64)
    order[lu.perm_c] = np.arange(degree.size)
    return order


def _columns(adjacency: sparse.csr_array, order: Index, name: Index) -> tuple[list[Index], Index]:
    """The structure below the diagonal of every column of the factor, and the parent of each."""
    n = order.size
    below: list[Index] = [np.empty(0, dtype=np.int64)] * n
    parent = np.full(n, -1, dtype=np.int64)
    children: list[list[int]] = [[] for _ in range(n)]
    for j in range(n):
        x = int(order[j])
        near = name[adjacency.indices[adjacency.indptr[x] : adjacency.indptr[x + 1]]]
        parts = [near[near > j], *(below[c][1:] for c in children[j])]
        below[j] = np.unique(np.concatenate(parts))
        if below[j].size:
            parent[j] = below[j][0]
            children[int(parent[j])].append(j)
    return below, parent


def _joined(below: list[Index], parent: Index) -> list[tuple[int, int, Index]]:
    """Runs of columns `[first, stop)` with their common border."""
    done: list[tuple[int, int, Index]] = []
    waste: list[float] = []
    for j in range(len(below)):
        first, zeros = j, 0.0
        # Only the run that ends right before `j` can be joined: children are numbered so.
        while done:
            a, b, border = done[-1]
            if b != first or parent[b - 1] != j:
                break
            width, own = b - a, j + 1 - first
            missing = below[j].size + own - border.size
            extra = zeros + waste[-1] + width * missing
            whole = (width + own) * (0.5 * (width + own) + below[j].size)
            small = width + own <= _SMALL and missing <= _SMALL
            if missing > 0 and not small and extra > _ZEROS * whole:
                break
            done.pop()
            waste.pop()
            first, zeros = a, extra
        done.append((first, j + 1, below[j]))
        waste.append(zeros)
    return done


def _fronts(
    groups: list[tuple[int, int, Index]],
    order: Index,
    name: Index,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
) -> tuple[Front, ...]:
    owner = np.empty(order.size, dtype=np.int64)
    for g, (first, stop, _) in enumerate(groups):
        owner[first:stop] = g
    one, other = name[source], name[target]
    front_of = owner[np.minimum(one, other)]
    by_front = np.argsort(front_of, kind="stable")
    bounds = np.searchsorted(front_of[by_front], np.arange(len(groups) + 1))
    members = [np.concatenate([np.arange(a, b), border]) for a, b, border in groups]
    fronts = []
    for g, (first, stop, border) in enumerate(groups):
        edges = by_front[bounds[g] : bounds[g + 1]]
        ends = np.searchsorted(members[g], np.stack([one[edges], other[edges]], axis=1))
        parent = int(owner[border[0]]) if border.size else -1
        places = np.searchsorted(members[parent], border) if border.size else border
        fronts.append(Front(order[first:stop], order[border], edges, ends, parent, places))
    return tuple(fronts)
