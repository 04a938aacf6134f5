"""Exact optimal transport between clouds of points (POT): distances and couplings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg._optional import optional
from thalweg._types import Array, Index
from thalweg.graphs.points import NeighborSearch
from thalweg.snapshots import WeightedPoints

_ITERATIONS = 10_000_000
"""Largest number of iterations of the network simplex."""
_BLUR = 0.05
"""Regularisation of an entropic plan, in mean costs."""
_FAR = 3.0
"""Default cost of a death and a birth, in mean costs of the balanced plan."""


Plan = tuple[Index, Index, Array]
"""The pairs of a coupling, by their positions in either cloud, and their masses."""


def _pot() -> Any:
    return optional("ot", extra="points", what="exact optimal transport between points (POT)")


def wasserstein1(
    first: WeightedPoints,
    second: WeightedPoints,
    *,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> float:
    """The exact Wasserstein-1 distance (Euclidean cost) between two weighted clouds.

    Parameters
    ----------
    first, second : WeightedPoints
        The clouds.
    most : int, optional
        Larger clouds are thinned to this many points by systematic resampling, which adds a little
        to the distance.
    rng : numpy.random.Generator, optional
        Source of the resampling; by default from seed 0.

    >>> a = WeightedPoints(np.array([[0.0], [1.0]]), np.array([0.5, 0.5]))
    >>> b = WeightedPoints(np.array([[2.0]]), np.array([1.0]))
    >>> wasserstein1(a, b)
    1.5
    """
    ot = _pot()
    rng = np.random.default_rng(0) if rng is None else rng
    clouds = []
    for cloud in (first, second):
        x, weights = cloud.points[cloud.weights > 0], cloud.weights[cloud.weights > 0]
        if most is not None and cloud.weights.size > most:
            x = cloud.resample(most, rng=rng)
            weights = _even(x)
        clouds.append((x, weights / weights.sum()))
    (x, a), (y, b) = clouds
    cost = ot.dist(x, y, metric="euclidean")
    return float(ot.emd2(a, b, cost, numItermax=_ITERATIONS))


def mean_error(first: WeightedPoints, second: WeightedPoints) -> float:
    """The distance of the means, a lower bound on every Wasserstein distance."""
    return float(np.linalg.norm(first.mean - second.mean))


def coupling(x: Array, y: Array, weights: tuple[Array, Array] | None = None) -> Plan:
    """An optimal plan (squared Euclidean cost)."""
    a, b = weights or (_even(x), _even(y))
    return _cheapest(_pot().dist(x, y, metric="sqeuclidean"), a, b)


def _cheapest(cost: Array, a: Array, b: Array) -> Plan:
    plan = _pot().emd(a, b, cost, numItermax=_ITERATIONS)
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


def unbalanced_coupling(x: Array, y: Array, *, far: float = _FAR) -> Plan:
    """An optimal plan in which mass may die and be born instead of moving too far.

    Moving costs the squared distance; dying and being born together cost `far` times the mean cost
    of the balanced plan. Who dies is paired with position `len(y)`, and who is born with `len(x)`:
    one network simplex with an extra point on either side.

    >>> x = np.array([[0.0], [0.1], [0.2]])
    >>> i, j, mass = unbalanced_coupling(x, np.array([[0.0], [0.1], [9.0]]), far=1.0)
    >>> [(int(a), int(b)) for a, b in zip(i, j)]
    [(0, 0), (1, 1), (2, 3), (3, 2)]
    """
    n, m = len(x), len(y)
    cost = _pot().dist(x, y, metric="sqeuclidean")
    i, j, mass = _cheapest(cost, _even(x), _even(y))
    padded = np.full((n + 1, m + 1), 0.5 * far * float((mass * cost[i, j]).sum()))
    padded[:n, :m] = cost
    padded[n, m] = 0.0
    i, j, mass = _cheapest(padded, np.append(_even(x), 1.0), np.append(_even(y), 1.0))
    real = (i < n) | (j < m)
    return i[real], j[real], mass[real]


def entropic_coupling(x: Array, y: Array, *, rng: np.random.Generator) -> Plan:
    """Pairs drawn from the entropic plan."""
    cost = _pot().dist(x, y, metric="sqeuclidean")
    plan = _pot().sinkhorn(
        _even(x), _even(y), cost, reg=_BLUR * float(cost.mean()), method="sinkhorn_log",
        numItermax=200, stopThr=1e-6, warn=False,
    )  # fmt: skip
    flat = np.cumsum(plan.ravel())
    n = 4 * max(len(x), len(y))
    picks = np.searchsorted(flat, (np.arange(n) + rng.random()) / n * flat[-1])
    i, j = np.divmod(np.minimum(picks, flat.size - 1), len(y))
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
    """How individuals move between two snapshots.

    Parameters
    ----------
    curvature : float
        0 for McCann's straight line, 1 for the cubic (or parabola) through the next snapshots too.
    pull : float
        How far to pull towards the observed cloud: 1 puts each point at the mean of its nearest
        observed ones.
    entropic : bool
        Whether to couple with noise.
    unbalanced : bool
        Whether individuals die and are born instead of moving far, on straight lines.
    """

    curvature: float = 0.0
    pull: float = 0.0
    entropic: bool = False
    unbalanced: bool = False


class Couplings:
    """Exact couplings of neighbouring snapshots, each computed once.

    Clouds larger than `most` are thinned; the couplings of two such samples are pooled.
    """

    def __init__(
        self, clouds: tuple[Array, ...], rng: np.random.Generator, most: int = MOST_COUPLED
    ) -> None:
        self.clouds = clouds
        large = max(len(x) for x in clouds) > most
        self.samples = [
            tuple(thinned(x, most, rng) for x in clouds) for _ in range(_SUBSAMPLES if large else 1)
        ]
        self._pairs: dict[tuple[int, int], Plan] = {}

    def pairs(self, sample: int, left: int) -> Plan:
        """The coupling of snapshots `left` and `left + 1`."""
        if (sample, left) not in self._pairs:
            x, y = self.samples[sample][left], self.samples[sample][left + 1]
            self._pairs[sample, left] = coupling(x, y)
        return self._pairs[sample, left]

    def partners(self, sample: int, here: int, there: int) -> Array:
        """The mean position to which the coupling of two snapshots sends each of `here`."""
        i, j, mass = self.pairs(sample, min(here, there))
        if there < here:
            i, j = j, i
        clouds = self.samples[sample]
        return mean_partners(i, mass, clouds[there][j], len(clouds[here]))


def displace(
    times: Array,
    clouds: tuple[Array, ...] | Couplings,
    time: float,
    how: Displacement,
    *,
    rng: np.random.Generator,
) -> WeightedPoints:
    """The cloud at `time`, between two snapshots or after the last (straight on).

    Parameters
    ----------
    times : array
        Increasing times.
    clouds : tuple of arrays, or Couplings
        One cloud per time; `Couplings` of them to couple only once for many displacements.
    time : float
        The time of the cloud.
    how : Displacement
        Options.
    rng : numpy.random.Generator
        Source of the subsamples of large clouds, and of entropic pairs.
    """
    couplings = clouds if isinstance(clouds, Couplings) else Couplings(clouds, rng)
    right, share = around(times, time)
    if how.unbalanced:
        return _with_births(couplings, right, share, rng)
    paired = couplings
    if how.entropic:
        few = tuple(thinned(x, _MOST_ENTROPIC, rng) for x in couplings.samples[0])
        paired = Couplings(few, rng)
    parts = [
        _one_sample(times, paired, time, how, (sample, right), rng)
        for sample in range(len(paired.samples))
    ]
    moved = np.concatenate([x for x, _ in parts])
    mass = np.concatenate([m / m.sum() / len(parts) for _, m in parts])
    if how.pull > 0:
        pool = np.vstack(couplings.clouds)
        near = NeighborSearch(pool).query(moved, min(_NEIGHBORS, len(pool)))[1]
        moved = moved + how.pull * (pool[near].mean(axis=1) - moved)
    return WeightedPoints(moved, mass)


def around(times: Array, time: float) -> tuple[int, float]:
    """The snapshot after `time`, and the share of the interval before it that has passed.

    Before the first and after the last interval, these continue.

    >>> around(np.array([0.0, 1.0, 3.0]), 2.0), around(np.array([0.0, 1.0, 3.0]), 4.0)
    ((2, 0.5), (2, 1.5))
    """
    right = int(np.clip(np.searchsorted(times, time), 1, times.size - 1))
    return right, float((time - times[right - 1]) / (times[right] - times[right - 1]))


def _one_sample(
    times: Array, couplings: Couplings, time: float, how: Displacement, at: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Array, Array]:  # fmt: skip
    """Individuals of one sample on their way to a snapshot, `at`, and their masses."""
    sample, right = at
    left, clouds = right - 1, couplings.samples[sample]
    if how.entropic:
        i, j, mass = entropic_coupling(clouds[left], clouds[right], rng=rng)
    else:
        i, j, mass = couplings.pairs(sample, left)
    knots, values = [times[left], times[right]], [clouds[left][i], clouds[right][j]]
    moved = _lagrange(np.array(knots), values, time)
    if how.curvature > 0:
        if left > 0:
            knots.append(times[left - 1])
            values.append(couplings.partners(sample, left, left - 1)[i])
        if right < times.size - 1:
            knots.append(times[right + 1])
            values.append(couplings.partners(sample, right, right + 1)[j])
        moved = moved + how.curvature * (_lagrange(np.array(knots), values, time) - moved)
    return moved, mass


def _with_births(
    couplings: Couplings, right: int, share: float, rng: np.random.Generator
) -> WeightedPoints:
    """Pairs on straight lines; deaths fade out in place, and births fade in."""
    x, y = (thinned(couplings.clouds[k], _MOST_UNBALANCED, rng) for k in (right - 1, right))
    i, j, mass = unbalanced_coupling(x, y)
    born, dying = i == len(x), j == len(y)
    start, stop = x[np.where(born, 0, i)], y[np.where(dying, 0, j)]
    start[born], stop[dying] = stop[born], start[dying]
    inside = float(np.clip(share, 0.0, 1.0))
    mass = mass * np.where(born, inside, np.where(dying, 1 - inside, 1.0))
    points, keep = start + share * (stop - start), mass > 0
    return WeightedPoints(points[keep], mass[keep] / mass.sum())


def thinned(x: Array, most: int, rng: np.random.Generator) -> Array:
    """At most `most` of the points, drawn at random."""
    return x if len(x) <= most else x[rng.choice(len(x), most, replace=False)]


def _lagrange(knots: Array, values: list[Array], time: float) -> Array:
    """The polynomial through the values at the knots."""
    out = np.zeros_like(values[0])
    for a, value in enumerate(values):
        others = np.delete(knots, a)
        out = out + np.prod((time - others) / (knots[a] - others)) * value
    return out
