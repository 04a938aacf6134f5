"""Moving individuals: along exact couplings, bent by the snapshots beyond, pulled to the cloud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from thalweg.points.coupling import coupling, entropic_coupling
from thalweg.snapshots import WeightedPoints

__all__ = ["Displacement", "displace"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MOST_COUPLED = 1500
_MOST_ENTROPIC = 600
_NEIGHBORS = 10


@dataclass(frozen=True)
class Displacement:
    """How far to follow the curve through four snapshots, and how far to pull to the cloud.

    `curvature = 0` is McCann's straight line, 1 the cubic (or parabola) through the snapshots
    beyond; `pull = 1` puts each point at the mean of its nearest observed ones; `entropic` couples
    with noise.
    """

    curvature: float = 0.0
    pull: float = 0.0
    entropic: bool = False


def displace(
    times: Array,
    clouds: tuple[Array, ...],
    time: float,
    how: Displacement,
    *,
    rng: np.random.Generator,
    most: int = MOST_COUPLED,
) -> WeightedPoints:
    """The cloud at `time`, between two snapshots or past the last (straight on)."""
    most = min(most, _MOST_ENTROPIC) if how.entropic else most
    thin = [x if x.shape[0] <= most else x[rng.choice(x.shape[0], most, False)] for x in clouds]
    right = int(np.clip(np.searchsorted(times, time), 1, times.size - 1))
    left = right - 1
    if how.entropic:
        i, j, mass = entropic_coupling(thin[left], thin[right], rng=rng)
    else:
        i, j, mass = coupling(thin[left], thin[right])
    x, y = thin[left][i], thin[right][j]
    knots, values = [times[left], times[right]], [x, y]
    if how.curvature > 0 and left > 0:
        knots.append(times[left - 1])
        values.append(_partners(thin[left], thin[left - 1])[i])
    if how.curvature > 0 and right < times.size - 1:
        knots.append(times[right + 1])
        values.append(_partners(thin[right], thin[right + 1])[j])
    straight = _lagrange(np.array(knots[:2]), values[:2], time)
    moved = straight
    if len(knots) > 2:
        bent = _lagrange(np.array(knots), values, time)
        moved = straight + how.curvature * (bent - straight)
    if how.pull > 0:
        pool = np.vstack(clouds)
        near = cKDTree(pool).query(moved, k=min(_NEIGHBORS, pool.shape[0]))[1]
        near = near.reshape(moved.shape[0], -1)
        moved = moved + how.pull * (pool[near].mean(axis=1) - moved)
    return WeightedPoints(moved, mass / mass.sum())


def _partners(x: Array, y: Array) -> Array:
    """Where the coupling sends each point on average."""
    i, j, mass = coupling(x, y)
    total = np.bincount(i, weights=mass, minlength=x.shape[0])
    sent = [np.bincount(i, weights=mass * y[j, k], minlength=x.shape[0]) for k in range(x.shape[1])]
    return np.stack(sent, axis=1) / total[:, None]


def _lagrange(knots: Array, values: list[Array], time: float) -> Array:
    out = np.zeros_like(values[0])
    for a, value in enumerate(values):
        others = np.delete(knots, a)
        out = out + np.prod((time - others) / (knots[a] - others)) * value
    return out
