"""Moving individuals along exact couplings, bent by the next snapshots and pulled to the cloud."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from thalweg._types import Array, Index
from thalweg.graphs.points import _Search
from thalweg.points.coupling import coupling, entropic_coupling, unbalanced_coupling
from thalweg.snapshots import WeightedPoints

__all__ = ["MOST_COUPLED", "Couplings", "Displacement", "displace"]

MOST_COUPLED = 5000
"""Most individuals per side of one coupling: 3-8 CPU seconds of network simplex."""

_MOST_ENTROPIC = 600
"""Largest number of individuals per side of an entropic coupling."""
_MOST_UNBALANCED = 2000
"""Largest number of individuals per side of an unbalanced coupling."""
_SUBSAMPLES = 2
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
    def _observed(self) -> tuple[Array, _Search]:
        pool = np.vstack(self.clouds)
        return pool, _Search(pool)

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
            sent = np.zeros_like(x)
            np.add.at(sent, i, mass[:, None] * y[j])
            total = np.bincount(i, weights=mass, minlength=len(x))
            self._partners[sample, here, there] = sent / total[:, None]
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
