"""Guesses without a model, which every interpolation and forecast has to beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.learn.rivals import free_ctmc
from thalweg.points.coupling import Displacement, around, displace
from thalweg.snapshots import PointSnapshots, WeightedPoints
from thalweg.snapshots.density import smoothed

Baseline = Callable[[PointSnapshots, float, np.random.Generator], WeightedPoints]


def even(points: Array) -> WeightedPoints:
    """A cloud of individuals with equal weights."""
    return WeightedPoints(points, np.full(points.shape[0], 1 / points.shape[0]))


def pooled(clouds: list[WeightedPoints], shares: Array) -> WeightedPoints:
    """A mixture of clouds; atoms without weight are dropped."""
    points = np.concatenate([cloud.points for cloud in clouds])
    weights = np.concatenate(
        [share * cloud.weights for cloud, share in zip(clouds, shares, strict=True)]
    )
    return WeightedPoints(points, weights / weights.sum()).pruned()


def nearest(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The snapshot nearest in time; the later one if two are equally near."""
    gaps = abs(seen.times - time)
    return even(seen.points[seen.n_times - 1 - int(np.argmin(gaps[::-1]))])


def persistence(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The snapshot before."""
    return even(seen.points[max(int(np.searchsorted(seen.times, time)) - 1, 0)])


def mixture(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Both neighbours, weighted by their nearness in time."""
    right, share = around(seen.times, time)
    share = float(np.clip(share, 0, 1))
    ends = [even(x) for x in seen.points[right - 1 : right + 1]]
    return pooled(ends, np.array([1 - share, share]))


def mccann(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Individuals on straight lines along the exact coupling of the neighbours."""
    return displace(seen.times, seen.points, time, Displacement(), rng=rng)


def entropic(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Individuals on straight lines along the entropic coupling of the neighbours."""
    return displace(seen.times, seen.points, time, Displacement(entropic=True), rng=rng)


def chain(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The Markov chain with a free rate for each direction of each edge, on the same states."""
    p = free_ctmc(seen.kernel, seen.times, dense(seen.counts), at=[time], method="least-squares")[0]
    return seen.to_points(p / p.sum(), time=time)


def log_linear(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Each state's log frequency on the line through the two neighbouring (or last) snapshots."""
    right, share = around(seen.times, time)
    before, after = np.log(smoothed(dense(seen.counts)))[right - 1 : right + 1]
    q = np.exp(before + share * (after - before))
    return seen.to_points(q / q.sum(), time=time)


BASELINES: dict[str, Baseline] = {
    "nearest snapshot": nearest,
    "persistence": persistence,
    "mixture of neighbours": mixture,
    "displacement midpoint (McCann)": mccann,
    "entropic transport": entropic,
    "free Markov chain": chain,
    "log-linear": log_linear,
}
FORECAST_BASELINES = ("persistence", "free Markov chain", "log-linear")
