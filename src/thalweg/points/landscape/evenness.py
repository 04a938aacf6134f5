"""Whether noise of one size explains the residuals of pairs of tracked individuals.

Where a potential varies over less than a step or than the spacing of the functions (a kink that
individuals jump over), its effect looks like noise. But noise has one size everywhere, and is
independent between intervals. Optimal couplings hide some of it, more where points crowd: how much
is simulated, with the fitted flow and its noise, coupled in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from thalweg._types import Array, Index
from thalweg.points.coupling import coupling, mean_partners
from thalweg.points.landscape.features import spaced_centers
from thalweg.points.landscape.field import Field
from thalweg.points.landscape.problem import Unresolved

_DRAWS = 3
"""Simulations of the steps per round."""
_PLACES = (5, 60)
"""Least and largest number of places."""
_PER_PLACE = 60
"""Residuals per place, whose mean square then scatters by a fifth."""
_QUIET = 0.25
"""Quantile of places that gives the noise if it is uneven."""
_ROUNDS = 3
"""Estimates of the noise, each from simulations with the last one."""
_CHANCE = 2.0
"""Factor over the scatter of simulated places above which noise is uneven,"""
_SIZE = 0.25
"""and the excess standard deviation of the logarithm above which it is."""
_MATTERS = 0.05
"""Root mean square residual, as a share of the flow's velocity, below which it is ignored."""
_EXACT = 0.005
"""The same below which residuals are the functions' own, whatever the noise: kept in error bars."""
_STAYS = 0.85
"""Independent share of the residuals below which the rest is roughness."""
_NEAREST = 8
"""Individuals whose residuals show roughness if there is hardly any noise."""
_LITTLE = 0.1
"""Share of noise in the residuals below which there is hardly any."""


def partners(x: Array, y: Array) -> tuple[Array, Index | None]:
    """The partner of each of `x` in an optimal coupling, and its row in `y` if one to one."""
    if len(x) == len(y):
        partner = linear_sum_assignment(cdist(x, y, "sqeuclidean"))[1]
        return y[partner], partner
    i, j, mass = coupling(x, y)
    return mean_partners(i, mass, y[j], len(x)), None


@dataclass(frozen=True, eq=False)
class Steps:
    """Individuals and a flow that is to explain their steps."""

    times: Array
    clouds: tuple[Array, ...]
    by_rows: bool
    field: Field
    per_interval: int

    @cached_property
    def ends(self) -> list[Array]:
        """The position to which the flow alone carries each individual."""
        return [self._carried(k) for k in range(len(self.clouds) - 1)]

    def left_over(self, ends: list[Array]) -> tuple[list[Array], list[Index | None]]:
        """Velocities to the ends less the flow's, and the pairing."""
        out, rows = [], []
        for k, y in enumerate(ends):
            there, partner = self.ends[k], np.arange(len(y))
            sent, pairs = (y, partner) if self.by_rows else partners(there, y)
            out.append((sent - there) / float(self.times[k + 1] - self.times[k]))
            rows.append(pairs)
        return out, rows

    def simulated(self, noise: float, rng: np.random.Generator) -> Array:
        """Mean squares left over of ends drawn from the flow with noise, as many as were seen."""
        ends = []
        for k, y in enumerate(self.clouds[1:]):
            end = self._carried(k, noise, rng)
            ends.append(end if len(y) == len(end) else end[rng.integers(len(end), size=len(y))])
        return _squares(self.left_over(ends)[0])

    def _carried(self, k: int, noise: float = 0.0, rng: np.random.Generator | None = None) -> Array:
        span, n = (float(self.times[k]), float(self.times[k + 1])), self.per_interval
        return self.field.flow(self.clouds[k], span, n, beta=noise, rng=rng, euler=n == 1)


def _squares(errors: list[Array]) -> Array:
    return np.concatenate([(e**2).mean(axis=1) for e in errors])


@dataclass(frozen=True, eq=False)
class Evenness:
    """The noise of the quieter places, and the other residuals of the pairs."""

    rough: bool
    """Whether part of what looks like noise is uneven, or stays with the individuals."""
    noise: float
    unresolved: Unresolved
    said: str


def evenness(steps: Steps, noise: float, rng: np.random.Generator, *, free: bool) -> Evenness:
    """Compare residuals with simulated ones, place by place; with `free`, noise may be lowered."""
    errors, rows = steps.left_over(list(steps.clouds[1:]))
    seen, points = _squares(errors), np.concatenate(steps.clouds[:-1])
    if not noise > 0:
        return Evenness(False, noise, Unresolved(points, seen, _NEAREST), "")
    places, tau = _places(points, rng), float(np.diff(steps.times).mean())
    moved = np.concatenate([f - x for f, x in zip(steps.ends, steps.clouds, strict=False)]) / tau
    share = float(np.sqrt(seen.mean() / max(float((moved**2).mean()), 1e-300)))
    matters = share > _MATTERS
    found = most = noise * _new(errors, rows) if free else noise
    rough, said = matters and found < _STAYS * noise, ""
    for done in range(_ROUNDS):
        draws = [steps.simulated(found, rng) for _ in range(_DRAWS)]
        ratio, chance = _ratios(places, seen, draws)
        if done == 0:
            spread, usual = float(np.log(ratio).var()), float(np.log(chance).var())
            uneven = spread > max(_CHANCE * usual, usual + _SIZE**2)
            rough = rough or (matters and uneven)
            said = f"{found * ratio.min():.2g} to {found * ratio.max():.2g} in different places"
        if not (rough and free):
            break
        lower = float(np.quantile(ratio, _QUIET) / np.quantile(chance, _QUIET))
        found = min(found * lower, most)
    # Without noise to average over, nearer individuals show better where the roughness is.
    count = _NEAREST if 2 * found / tau < _LITTLE * float(seen.mean()) else Unresolved.neighbors
    squares = seen if share < _EXACT else seen - np.mean(draws, axis=0)
    return Evenness(rough, found, Unresolved(points, squares, count), said)


def _places(points: Array, rng: np.random.Generator) -> Index:
    """Parts of the cloud: the one that each point belongs to."""
    centers, _ = spaced_centers(points, int(np.clip(len(points) // _PER_PLACE, *_PLACES)), rng)
    return np.unique(cKDTree(centers).query(points)[1], return_inverse=True)[1]


def _ratios(places: Index, seen: Array, draws: list[Array]) -> tuple[Array, Array]:
    """Per place, mean squares over simulated ones; and simulated ones over other simulated ones."""
    size = np.bincount(places)
    means = np.array([np.bincount(places, squares) / size for squares in (seen, *draws)])
    first, rest = np.maximum(means[0], 1e-300), np.maximum(means[1:], 1e-300)
    others = (rest.sum(axis=0) - rest) / (len(draws) - 1)
    return first / rest.mean(axis=0), (rest / others).ravel()


def _new(errors: list[Array], rows: list[Index | None]) -> float:
    """The share of the residuals that is independent between intervals, unlike roughness."""
    kept = [
        float((a * b[p]).mean() / max((a**2).mean(), 1e-300))
        for a, b, p in zip(errors[:-1], errors[1:], rows, strict=False) if p is not None
    ]  # fmt: skip
    return float(np.clip(1 - np.mean(kept), 0.0, 1.0)) if kept else 1.0
