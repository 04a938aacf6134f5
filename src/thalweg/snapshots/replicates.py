"""Counts per replicate, beside the pooled counts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.errors import InputError


@dataclass(frozen=True, eq=False)
class Replicates:
    """One row per replicate and time; a replicate seen at several times keeps its label.

    Parameters
    ----------
    counts : array
        Individuals per state, shape (rows, N).
    times : array
        Position of each row's time among the snapshots' times, shape (rows,).
    labels : array
        Number of each row's replicate, shape (rows,).
    """

    counts: Array
    times: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of replicates."""
        return int(np.unique(self.labels).size)

    def select(self, rows: NDArray[np.int64]) -> Replicates:
        """The replicates of the snapshots at these positions, renumbered."""
        keep = np.isin(self.times, rows)
        place = np.searchsorted(rows, self.times[keep])
        return Replicates(self.counts[keep], place, self.labels[keep])

    def resampled(self, rng: np.random.Generator) -> Replicates:
        """A bootstrap replicate: whole replicates, drawn with replacement at each time.

        If replicates are seen at several times, the same ones are drawn at all of them.
        """
        labels = np.unique(self.labels)
        at_all = all(
            np.array_equal(np.unique(self.labels[self.times == k]), labels)
            for k in np.unique(self.times)
        )
        same = rng.choice(labels.size, labels.size)
        chosen, numbers = [], []
        for k in np.unique(self.times):
            rows = np.flatnonzero(self.times == k)
            rows = rows[np.argsort(self.labels[rows])]
            drawn = same if at_all else rng.integers(rows.size, size=rows.size)
            chosen.append(rows[drawn])
            numbers.append(np.arange(rows.size) + (0 if at_all else labels.size * k))
        index = np.concatenate(chosen)
        return Replicates(self.counts[index], self.times[index], np.concatenate(numbers))

    def thinned(self, fraction: float, rng: np.random.Generator) -> Replicates:
        """Each individual kept independently; rows without any are left out."""
        counts = rng.binomial(self.counts.round().astype(np.int64), fraction).astype(np.float64)
        kept = counts.sum(axis=1) > 0
        return Replicates(counts[kept], self.times[kept], self.labels[kept])

    def pooled(self, n_times: int) -> Array:
        """The counts of all replicates together, one row per time."""
        total = np.zeros((n_times, self.counts.shape[1]))
        np.add.at(total, self.times, self.counts)
        return total


def gather(
    times: Array, counts: Array, names: Sequence[Hashable]
) -> tuple[Array, Array, Replicates]:
    """Distinct times, pooled counts, and the replicates, from one row per replicate and time."""
    if len(names) != times.size:
        raise InputError(f"{len(names)} replicates for {times.size} rows; name one for each row.")
    lookup: dict[Hashable, int] = {}
    labels = np.array([lookup.setdefault(name, len(lookup)) for name in names], dtype=np.int64)
    when, place = np.unique(times, return_inverse=True)
    keys, row = np.unique(np.stack([place, labels], axis=1), axis=0, return_inverse=True)
    table = np.zeros((keys.shape[0], counts.shape[1]))
    np.add.at(table, row, counts)
    kept = table.sum(axis=1) > 0
    parts = Replicates(table[kept], keys[kept, 0], keys[kept, 1])
    return when, parts.pooled(when.size), parts
