"""Trees: leaf-to-root elimination, exact, two passes over the nodes.

On a tree the flux through an edge is fixed by `b` alone: it is the sum of `b` over the subtree
behind it. One pass from the leaves adds these up, one from the root integrates `flux / weight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from thalweg._compile import njit
from thalweg._types import Array, Index32
from thalweg.laplacian.pattern import Pattern, Relabelling


@dataclass(frozen=True, eq=False)
class TreeAnalysis:
    """Nodes numbered from the root outwards, so that edge `i - 1` joins `i` to `parent[i] < i`."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    relabelling: Relabelling
    parent: Index32
    edge: Index32

    @classmethod
    def of(cls, pattern: Pattern) -> TreeAnalysis:
        nodes, _ = breadth_first_order(pattern.matrix, 0, directed=False)
        renamed, relabelling = pattern.relabelled(np.asarray(nodes, dtype=np.int32))
        n = pattern.n_nodes
        parent, edge = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32)
        parent[renamed.target] = renamed.source
        edge[renamed.target] = np.arange(n - 1, dtype=np.int32)
        return cls(renamed, relabelling, parent, edge)

    def factor(self, weights: Array) -> TreeFactor:
        resistance = np.zeros(self.pattern.n_nodes)
        resistance[1:] = 1.0 / weights[self.edge[1:]]
        return TreeFactor(self.parent, resistance)


@dataclass(frozen=True, eq=False)
class TreeFactor:
    parent: Index32
    resistance: Array

    def apply(self, r: Array, out: Array) -> None:
        _integrate(self.parent, self.resistance, r, out)


@njit(cache=True)
def _integrate(parent: Index32, resistance: Array, r: Array, out: Array) -> None:
    for v in range(r.size):
        out[v] = r[v]
    for v in range(r.size - 1, 0, -1):
        out[parent[v]] += out[v]
    out[0] = 0.0
    for v in range(1, r.size):
        out[v] = out[parent[v]] + resistance[v] * out[v]
