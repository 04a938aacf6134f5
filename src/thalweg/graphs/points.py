"""Graphs of points: symmetrised nearest neighbours with self-tuning Gaussian weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import cKDTree

from thalweg import _checks
from thalweg._types import Array, Index
from thalweg.errors import InputError
from thalweg.graphs.topology import components

_TREE_DIMENSION = 12
"""Dimension up to which a k-d tree finds neighbours; brute force above."""
_LEAST_WEIGHT = 1e-3
"""Least weight of an edge."""
_MOST_NEIGHBORS = 64
"""Largest number of neighbours searched to join components."""


def neighbor_weights(points: ArrayLike, n_neighbors: int = 15) -> sparse.csr_array:
    """Symmetric weights `exp(-d(x, y)^2 / (s_x s_y))` between nearest neighbours.

    `x` and `y` are joined where either is among the `n_neighbors` nearest of the other; `s_x` is
    the distance from `x` to its last neighbour, so dense and thin regions are treated alike.
    Points that coincide get the weight of distance zero, one; where more than `n_neighbors`
    coincide, `s_x` is the smallest positive distance found. Components are joined by the edges
    of the Euclidean minimum spanning tree between them. No weight is below 1e-3, so that neither
    an outlier nor a far component is cut off by underflow.

    Neighbours are found with a k-d tree up to 12 dimensions, by blocked brute force above.

    Parameters
    ----------
    points : array
        One row per point.
    n_neighbors : int
        Number of nearest neighbours of each point.

    >>> neighbor_weights([[0.0], [1.0], [3.0]], n_neighbors=1).toarray().round(4)
    array([[0.    , 0.3679, 0.    ],
           [0.3679, 0.    , 0.1353],
           [0.    , 0.1353, 0.    ]])
    """
    x = _checks.as_array(points, "points")
    if x.ndim != 2 or x.shape[1] == 0:
        raise InputError(
            f"points have shape {x.shape}; give one row per point, shape (points, dimension)."
        )
    n = x.shape[0]
    if not 1 <= _checks.whole(n_neighbors, "n_neighbors") < n:
        raise InputError(
            f"n_neighbors is {n_neighbors}, but there are {n} points; give a number from 1 to "
            f"{n - 1}."
        )
    distance, index = _nearest(x, int(n_neighbors))
    scale = distance[:, -1].copy()
    if not scale.all():
        positive = distance[distance > 0]
        scale[scale == 0] = positive.min() if positive.size else 1.0
    row = np.repeat(np.arange(n), n_neighbors)
    a, b = _bridges(x, *components(n, row, index.ravel()))
    row, column = np.concatenate([row, a]), np.concatenate([index.ravel(), b])
    squared = np.concatenate([distance.ravel() ** 2, ((x[a] - x[b]) ** 2).sum(axis=1)])
    value = np.maximum(np.exp(-squared / (scale[row] * scale[column])), _LEAST_WEIGHT)
    w = sparse.csr_array((value, (row, column)), shape=(n, n))
    return sparse.csr_array(w.maximum(w.T))


class NeighborSearch:
    """Search for the nearest neighbours of query points among fixed points."""

    def __init__(self, points: Array) -> None:
        self._points = points
        self._tree = cKDTree(points) if points.shape[1] <= _TREE_DIMENSION else None

    def query(self, x: Array, k: int) -> tuple[Array, Index]:
        """Distances and indices, shape (queries, k), nearest first."""
        if self._tree is not None:
            distance, index = self._tree.query(x, k=np.arange(1, k + 1), workers=-1)
            return distance, index.astype(np.int64)
        from sklearn.neighbors import NearestNeighbors

        search = NearestNeighbors(algorithm="brute").fit(self._points)
        index = search.kneighbors(x, n_neighbors=k, return_distance=False).astype(np.int64)
        # Brute force uses |x|^2 - 2 x y + |y|^2, which cancels: compute the distances again.
        distance = np.empty(index.shape)
        for j in range(k):
            distance[:, j] = np.linalg.norm(self._points[index[:, j]] - x, axis=1)
        order = np.argsort(distance, axis=1, kind="stable")
        return np.take_along_axis(distance, order, 1), np.take_along_axis(index, order, 1)


def _nearest(x: Array, k: int) -> tuple[Array, Index]:
    """The `k` nearest other points of each point."""
    distance, index = NeighborSearch(x).query(x, k + 1)
    # The point itself comes first unless others coincide with it: drop it, or else the last one.
    keep = index != np.arange(x.shape[0])[:, None]
    keep[keep.all(axis=1), -1] = False
    shape = (x.shape[0], k)
    return distance[keep].reshape(shape), index[keep].reshape(shape)


def _bridges(x: Array, count: int, label: NDArray[np.int32]) -> tuple[Index, Index]:
    """Edges of the Euclidean minimum spanning tree that join the components (Boruvka's rounds).

    A round joins every component but the largest to the nearest point outside it. Small components
    share one search over all points; a component that holds all nearest neighbours of its points
    gets a search of its own.
    """
    edges = [np.zeros((2, 0), dtype=np.int64)]
    everything = NeighborSearch(x)
    while count > 1:
        sizes = np.bincount(label, minlength=count)
        inside = np.flatnonzero(label != np.argmax(sizes))
        k = min(_MOST_NEIGHBORS, x.shape[0], int(np.partition(sizes, -2)[-2]) + 1)
        distance, index = everything.query(x[inside], k)
        outside = label[index] != label[inside][:, None]
        found = outside.any(axis=1)
        first = np.argmax(outside, axis=1)
        reach = np.where(found, distance[np.arange(inside.size), first], np.inf)
        # A point that found only its own component gives no more than the radius it searched.
        blind = np.where(found, np.inf, distance[:, -1])
        joined: list[tuple[int, int]] = []
        order = np.argsort(label[inside], kind="stable")
        starts = np.flatnonzero(np.diff(label[inside][order], prepend=-1))
        for members in np.split(order, starts[1:]):
            best = members[np.argmin(reach[members])]
            if reach[best] <= blind[members].min():
                joined.append((int(inside[best]), int(index[best, first[best]])))
            else:
                own = inside[members]
                others = np.flatnonzero(label != label[own[0]])
                far, nearest = NeighborSearch(x[others]).query(x[own], 1)
                closest = int(np.argmin(far[:, 0]))
                joined.append((int(own[closest]), int(others[nearest[closest, 0]])))
        ends = np.unique(np.sort(joined, axis=1).T, axis=1)
        edges.append(ends)
        count, renamed = components(count, label[ends[0]], label[ends[1]])
        label = renamed[label]
    source, target = np.concatenate(edges, axis=1)
    return source, target
