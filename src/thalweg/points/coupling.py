"""Exact optimal transport between clouds of points (POT): distances and couplings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from thalweg._types import Array, Index
from thalweg.errors import MissingDependencyError
from thalweg.graphs.points import NeighborSearch
from thalweg.snapshots import WeightedPoints

_ITERATIONS = 10_000_000
"""Largest number of iterations of the network simplex."""
_FAR = 3.0
"""Default cost of a death and a birth, in mean costs of the balanced plan."""


class Pairs(NamedTuple):
    """A plan with births and deaths: pairs, deaths, births, and their masses."""

    first: Index
    second: Index
    mass: Array
    dying: Index
    dying_mass: Array
    born: Index
    born_mass: Array


def _pot() -> Any:
    try:
        import ot
    except ImportError:
        raise MissingDependencyError(
            "exact optimal transport between points needs POT; pip install 'thalweg[points]'."
        ) from None
    return ot


def wasserstein1(
    first: WeightedPoints,
    second: WeightedPoints,
    *,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> float:
    """The exact Wasserstein-1 distance (Euclidean cost) between two weighted clouds.

    With `most`, larger clouds are first thinned to that many points by systematic resampling,
    which needs `rng` and adds a little to the distance.

    >>> a = WeightedPoints(np.array([[0.0], [1.0]]), np.array([0.5, 0.5]))
    >>> b = WeightedPoints(np.array([[2.0]]), np.array([1.0]))
    >>> wasserstein1(a, b)
    1.5
    """
    ot = _pot()
    clouds = []
    for cloud in (first, second):
        if most is not None and cloud.weights.size > most:
            rng = np.random.default_rng(0) if rng is None else rng
            points = cloud.resample(most, rng=rng)
            cloud = WeightedPoints(points, np.full(most, 1 / most))
        keep = cloud.weights > 0
        clouds.append((cloud.points[keep], cloud.weights[keep] / cloud.weights[keep].sum()))
    (x, a), (y, b) = clouds
    cost = ot.dist(x, y, metric="euclidean")
    return float(ot.emd2(a, b, cost, numItermax=_ITERATIONS))


def mean_error(first: WeightedPoints, second: WeightedPoints) -> float:
    """The distance of the means, a lower bound on every Wasserstein distance."""
    return float(np.linalg.norm(first.mean - second.mean))


def coupling(
    x: Array, y: Array, weights: tuple[Array, Array] | None = None
) -> tuple[Index, Index, Array]:
    """Pairs `(i, j)` and their masses in an optimal plan (squared Euclidean cost)."""
    ot = _pot()
    a, b = weights or (_even(x), _even(y))
    plan = ot.emd(a, b, ot.dist(x, y, metric="sqeuclidean"), numItermax=_ITERATIONS)
    i, j = np.nonzero(plan)
    return i, j, np.asarray(plan[i, j])


def mean_partners(i: Index, mass: Array, goals: Array, n: int) -> Array:
    """The mean position to which a plan sends each of `n` points, given its pairs' goals.

    >>> mean_partners(np.array([0, 0, 1]), np.array([0.1, 0.3, 0.4]), np.eye(3), 2).round(2)
    array([[0.25, 0.75, 0.  ],
           [0.  , 0.  , 1.  ]])
    """
    sent = np.zeros((n, goals.shape[1]))
    np.add.at(sent, i, mass[:, None] * goals)
    return np.asarray(sent / np.bincount(i, weights=mass, minlength=n)[:, None])


def unbalanced_coupling(x: Array, y: Array, *, far: float = _FAR) -> Pairs:
    """An optimal plan in which mass may die and be born instead of moving too far.

    Moving costs the squared distance; dying and being born together cost `far` times the mean cost
    of the balanced plan. Solved by one network simplex with an extra point on either side.

    >>> x = np.array([[0.0], [0.1], [0.2]])
    >>> plan = unbalanced_coupling(x, np.array([[0.0], [0.1], [9.0]]), far=1.0)
    >>> plan.dying.tolist(), plan.born.tolist()
    ([2], [2])
    """
    ot = _pot()
    n, m = x.shape[0], y.shape[0]
    cost = ot.dist(x, y, metric="sqeuclidean")
    i, j, mass = coupling(x, y)
    price = 0.5 * far * float((mass * cost[i, j]).sum())
    padded = np.full((n + 1, m + 1), price)
    padded[:n, :m] = cost
    padded[n, m] = 0.0
    a, b = np.append(_even(x), 1.0), np.append(_even(y), 1.0)
    plan = ot.emd(a, b, padded, numItermax=_ITERATIONS)
    i, j = np.nonzero(plan[:n, :m])
    dying, born = np.flatnonzero(plan[:n, m]), np.flatnonzero(plan[n, :m])
    return Pairs(i, j, plan[i, j], dying, plan[dying, m], born, plan[n, born])


def entropic_coupling(
    x: Array, y: Array, *, rng: np.random.Generator, strength: float = 0.05
) -> tuple[Index, Index, Array]:
    """Pairs drawn from the entropic plan with regularisation `strength` times the mean cost."""
    ot = _pot()
    cost = ot.dist(x, y, metric="sqeuclidean")
    plan = ot.sinkhorn(
        _even(x), _even(y), cost, reg=strength * float(cost.mean()), method="sinkhorn_log",
        numItermax=200, stopThr=1e-6, warn=False,
    )  # fmt: skip
    flat = np.cumsum(plan.ravel())
    n = 4 * max(x.shape[0], y.shape[0])
    picks = np.searchsorted(flat, (np.arange(n) + rng.random()) / n * flat[-1])
    i, j = np.divmod(np.minimum(picks, flat.size - 1), y.shape[0])
    return i, j, np.full(n, 1 / n)


def _even(x: Array) -> Array:
    return np.full(x.shape[0], 1 / x.shape[0])


MOST_COUPLED = 5000
"""Most individuals per side of one coupling: 3-8 CPU seconds of network simplex."""

_MOST_ENTROPIC = 600
"""Largest number of individuals per side of an entropic coupling."""
_MOST_UNBALANCED = 2000
"""Largest number of individuals per side of an unbalanced coupling."""
_SUBSAMPLES = 2
"""Subsamples over which couplings of large clouds are averaged."""
_NEIGHBORS = 10
"""Number of nearest observed points to which points are pulled."""


@dataclass(frozen=True, eq=False)
class Displacement:
    """Options of a displacement: how closely to follow the curve, and how far to pull to the cloud.

    `curvature = 0` is McCann's straight line, 1 the cubic (or parabola) through the next snapshots
    as well; `pull = 1` puts each point at the mean of its nearest observed ones; `entropic` couples
    with noise; `unbalanced` lets individuals die and be born instead of moving far.
    """

    curvature: float = 0.0
    pull: float = 0.0
    entropic: bool = False
    unbalanced: bool = False


class Couplings:
    """Exact couplings of neighbouring snapshots, each computed once.

    Clouds larger than `most` are thinned; the couplings of `subsamples` such samples are pooled.
    """

    def __init__(
        self, clouds: tuple[Array, ...], rng: np.random.Generator, most: int = MOST_COUPLED
    ) -> None:
        self.clouds = clouds
        large = max(x.shape[0] for x in clouds) > most
        self.samples = [
            tuple(
                x if x.shape[0] <= most else x[rng.choice(x.shape[0], most, False)] for x in clouds
            )
            for _ in range(_SUBSAMPLES if large else 1)
        ]
        self._pairs: dict[tuple[int, int], tuple[Index, Index, Array]] = {}
        self._partners: dict[tuple[int, int, int], Array] = {}

    def nearest_mean(self, x: Array) -> Array:
        """The mean of the nearest observed points of each of `x`."""
        pool, search = self._observed
        near = search.query(x, min(_NEIGHBORS, len(pool)))[1]
        return np.asarray(pool[near].mean(axis=1))

    @cached_property
    def _observed(self) -> tuple[Array, NeighborSearch]:
        pool = np.vstack(self.clouds)
        return pool, NeighborSearch(pool)

    def pairs(self, sample: int, left: int) -> tuple[Index, Index, Array]:
        """The coupling of snapshots `left` and `left + 1`."""
        if (sample, left) not in self._pairs:
            x, y = self.samples[sample][left], self.samples[sample][left + 1]
            self._pairs[sample, left] = coupling(x, y)
        return self._pairs[sample, left]

    def partners(self, sample: int, here: int, there: int) -> Array:
        """The mean position to which the coupling of two snapshots sends each of `here`."""
        if (sample, here, there) not in self._partners:
            i, j, mass = self.pairs(sample, min(here, there))
            i, j = (i, j) if here < there else (j, i)
            x, y = self.samples[sample][here], self.samples[sample][there]
            self._partners[sample, here, there] = mean_partners(i, mass, y[j], len(x))
        return self._partners[sample, here, there]


def displace(
    times: Array,
    clouds: tuple[Array, ...] | Couplings,
    time: float,
    how: Displacement,
    *,
    rng: np.random.Generator,
) -> WeightedPoints:
    """The cloud at `time`, between two snapshots or after the last (straight on)."""
    couplings = clouds if isinstance(clouds, Couplings) else Couplings(clouds, rng)
    right = int(np.clip(np.searchsorted(times, time), 1, times.size - 1))
    if how.unbalanced:
        return _with_births(times, couplings, time, right, rng)
    parts = []
    for sample in range(1 if how.entropic else len(couplings.samples)):
        parts.append(_one_sample(times, couplings, time, how, (sample, right), rng))
    moved = np.concatenate([x for x, _ in parts])
    mass = np.concatenate([m / m.sum() / len(parts) for _, m in parts])
    if how.pull > 0:
        moved = moved + how.pull * (couplings.nearest_mean(moved) - moved)
    return WeightedPoints(moved, mass)


def _one_sample(
    times: Array, couplings: Couplings, time: float, how: Displacement, at: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Array, Array]:  # fmt: skip
    sample, right = at
    left = right - 1
    thin = couplings.samples[sample]
    if how.entropic:
        thin = tuple(_thin(x, _MOST_ENTROPIC, rng) for x in thin)
        i, j, mass = entropic_coupling(thin[left], thin[right], rng=rng)
    else:
        i, j, mass = couplings.pairs(sample, left)
    x, y = thin[left][i], thin[right][j]
    knots, values = [times[left], times[right]], [x, y]
    if how.curvature > 0 and left > 0:
        knots.append(times[left - 1])
        values.append(couplings.partners(sample, left, left - 1)[i])
    if how.curvature > 0 and right < times.size - 1:
        knots.append(times[right + 1])
        values.append(couplings.partners(sample, right, right + 1)[j])
    moved = _lagrange(np.array(knots[:2]), values[:2], time)
    if len(knots) > 2:
        moved = moved + how.curvature * (_lagrange(np.array(knots), values, time) - moved)
    return moved, mass


def _with_births(
    times: Array, couplings: Couplings, time: float, right: int, rng: np.random.Generator
) -> WeightedPoints:
    """Pairs on straight lines; deaths fade out in place, and births fade in."""
    x, y = (_thin(couplings.clouds[k], _MOST_UNBALANCED, rng) for k in (right - 1, right))
    plan = unbalanced_coupling(x, y)
    share = (time - times[right - 1]) / (times[right] - times[right - 1])
    inside = float(np.clip(share, 0.0, 1.0))
    moved = x[plan.first] + share * (y[plan.second] - x[plan.first])
    points = np.concatenate([moved, x[plan.dying], y[plan.born]])
    mass = np.concatenate([plan.mass, (1 - inside) * plan.dying_mass, inside * plan.born_mass])
    keep = mass > 0
    return WeightedPoints(points[keep], mass[keep] / mass.sum())


def _thin(x: Array, most: int, rng: np.random.Generator) -> Array:
    return x if x.shape[0] <= most else x[rng.choice(x.shape[0], most, False)]


def _lagrange(knots: Array, values: list[Array], time: float) -> Array:
    out = np.zeros_like(values[0])
    for a, value in enumerate(values):
        others = np.delete(knots, a)
        out = out + np.prod((time - others) / (knots[a] - others)) * value
    return out
