"""The choice of a method for a graph, from its pattern alone.

| graph | method | why |
| --- | --- | --- |
| as many edges as nodes, less one | `tree` | exact in two passes |
| `n^3 <= 20000 E` and `n <= 4000` | `dense` | LAPACK's flops are cheaper than ours |
| flat, with scikit-sparse | `cholmod` | nested dissection of a flat graph has little fill |
| everything else | `approxchol` | near-linear in the edges whatever the graph |

A graph is flat when every breadth-first level is narrow, at most `5 sqrt(n)` nodes: sets that
separate it are then small. Expanders, hubs and high-dimensional neighbour graphs are not.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._compile import njit
from thalweg._types import Index32
from thalweg.laplacian.pattern import Analysis, Pattern

Method = Literal["auto", "dense", "tree", "approxchol", "cholmod", "superlu"]

_DENSE_FLOPS_PER_EDGE = 20_000
"""Cubed number of states per edge up to which dense factors are used."""
_DENSE_LIMIT = 4_000
"""Number of states above which factors are never dense."""
_FLAT_WIDTH = 5.0
"""Widest breadth-first level of a flat graph, in `sqrt(n)`."""


def choose(pattern: Pattern) -> Method:
    """The method of the table above."""
    n = pattern.n_nodes
    if pattern.n_edges == n - 1:
        return "tree"
    if n <= _DENSE_LIMIT and n**3 <= _DENSE_FLOPS_PER_EDGE * pattern.n_edges:
        return "dense"
    from thalweg.laplacian import cholmod

    if cholmod.available() and is_flat(pattern.matrix_without_ground):
        return "cholmod"
    return "approxchol"


def analyse(pattern: Pattern, method: Method) -> Analysis:
    """The symbolic work of a method (not `auto`) on a pattern; its file is imported here."""
    if method == "dense":
        from thalweg.laplacian.dense import DenseAnalysis

        return DenseAnalysis(pattern)
    if method == "tree":
        from thalweg.laplacian.tree import TreeAnalysis

        return TreeAnalysis.of(pattern)
    if method == "cholmod":
        from thalweg.laplacian.cholmod import CholmodAnalysis

        flat = is_flat(pattern.matrix_without_ground)
        return CholmodAnalysis.of(pattern, mode="simplicial" if flat else "auto")
    if method == "superlu":
        from thalweg.laplacian.superlu import SuperLUAnalysis

        return SuperLUAnalysis(pattern)
    from thalweg.laplacian.approxchol import ApproxCholAnalysis

    return ApproxCholAnalysis.of(pattern)


def is_flat(adjacency: sparse.csr_array) -> bool:
    """Whether every breadth-first level from an outlying node is narrow.

    >>> ring = sparse.csr_array(np.roll(np.eye(90), 1, axis=0) + np.roll(np.eye(90), -1, axis=0))
    >>> is_flat(ring), is_flat(sparse.csr_array(np.ones((90, 90))))
    (True, False)
    """
    width = graph_width(adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int32))
    return width <= _FLAT_WIDTH * adjacency.shape[0] ** 0.5


def graph_width(indptr: NDArray[np.int64], neighbors: Index32) -> int:
    """The size of the widest breadth-first level from an outlying node.

    >>> graph_width(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    1
    """
    _, far = _widest_level(indptr, neighbors, 0)
    return int(_widest_level(indptr, neighbors, far)[0])


@njit(cache=True)
def _widest_level(indptr: NDArray[np.int64], indices: Index32, root: int) -> tuple[int, int]:
    """The size of the largest breadth-first level, and a node of the last one."""
    seen = np.zeros(indptr.size - 1, np.bool_)
    queue = np.empty(indptr.size - 1, np.int32)
    queue[0] = root
    seen[root] = True
    low, high, width = 0, 1, 1
    while high > low:
        width = max(width, high - low)
        end = high
        for k in range(low, high):
            for p in range(indptr[queue[k]], indptr[queue[k] + 1]):
                j = indices[p]
                if not seen[j]:
                    seen[j] = True
                    queue[end] = j
                    end += 1
        low, high = high, end
    return width, queue[low - 1]
