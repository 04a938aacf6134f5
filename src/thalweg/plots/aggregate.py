"""A graph too large to draw, drawn as patches: neighbouring states merged into one marker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg.kernel import Edges, MarkovKernel
from thalweg.plots.layout import positions, state_texts

MOST_MARKERS = 4000
"""Largest number of markers: a graph with more states is drawn as patches."""


@dataclass(frozen=True, eq=False)
class View:
    """A kernel small enough to draw, its positions, and the marker of each state."""

    kernel: MarkovKernel
    xy: Array
    label: NDArray[np.intp] | None
    """`None` if every state has its own marker."""
    whole: MarkovKernel

    @cached_property
    def names(self) -> list[str]:
        """Names of the states of the whole kernel."""
        return state_texts(self.whole)

    def mean(self, values: Array) -> Array:
        """A quantity per state, averaged over each marker with weight `pi`."""
        if self.label is None:
            return values
        pi, n = self.whole.stationary, self.kernel.n_states
        total = np.bincount(self.label, pi * values, n)
        return np.asarray(total / np.bincount(self.label, pi, n))

    def total(self, p: Array) -> Array:
        """A probability per state, summed over each marker; one distribution, or one per row."""
        if self.label is None:
            return p
        n = self.kernel.n_states
        rows = np.atleast_2d(p)
        summed = np.vstack([np.bincount(self.label, row, n) for row in rows])
        return np.asarray(summed if p.ndim == 2 else summed[0])

    def densities(self, p: Array) -> tuple[Array, float, float]:
        """`log10` of the shares relative to rest, one row per time, and the range to colour."""
        shares = np.maximum(self.total(p) / self.kernel.stationary, 1e-12)
        logs = np.log10(shares)
        high = float(np.quantile(logs.max(axis=1), 0.9))
        return logs, high - 3.0, high


def view(kernel: MarkovKernel, most: int = MOST_MARKERS) -> View:
    """The kernel as it is drawn: whole up to `most` states, beyond that merged on a square grid."""
    xy = positions(kernel)
    if kernel.n_states <= most:
        return View(kernel, xy, None, kernel)
    side = int(np.sqrt(most))
    cell = np.minimum((xy * side).astype(np.int64), side - 1)
    found, label, size = np.unique(
        cell[:, 0] * side + cell[:, 1], return_inverse=True, return_counts=True
    )
    n, count = kernel.n_states, found.size
    gather = sparse.csr_array((np.ones(n), (label, np.arange(n))), shape=(count, n))
    flow = sparse.triu(gather @ kernel.flow_matrix @ gather.T, k=1).tocoo()
    stationary = gather @ kernel.stationary
    middle = np.column_stack([gather @ (kernel.stationary * axis) for axis in xy.T])
    middle /= stationary[:, None]
    edges = Edges(flow.row.astype(np.int32), flow.col.astype(np.int32), flow.data)
    names = tuple(f"patch {k} ({s} state{'s' if s > 1 else ''})" for k, s in enumerate(size))
    small = MarkovKernel(stationary, edges, coordinates=middle, names=names)
    return View(small, middle, label, kernel)
