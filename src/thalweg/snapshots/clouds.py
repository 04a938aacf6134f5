"""`PointSnapshots`: clouds of points at several times, and the states that partition them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from thalweg import _checks
from thalweg._types import Array, Index
from thalweg.errors import InputError
from thalweg.graphs.points import NeighborSearch
from thalweg.kernel import MarkovKernel
from thalweg.snapshots.snapshots import Snapshots
from thalweg.snapshots.times import read_times

StateChoice = Literal["kmeans", "farthest", "points"]

_MOST_STATES = 100
"""Largest default number of states."""
_FEWEST_STATES = 10
"""Smallest default number of states."""
_MOST_NEIGHBORS = 15
"""Largest default number of neighbours."""
_KMEANS_POINTS = 50_000
"""Number of points above which k-means runs on batches."""
_JITTER_NEIGHBORS = 5
_ELSEWHERE = 1e-6
"""Weight of snapshots that are not neighbours in time."""


@dataclass(frozen=True, eq=False)
class WeightedPoints:
    """A distribution over points: positions and weights that sum to one."""

    points: Array
    weights: Array

    @property
    def mean(self) -> Array:
        return np.asarray(self.weights @ self.points)

    def pruned(self, share: float = 1e-5) -> WeightedPoints:
        """The distribution without its lightest atoms, which together hold less than `share`.

        >>> WeightedPoints(np.arange(3.0)[:, None], np.array([0.5, 1e-9, 0.5])).pruned().weights
        array([0.5, 0.5])
        """
        order = np.argsort(self.weights)
        light = np.searchsorted(np.cumsum(self.weights[order]), share * self.weights.sum())
        keep = np.sort(order[light:])
        return WeightedPoints(self.points[keep], self.weights[keep] / self.weights[keep].sum())

    def resample(self, n: int, *, rng: np.random.Generator) -> Array:
        """`n` of the points, by systematic resampling, with no more randomness than rounding needs.

        Neighbours follow each other, so that every region keeps its share.
        """
        order = cKDTree(self.points).indices
        edges = np.cumsum(self.weights[order])
        ticks = (np.arange(n) + rng.random()) / n * edges[-1]
        chosen = np.minimum(np.searchsorted(edges, ticks), self.weights.size - 1)
        return np.asarray(self.points[order[chosen]])

    def sample(self, n: int, *, rng: np.random.Generator) -> Array:
        """`n` new points, each a given point moved part of the way to a near neighbour."""
        keep = np.flatnonzero(self.weights > 1e-3 * self.weights.max() / self.weights.size)
        among = self.points[keep]
        w = self.weights[keep] / self.weights[keep].sum()
        chosen = rng.choice(keep.size, size=n, p=w)
        k = min(_JITTER_NEIGHBORS, keep.size - 1)
        if k == 0:
            return among[chosen]
        near = np.atleast_2d(cKDTree(among).query(among[chosen], k=np.arange(2, k + 2))[1])
        other = among[near[np.arange(n), rng.integers(0, k, size=n)]]
        # Half of the way at most: the new point stays nearer to its own parent.
        return np.asarray(among[chosen] + 0.5 * rng.random((n, 1)) * (other - among[chosen]))


@dataclass(frozen=True, eq=False, repr=False)
class PointSnapshots(Snapshots):
    """Snapshots of individuals with coordinates: counts per state, points, labels and kernel.

    Built by `Snapshots.from_points`. Every method of fitting accepts it like `Snapshots`;
    `to_points` turns a distribution over states back into points.

    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(k, 1.0, size=(60, 2)) for k in range(3)]
    >>> seen = Snapshots.from_points([0, 1, 2], clouds, n_states=12, rng=rng)
    >>> seen.n_times, seen.n_states, seen.kernel.n_states
    (3, 12, 12)
    >>> cloud = seen.to_points(seen.frequencies[1], time=1.0)
    >>> bool(abs(cloud.mean - clouds[1].mean(axis=0)).max() < 1e-4)
    True
    """

    kernel: MarkovKernel = field(kw_only=True)
    points: tuple[Array, ...] = field(kw_only=True)
    labels: tuple[Index, ...] = field(kw_only=True)

    @property
    def dimension(self) -> int:
        return int(self.points[0].shape[1])

    @cached_property
    def pooled(self) -> Array:
        """All points, in order of time."""
        return np.vstack(self.points)

    def select(self, indices: ArrayLike | slice) -> PointSnapshots:
        """The snapshots at these positions, on the same states.

        The states still depend on the points left out: for leave-one-time-out, build them again.
        """
        kept = super().select(indices)
        assert isinstance(kept, PointSnapshots)
        rows = np.searchsorted(self.times, kept.times)
        points, labels = zip(*((self.points[k], self.labels[k]) for k in rows), strict=True)
        return replace(kept, points=points, labels=labels)

    def to_points(self, p: ArrayLike, *, time: float | None = None) -> WeightedPoints:
        """A distribution over states as weights of the observed points.

        Each state's mass is distributed over the points observed in it, first those of the
        snapshots around `time` (linear in time; without `time`, all snapshots equally). Points are
        not moved to centres: the frequencies of a snapshot at its own time give back that
        snapshot. A state without points gives its mass to the nearest state.
        """
        mass = _checks.as_probability(p, self.n_states)
        each = np.full(self.n_times, 1.0) if time is None else time_weights(self.times, time)
        labels = np.concatenate(self.labels)
        base = np.concatenate(
            [np.full(x.shape[0], w / x.shape[0]) for x, w in zip(self.points, each, strict=True)]
        )
        total = np.bincount(labels, weights=base, minlength=self.n_states)
        empty = np.flatnonzero((total == 0) & (mass > 0))
        if empty.size and self.kernel.coordinates is not None:
            full = np.flatnonzero(total > 0)
            x = self.kernel.coordinates
            heirs = full[cKDTree(x[full]).query(x[empty])[1]]
            mass = mass.copy()
            np.add.at(mass, heirs, mass[empty])
            mass[empty] = 0.0
        weights = base * (mass / np.where(total > 0, total, 1.0))[labels]
        return WeightedPoints(self.pooled, weights / weights.sum())

    def sample(
        self, p: ArrayLike, n: int, *, time: float | None = None, rng: np.random.Generator
    ) -> Array:
        """`n` new points of a distribution over states, spread as the observed points are."""
        return self.to_points(p, time=time).sample(n, rng=rng)


def time_weights(times: Array, time: float) -> Array:
    """The weight of each snapshot at `time`: linear between its neighbours, small elsewhere."""
    weights = np.full(times.size, _ELSEWHERE)
    after = int(np.searchsorted(times, time))
    if after == 0 or after == times.size:
        weights[0 if after == 0 else -1] = 1.0
        return weights
    share = (time - times[after - 1]) / (times[after] - times[after - 1])
    weights[after - 1] += 1 - share
    weights[after] += share
    return weights


def build(
    times: ArrayLike,
    clouds: Iterable[ArrayLike],
    *,
    kernel: MarkovKernel | None = None,
    n_states: int | None = None,
    n_neighbors: int | None = None,
    states: StateChoice = "kmeans",
    rng: np.random.Generator | None = None,
) -> PointSnapshots:
    """Build the result of `Snapshots.from_points`."""
    rng = np.random.default_rng(0) if rng is None else _checks.generator(rng)
    t, scale = read_times(times)
    t = _checks.as_times(t)
    points = as_clouds(clouds, t)
    if kernel is None:
        centres = _centres(points, states, n_states, rng)
        k = default_neighbors(centres.shape[0]) if n_neighbors is None else n_neighbors
        kernel = MarkovKernel.from_points(centres, n_neighbors=k)
    if kernel.coordinates is None:
        raise InputError(
            "the kernel has no coordinates to assign points to; build it with "
            "MarkovKernel.from_points, or give it some with with_labels(coordinates=...)."
        )
    if kernel.coordinates.shape[1] != points[0].shape[1]:
        raise InputError(
            f"points[0] has shape {points[0].shape}, but the states lie in "
            f"{kernel.coordinates.shape[1]} dimensions; give one row per point."
        )
    labels = assign(kernel.coordinates, points)
    base = Snapshots.from_samples(t, labels, kernel.n_states, names=kernel.names)
    return PointSnapshots(
        base.times, base.counts, names=base.names, scale=scale, kernel=kernel, points=points,
        labels=labels,
    )  # fmt: skip


def default_states(n_points: int) -> int:
    """The square root of the number of points, between 10 and 100."""
    return int(min(np.clip(round(np.sqrt(n_points)), _FEWEST_STATES, _MOST_STATES), n_points))


def default_neighbors(n_states: int) -> int:
    """`1.5 sqrt(N)`, at most 15: edges are about as long whatever the number of states."""
    return int(min(np.clip(round(1.5 * np.sqrt(n_states)), 4, _MOST_NEIGHBORS), n_states - 1))


def assign(centres: Array, points: Iterable[Array]) -> tuple[Index, ...]:
    """The nearest centre of each point."""
    search = NeighborSearch(centres)
    return tuple(search.query(x, 1)[1][:, 0] for x in points)


def as_clouds(clouds: Iterable[ArrayLike], times: Array) -> tuple[Array, ...]:
    """One checked array of points per time."""
    points = tuple(_checks.as_array(cloud, f"points[{k}]") for k, cloud in enumerate(clouds))
    if len(points) != times.size:
        raise InputError(f"{len(points)} clouds for {times.size} times; give one cloud per time.")
    for k, x in enumerate(points):
        if x.ndim != 2 or x.shape[1] == 0 or x.shape[1] != points[0].shape[-1]:
            raise InputError(
                f"points[{k}] has shape {x.shape}; give one row per individual and the same "
                "number of coordinates at every time."
            )
        if x.shape[0] == 0:
            raise InputError(f"the snapshot at time {times[k]:g} (row {k}) is empty; drop it.")
    return points


def _centres(
    points: tuple[Array, ...], states: StateChoice, n_states: int | None, rng: np.random.Generator
) -> Array:
    pool = np.vstack(points)
    distinct = np.unique(pool, axis=0)
    if states == "points":
        return distinct
    wanted = default_states(pool.shape[0]) if n_states is None else int(n_states)
    if not 2 <= wanted <= distinct.shape[0]:
        raise InputError(
            f"n_states is {wanted}, but there are {distinct.shape[0]} different points; give a "
            f"number from 2 to {distinct.shape[0]}."
        )
    if states == "farthest":
        return _farthest(pool, wanted, rng)
    if states != "kmeans":
        raise InputError(f"states is {states!r}; choose 'kmeans', 'farthest' or 'points'.")
    from sklearn.cluster import KMeans, MiniBatchKMeans

    # Every snapshot has the same weight, whatever its number of individuals.
    weight = np.concatenate([np.full(x.shape[0], 1.0 / x.shape[0]) for x in points])
    make = KMeans if pool.shape[0] <= _KMEANS_POINTS else MiniBatchKMeans
    model = make(wanted, n_init=1, random_state=int(rng.integers(2**31)))
    model.fit(pool, sample_weight=weight * pool.shape[0] / weight.sum())
    return np.unique(np.asarray(model.cluster_centers_, dtype=np.float64), axis=0)


def _farthest(pool: Array, count: int, rng: np.random.Generator) -> Array:
    """Points, each the farthest from those before it."""
    chosen = [int(rng.integers(pool.shape[0]))]
    reach = np.linalg.norm(pool - pool[chosen[0]], axis=1)
    for _ in range(count - 1):
        chosen.append(int(np.argmax(reach)))
        reach = np.minimum(reach, np.linalg.norm(pool - pool[chosen[-1]], axis=1))
    return pool[chosen]
