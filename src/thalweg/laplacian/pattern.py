"""The edges of a Laplacian, checked once, and the method interface that every file here meets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from thalweg.errors import InputError

Array = NDArray[np.float64]
Index = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A connected graph without self-loops: `n_nodes` and one `(source, target)` pair per edge."""

    n_nodes: int
    source: Index
    target: Index

    @classmethod
    def from_edges(
        cls, n_nodes: int, source: ArrayLike, target: ArrayLike, *, grounded: bool
    ) -> Pattern:
        """Check the edges; with `grounded`, add node `n_nodes` and an edge from it to every node.

        The ground turns `M + diag(d)` into a Laplacian: `d_x` is the weight of the edge from `x`
        to the ground, and the solution is read with the ground at zero.
        """
        first, second = _as_index(source, "source"), _as_index(target, "target")
        if first.shape != second.shape:
            raise InputError(
                f"source has {first.size} entries and target {second.size}; "
                "give both ends of every edge."
            )
        if n_nodes < 1 or (n_nodes < 2 and not grounded):
            raise InputError(f"n_nodes is {n_nodes}; a Laplacian needs at least two nodes.")
        for name, ends in (("source", first), ("target", second)):
            outside = (ends < 0) | (ends >= n_nodes)
            if outside.any():
                e = int(np.argmax(outside))
                raise InputError(
                    f"{name}[{e}] is {ends[e]}; nodes are numbered 0 to {n_nodes - 1}."
                )
        if np.any(first == second):
            e = int(np.argmax(first == second))
            raise InputError(
                f"edge {e} joins node {first[e]} to itself; a self-loop carries no flux: remove it."
            )
        if grounded:
            first = np.concatenate([first, np.arange(n_nodes, dtype=np.int32)])
            second = np.concatenate([second, np.full(n_nodes, n_nodes, dtype=np.int32)])
        pattern = cls(n_nodes + grounded, first, second)
        pattern._check_connected()
        return pattern

    @property
    def n_edges(self) -> int:
        return int(self.source.size)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The symmetric adjacency matrix with ones (repeated edges are added up)."""
        n = self.n_nodes
        upper = sparse.coo_array(
            (np.ones(self.n_edges), (self.source, self.target)), shape=(n, n)
        ).tocsr()
        return sparse.csr_array(upper + upper.T)

    def components(self, keep: NDArray[np.bool_]) -> tuple[int, Index]:
        """The number of components and the label of each node when only `keep` edges remain."""
        n = self.n_nodes
        kept = sparse.coo_array(
            (np.ones(int(keep.sum())), (self.source[keep], self.target[keep])), shape=(n, n)
        )
        count, label = connected_components(kept, directed=False)
        return int(count), np.asarray(label, dtype=np.int32)

    def _check_connected(self) -> None:
        count, label = self.components(np.ones(self.n_edges, dtype=bool))
        if count > 1:
            stray = int(np.flatnonzero(label != label[0])[0])
            raise InputError(
                f"the graph falls into {count} components (no path from node 0 to node {stray}); "
                "add edges between them, or solve on each component."
            )


class Preconditioner(Protocol):
    """A factorisation for one set of weights."""

    def apply(self, r: Array) -> Array:
        """`z` with `M z = r` up to the quality of the factorisation, and up to a constant."""
        ...


class Analysis(Protocol):
    """What a method learns from the pattern alone, once."""

    def factor(self, weights: Array) -> Preconditioner:
        """Factorise for these weights (scaled so that the largest is about one, none zero)."""
        ...


def _as_index(values: ArrayLike, name: str) -> Index:
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{name} has shape {array.shape} and type {array.dtype}; give a list of node numbers."
        )
    return np.ascontiguousarray(array, dtype=np.int32)
