"""Many distances at once: every unordered pair once, on all cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from thalweg._types import Array

if TYPE_CHECKING:
    from thalweg.geometry.transport import TransportGeometry


Progress = Callable[[int, int], None]


class Neighbors(NamedTuple):
    """Row `i` holds the nearest other distributions of `i`, and their distances."""

    indices: NDArray[np.int64]
    distances: Array


def distance_matrix(
    geometry: TransportGeometry,
    rows: Array,
    columns: Array | None,
    tolerance: float,
    jobs: int,
    progress: Progress | None,
) -> Array:
    """All distances between rows, or between rows and columns."""
    if columns is None:
        first, second = np.triu_indices(len(rows), k=1)
        values = _pairs(geometry, rows, rows, first, second, tolerance, jobs, progress)
        out = np.zeros((len(rows), len(rows)))
        out[first, second] = values
        return out + out.T
    first, second = np.indices((len(rows), len(columns))).reshape(2, -1)
    values = _pairs(geometry, rows, columns, first, second, tolerance, jobs, progress)
    return values.reshape(len(rows), len(columns))


def nearest(
    geometry: TransportGeometry,
    rows: Array,
    k: int,
    tolerance: float,
    jobs: int,
    progress: Progress | None,
) -> Neighbors:
    """The `k` nearest others of each row."""
    distances = distance_matrix(geometry, rows, None, tolerance, jobs, progress)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return Neighbors(order, np.take_along_axis(distances, order, axis=1))


def _pairs(
    geometry: TransportGeometry,
    rows: Array,
    columns: Array,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    tolerance: float,
    jobs: int,
    progress: Progress | None,
) -> Array:
    total = int(first.size)
    batches = [b for b in np.array_split(np.arange(total), max(1, min(total, 64))) if b.size]

    def work(batch: NDArray[np.int64]) -> list[float]:
        return [
            geometry.distance(rows[first[i]], columns[second[i]], tolerance=tolerance, throw=False)
            for i in batch
        ]

    out = np.empty(total)
    done = 0
    if jobs == 1 or total < 4:
        results = map(work, batches)
    else:
        results = Parallel(n_jobs=jobs, return_as="generator")(delayed(work)(b) for b in batches)
    for batch, values in zip(batches, results, strict=True):
        out[batch] = values
        done += len(batch)
        if progress is not None:
            progress(done, total)
    return out
