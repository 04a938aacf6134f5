"""What plotly, matplotlib and the report share: positions, which states to draw, their curves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import diags_array
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree

from thalweg._sketch import PALETTE, busiest
from thalweg._types import Array, Index, Index32
from thalweg.kernel import MarkovKernel

__all__ = [
    "ARROW",
    "MOST_EDGES",
    "PALETTE",
    "busiest",
    "cut",
    "error_bars",
    "extremes",
    "fitted_series",
    "gridded",
    "positions",
    "state_texts",
    "strongest_edges",
    "strongest_fluxes",
]

ARROW = PALETTE[1]
"""Colour of arrows."""
MOST_EDGES = 20_000
"""Largest number of edges drawn by plotly and matplotlib: more make pictures slow."""
_MOST_ARROWS = 60
"""Largest number of arrows: more would hide the colours."""


def extremes(values: Array, most: int) -> Index:
    """All places in rising order of `values`; the lowest and the highest if there are many.

    >>> extremes(np.array([3.0, 1.0, 2.0, 9.0]), 2)
    array([1, 3])
    """
    order = np.argsort(values)
    if order.size > most:
        order = np.concatenate([order[: most // 2], order[-(most // 2) :]])
    return order


def error_bars(stderr: ArrayLike) -> Array:
    """Two standard errors; zero where the data do not determine the state.

    >>> error_bars([0.5, np.inf])
    array([1., 0.])
    """
    errors = np.asarray(stderr, dtype=np.float64)
    return np.where(np.isfinite(errors), 2 * errors, 0.0)


def fitted_series(
    times: ArrayLike,
    observed: ArrayLike,
    fitted: ArrayLike,
    sizes: ArrayLike | None,
    fitted_times: ArrayLike | None,
    most: int,
) -> Iterator[tuple[int, tuple[Array, Array, Array | None], tuple[Array, Array]]]:
    """Number, observed points with bars, and fitted curve of each state that changed most.

    The bars are two standard errors of counting; `None` without the `sizes` of the snapshots.
    """
    t = np.asarray(times, dtype=np.float64)
    seen, curve = np.asarray(observed, dtype=np.float64), np.asarray(fitted, dtype=np.float64)
    fine = t if fitted_times is None else np.asarray(fitted_times, dtype=np.float64)
    for x in busiest(seen, most):
        bars = None
        if sizes is not None:
            share = np.clip(np.interp(t, fine, curve[:, x]), 0, 1)
            bars = 2 * np.sqrt(share * (1 - share) / np.asarray(sizes, dtype=np.float64))
        yield x, (t, seen[:, x], bars), (fine, curve[:, x])


def state_texts(kernel: MarkovKernel) -> list[str]:
    """Labels of the states: their names as text, or their numbers."""
    return [str(x) for x in kernel.names or (f"state {x}" for x in range(kernel.n_states))]


def cut(text: str, most: int) -> str:
    """`text` with at most so many characters.

    >>> cut("Oberammergau", 6)
    'Obera…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def strongest_edges(kernel: MarkovKernel, most: int) -> tuple[Index32, Index32]:
    """The two ends of the `most` edges of largest conductance."""
    source, target, c = kernel.edges
    if source.size > most:
        keep = np.argpartition(-c, most)[:most]
        source, target = source[keep], target[keep]
    return source, target


def strongest_fluxes(kernel: MarkovKernel, fluxes: Array) -> Iterator[tuple[int, int, float]]:
    """Start, end and size of the strongest fluxes; the first has size 1."""
    size = np.abs(fluxes)
    largest = size.max(initial=0.0)
    for e in np.argsort(-size)[:_MOST_ARROWS]:
        if size[e] <= 0.02 * largest:
            return
        x, y = int(kernel.edges.source[e]), int(kernel.edges.target[e])
        start, end = (x, y) if fluxes[e] > 0 else (y, x)
        yield start, end, float(size[e] / largest)


def positions(kernel: MarkovKernel) -> Array:
    """Two coordinates per state, in the unit square with the shape kept.

    The kernel's own coordinates where it has them (the first two principal directions if there are
    more); else a spring layout up to 500 states, and beyond that the slowest two modes of the walk.
    """
    if kernel.coordinates is not None:
        xy = kernel.coordinates
        if xy.shape[1] == 1:
            xy = np.column_stack([xy, np.zeros(len(xy))])
        elif xy.shape[1] > 2:
            centred = xy - xy.mean(axis=0)
            _, _, axes = np.linalg.svd(centred, full_matrices=False)
            xy = centred @ axes[:2].T
    elif kernel.n_states <= 500:
        xy = _springs(kernel)
    else:
        xy = _slow_modes(kernel)
    span = np.ptp(xy, axis=0).max()
    return np.asarray((xy - xy.min(axis=0)) / (span if span > 0 else 1.0))


def _springs(kernel: MarkovKernel) -> Array:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(kernel.n_states))
    graph.add_edges_from(zip(kernel.edges.source, kernel.edges.target, strict=True))
    placed = nx.spring_layout(graph, seed=0, iterations=200, method="force")
    return np.array([placed[x] for x in range(kernel.n_states)])


def _slow_modes(kernel: MarkovKernel) -> Array:
    root = np.sqrt(kernel.stationary)
    symmetric = diags_array(1 / root) @ kernel.flow_matrix @ diags_array(1 / root)
    start = np.random.default_rng(0).standard_normal(kernel.n_states)
    values, vectors = eigsh(symmetric, k=3, which="LA", v0=start, tol=1e-4)
    order = np.argsort(values)[::-1][1:3]
    return np.asarray(vectors[:, order] / root[:, None])


def gridded(positions: ArrayLike, velocities: ArrayLike, n_cells: int = 22) -> tuple[Array, Array]:
    """Velocities averaged over the cells of a grid: where their arrows begin, and the arrows.

    Most arrows are up to one cell long, none is longer than 1.6. `n_cells`: along the longer side.
    """
    xy, v = (np.asarray(a, dtype=np.float64)[:, :2] for a in (positions, velocities))
    low, span = xy.min(axis=0), max(float(np.ptp(xy, axis=0).max()), 1e-12)
    step = span / n_cells
    cell = np.floor((xy - low) / step).astype(np.int64)
    keys, place, counts = np.unique(cell, axis=0, return_inverse=True, return_counts=True)
    place = place.ravel()
    mean = np.stack([np.bincount(place, v[:, k]) for k in range(2)], axis=1) / counts[:, None]
    centre = np.stack([np.bincount(place, xy[:, k]) for k in range(2)], axis=1) / counts[:, None]
    # A lone point says little where neighbouring cells hold many.
    spacing = np.median(cKDTree(xy).query(xy, k=min(2, len(xy)))[0][:, -1]) if len(xy) > 1 else 1.0
    keep = (counts >= 2) | (spacing > 0.5 * step)
    keep = keep if keep.any() else np.ones(len(keys), dtype=np.bool_)
    arrows, lengths = mean[keep], np.hypot(*mean[keep].T)
    # A quantile, so that one fast cell does not shrink all other arrows to dots.
    usual = max(float(np.quantile(lengths, 0.8)), 1e-3 * float(lengths.max()), 1e-300)
    scale = step * np.minimum(1.6 / np.maximum(lengths, 1e-300), 1 / usual)
    return centre[keep], arrows * scale[:, None]
