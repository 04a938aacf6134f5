"""Many distances at once: every unordered pair once, on all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from thalweg._types import Array, Index

if TYPE_CHECKING:
    from thalweg.geometry.transport import Progress, TransportGeometry


class Neighbors(NamedTuple):
    """Row `i` holds the nearest other distributions of `i`, and their distances."""

    indices: Index
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
    others = rows if columns is None else columns
    out = np.zeros((len(rows), len(others)))
    if columns is None:
        first, second = np.triu_indices(len(rows), k=1)
    else:
        first, second = np.indices(out.shape).reshape(2, -1)
    total = first.size
    batches = [b for b in np.array_split(np.arange(total), max(1, min(total, 64))) if b.size]

    def work(batch: Index) -> list[float]:
        return [
            geometry.distance(rows[first[i]], others[second[i]], tolerance=tolerance, throw=False)
            for i in batch
        ]

    if jobs == 1 or total < 4:
        results = map(work, batches)
    else:
        results = Parallel(n_jobs=jobs, return_as="generator")(delayed(work)(b) for b in batches)
    done = 0
    for batch, values in zip(batches, results, strict=True):
        out[first[batch], second[batch]] = values
        done += len(batch)
        if progress is not None:
            progress(done, total)
    return out + out.T if columns is None else out


def nearest(distances: Array, k: int) -> Neighbors:
    """The `k` nearest others of each row of a square matrix of distances."""
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return Neighbors(order, np.take_along_axis(distances, order, axis=1))
