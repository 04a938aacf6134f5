"""The edges of a Laplacian, checked once, and the method interface that every file here meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from thalweg._types import Array, Index32
from thalweg.errors import InputError


@dataclass(frozen=True, eq=False)
class Pattern:
    """A connected graph without self-loops: `n_nodes` and one `(source, target)` pair per edge."""

    n_nodes: int
    source: Index32
    target: Index32
    grounded: bool = False
    """Whether the last node is the ground."""

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
        pattern = cls(n_nodes + grounded, first, second, grounded)
        pattern._check_connected()
        return pattern

    @property
    def n_edges(self) -> int:
        return int(self.source.size)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The symmetric adjacency matrix with ones (repeated edges are added up)."""
        return self.weighted(np.ones(self.n_edges))

    def weighted(self, weights: Array) -> sparse.csr_array:
        """The symmetric adjacency matrix with these weights."""
        upper = sparse.csr_array((weights, (self.source, self.target)), shape=(self.n_nodes,) * 2)
        return sparse.csr_array(upper + upper.T)

    def degrees(self, weights: Array) -> Array:
        """The sum of the weights at each node."""
        n = self.n_nodes
        return np.asarray(
            np.bincount(self.source, weights, n) + np.bincount(self.target, weights, n), dtype=float
        )

    @property
    def matrix_without_ground(self) -> sparse.csr_array:
        """The same without the ground, whose edges hide the shape of the graph."""
        return sparse.csr_array(self.matrix[:-1, :-1]) if self.grounded else self.matrix

    def components(self, keep: NDArray[np.bool_]) -> tuple[int, Index32]:
        """The number of components and the label of each node when only `keep` edges remain."""
        n = self.n_nodes
        kept = sparse.coo_array(
            (np.ones(int(keep.sum())), (self.source[keep], self.target[keep])), shape=(n, n)
        )
        count, label = connected_components(kept, directed=False)
        return int(count), np.asarray(label, dtype=np.int32)

    def bridges(self, keep: NDArray[np.bool_], label: Index32, count: int) -> NDArray[np.intp]:
        """A smallest set of edges outside `keep` that joins the `count` components into one."""
        spare = np.flatnonzero(~keep)
        one, other = label[self.source[spare]], label[self.target[spare]]
        low, high = np.minimum(one, other), np.maximum(one, other)
        across = low != high
        spare, low, high = spare[across], low[across], high[across]
        _, first = np.unique(low.astype(np.int64) * count + high, return_index=True)
        between = sparse.csr_array(
            (spare[first] + 1.0, (low[first], high[first])), shape=(count, count)
        )
        return np.asarray(minimum_spanning_tree(between).data - 1, dtype=np.intp)

    def _check_connected(self) -> None:
        count, label = self.components(np.ones(self.n_edges, dtype=bool))
        if count > 1:
            stray = int(np.flatnonzero(label != label[0])[0])
            raise InputError(
                f"the graph falls into {count} components (no path from node 0 to node {stray}); "
                "add edges between them, or solve on each component."
            )

    def relabelled(self, nodes: Index32) -> tuple[Pattern, Relabelling]:
        """The same graph with node `nodes[i]` called `i` and its edges sorted, and the inverse.

        Passes over sorted edges between near numbers read memory in order: on large graphs that is
        most of the speed.
        """
        name = np.empty(self.n_nodes, dtype=np.int32)
        name[nodes] = np.arange(self.n_nodes, dtype=np.int32)
        one, other = name[self.source], name[self.target]
        low, high = np.minimum(one, other), np.maximum(one, other)
        edges = np.argsort(low.astype(np.int64) * self.n_nodes + high, kind="stable")
        renamed = Pattern(self.n_nodes, low[edges], high[edges], self.grounded)
        return renamed, Relabelling(nodes, edges)


class Relabelling(NamedTuple):
    """Node `i` of the new labelling is `nodes[i]` of the old one; edge `e` is `edges[e]`."""

    nodes: Index32
    edges: NDArray[np.intp]


class Preconditioner(Protocol):
    """A factorisation for one set of weights."""

    def apply(self, r: Array, out: Array) -> None:
        """Write to `out` a `z` with `M z = r`, up to the factorisation's quality and a constant."""
        ...


@dataclass(frozen=True, eq=False)
class GroundedFactor:
    """A factor of the matrix without the row and the column of one node, which stays at zero."""

    ground: int
    inverse: Callable[[Array], Array]

    def apply(self, r: Array, out: Array) -> None:
        g = self.ground
        z = self.inverse(np.delete(r, g))
        out[:g], out[g], out[g + 1 :] = z[:g], 0.0, z[g:]


class Analysis(Protocol):
    """The preparation of a method from the pattern alone, done once."""

    @property
    def pattern(self) -> Pattern:
        """The graph as the method numbers it."""
        ...

    @property
    def relabelling(self) -> Relabelling | None:
        """The map from that numbering to the user's; `None` if they are the same."""
        ...

    @property
    def direct(self) -> bool:
        """Whether one application of a factor solves to rounding."""
        ...

    def factor(self, weights: Array) -> Preconditioner | None:
        """Factorise for these weights, in the order of `pattern`; `None` if a pivot vanishes.

        The largest weight is about one; those that are not zero connect the graph.
        """
        ...


def _as_index(values: ArrayLike, name: str) -> Index32:
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{name} has shape {array.shape} and type {array.dtype}; give a list of node numbers."
        )
    return np.ascontiguousarray(array, dtype=np.int32)
