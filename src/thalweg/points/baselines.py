"""Guesses without a model, which every interpolation and forecast has to beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.learn.rivals import free_ctmc
from thalweg.points.coupling import Couplings, Displacement, displace
from thalweg.snapshots import PointSnapshots, WeightedPoints
from thalweg.snapshots.density import smoothed

Baseline = Callable[[PointSnapshots, float, np.random.Generator], WeightedPoints]


def even(points: Array) -> WeightedPoints:
    """A cloud of individuals with equal weights."""
    return WeightedPoints(points, np.full(points.shape[0], 1 / points.shape[0]))


def nearest(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The snapshot nearest in time; the later one if two are equally near."""
    gaps = abs(seen.times - time)
    return even(seen.points[seen.n_times - 1 - int(np.argmin(gaps[::-1]))])


def persistence(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The snapshot before."""
    return even(seen.points[max(int(np.searchsorted(seen.times, time)) - 1, 0)])


def mixture(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Both neighbours, weighted by their nearness in time."""
    k = int(np.clip(np.searchsorted(seen.times, time), 1, seen.n_times - 1))
    share = float(np.clip((time - seen.times[k - 1]) / (seen.times[k] - seen.times[k - 1]), 0, 1))
    before, after = seen.points[k - 1], seen.points[k]
    weights = np.concatenate(
        [
            np.full(before.shape[0], (1 - share) / before.shape[0]),
            np.full(after.shape[0], share / after.shape[0]),
        ]
    )
    return WeightedPoints(np.vstack([before, after]), weights)


def mccann(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Individuals on straight lines along the exact coupling of the neighbours."""
    return displace(seen.times, Couplings(seen.points, rng), time, Displacement(), rng=rng)


def entropic(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Individuals on straight lines along the entropic coupling of the neighbours."""
    how = Displacement(entropic=True)
    return displace(seen.times, Couplings(seen.points, rng), time, how, rng=rng)


def chain(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """The Markov chain with a free rate for each direction of each edge, on the same states."""
    p = free_ctmc(seen.kernel, seen.times, dense(seen.counts), at=[time], method="least-squares")[0]
    return seen.to_points(p / p.sum(), time=time)


def log_linear(seen: PointSnapshots, time: float, rng: np.random.Generator) -> WeightedPoints:
    """Each state's log frequency on the line through the two neighbouring (or last) snapshots."""
    k = int(np.clip(np.searchsorted(seen.times, time), 1, seen.n_times - 1))
    logs = np.log(smoothed(dense(seen.counts)))
    share = (time - seen.times[k - 1]) / (seen.times[k] - seen.times[k - 1])
    q = np.exp(logs[k - 1] + share * (logs[k] - logs[k - 1]))
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
