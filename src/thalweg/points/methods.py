"""The methods that give the cloud at a time: each from the same snapshots, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import xlogy

from thalweg._sparse import dense
from thalweg._types import Array, Progress
from thalweg.geometry import TransportGeometry
from thalweg.learn import FreeEnergyRegressor
from thalweg.points.baselines import even, pooled
from thalweg.points.bridge import schroedinger_bridge, walk_generator
from thalweg.points.coupling import (
    MOST_COUPLED,
    Couplings,
    Displacement,
    around,
    coupling,
    displace,
    thinned,
    wasserstein1,
)
from thalweg.points.goodness import GoodnessOfFit, joined
from thalweg.points.landscape import PointLandscape
from thalweg.points.landscape.estimator import FEWEST
from thalweg.points.landscape.features import Moments
from thalweg.points.landscape.least_squares import Whitening
from thalweg.points.relaxation import RelaxationFit, fit_relaxation
from thalweg.snapshots import HeatKernel, PointSnapshots, WeightedPoints, estimate_probabilities
from thalweg.snapshots.clouds import assign, build
from thalweg.status import Status

METHODS = (
    "flow", "growing", "bridge", "geodesic", "displacement", "curved", "unbalanced", "landscape",
)  # fmt: skip
FORECASTS = ("flow", "growing", "displacement", "landscape", "persistence")

MOVERS = {
    "displacement": Displacement(),
    "unbalanced": Displacement(unbalanced=True),
    "curved 0.5": Displacement(curvature=0.5),
    "curved 1": Displacement(curvature=1.0),
    "pulled 0.5": Displacement(pull=0.5),
    "curved 0.5, pulled 0.5": Displacement(curvature=0.5, pull=0.5),
    "curved 1, pulled 0.5": Displacement(curvature=1.0, pull=0.5),
}
"""Displacements by name; `"curved"` is the bent or pulled one that the trials prefer."""

CURVED = "curved 0.5, pulled 0.5"
"""The displacement of `"curved"` if nothing could be tried."""

_NEAR = 2.0
"""First `beta` of a further partition, in units of the first one's."""
_GROWTH_TIMES = 3
"""Least number of snapshots that can separate growth from transport."""
_CLEARLY = 1e-4
"""P-value of a fixed potential below which one that changes in time is tried: a hundredth of the
level of the warning, which chance alone passes in one of a hundred true flows."""
_SLACK = 1.2
"""Allowance on the deviance of a true flow for smoothing and the mesh in time."""
_MOST_ORDER = 2
_POOL_MOMENTS = 105
"""Number of moments that compare snapshots before they are pooled."""
_MISLED_POINTS = 1500
"""Number of points in the distance that judges a rejected model."""
_ASKED = 2000
"""Individuals of the last snapshot that are checked for extrapolation."""
_BEYOND = 0.1
"""Share of extrapolating individuals above which there is a warning."""
_THROWN = 1.5
"""Largest extent of a cloud pushed backwards, relative to the observed ones."""


@dataclass(frozen=True, eq=False)
class Guess:
    """A cloud, the test of the model behind it, and the states' distribution if it has one."""

    points: WeightedPoints
    goodness: GoodnessOfFit | None = None
    warning: str = ""
    probabilities: Array | None = None


@dataclass(frozen=True, eq=False)
class Partition:
    """One choice of states, with the fits on it."""

    seen: PointSnapshots
    first: Partition | None = None
    """A partition into as many states, whose clock is close to this one's."""

    @cached_property
    def fit(self) -> RelaxationFit:
        kernel = self.seen.kernel
        if self.first is None:
            return fit_relaxation(kernel, self.seen)
        known, old = self.first.fit.energy, self.first.seen.kernel
        assert kernel.coordinates is not None
        assert old.coordinates is not None
        (nearest,) = assign(old.coordinates, [kernel.coordinates])
        u = known.potential[nearest] / known.beta
        return fit_relaxation(kernel, self.seen, fastest=_NEAR * known.beta, start=u - u.mean())

    @cached_property
    def growing(self) -> FreeEnergyRegressor:
        """The flow with a rate of births and deaths in every state."""
        return FreeEnergyRegressor(growth="states").fit(self.seen.kernel, self.seen)

    @cached_property
    def smooth(self) -> Array:
        known = estimate_probabilities(self.seen.kernel, self.seen, smoother=HeatKernel())
        return known.probabilities

    def distribution(self, time: float, method: str) -> Array:
        """Probabilities of the states at `time`."""
        kernel, times = self.seen.kernel, self.seen.times
        ahead = time > times[-1]
        if method == "flow":
            if ahead:
                return self.fit.predict(kernel, [times[-1], time], self.smooth[-1])[-1]
            return self.fit.predict(kernel, [time])[0]
        if method == "growing":
            start = self.smooth[-1] if ahead else None
            grid = np.unique([times[-1] if ahead else times[0], time])
            return self.growing.predict(start, grid).probabilities[-1]
        right, share = around(times, time)
        before, after = self.smooth[right - 1], self.smooth[right]
        if method == "bridge":
            walk, span = walk_generator(kernel, self.fit.energy), times[right] - times[right - 1]
            since = np.array([time - times[right - 1]])
            return schroedinger_bridge(walk, before, after, span, since)[0]
        path = TransportGeometry(kernel).geodesic(before, after, tolerance=1e-3, n_steps=8)
        return np.asarray(path.at([share]).probabilities[0])

    @property
    def goodness(self) -> GoodnessOfFit:
        """Deviance of the fitted flow, less an allowance for smoothing."""
        dof = (self.seen.n_times - 2) * (self.seen.n_states - 1)
        claim = "one free energy moves the population over the states"
        return GoodnessOfFit(2 * self.fit.misfit / _SLACK, dof, claim)

    @property
    def growing_goodness(self) -> GoodnessOfFit:
        """Deviance of the flow with births and deaths, whose rates are as many as potentials."""
        seen = self.seen
        shares = np.maximum(self.growing.predict(None, seen.times).probabilities, 1e-300)
        counts = dense(seen.counts)
        expected = counts.sum(axis=1, keepdims=True) * shares
        deviance = 2 * float(xlogy(counts, counts / expected).sum())
        dof = (seen.n_times - 3) * (seen.n_states - 1)
        claim = "one free energy and constant rates of growth explain the population"
        return GoodnessOfFit(deviance / _SLACK, dof, claim)


class Methods:
    """All methods for a set of snapshots; expensive parts are computed when needed."""

    def __init__(
        self, times: Array, clouds: tuple[Array, ...], *, n_states: int,
        n_neighbors: int | None = None, n_partitions: int = 1, seed: int = 0,
        progress: Progress | None = None, most: int = MOST_COUPLED,
    ) -> None:  # fmt: skip
        self.times, self.clouds, self._seed = times, clouds, seed
        self._progress, self._most = progress, most
        self.parts: list[Partition] = []
        for j in range(n_partitions):
            rng = np.random.default_rng([seed, j])
            seen = build(times, clouds, n_states=n_states, n_neighbors=n_neighbors, rng=rng)
            self.parts.append(Partition(seen, self.parts[0] if j else None))

    @cached_property
    def couplings(self) -> Couplings:
        return Couplings(self.clouds, np.random.default_rng([self._seed, 4]), self._most)

    @cached_property
    def fixed(self) -> PointLandscape:
        """One potential for all times."""
        model = PointLandscape(seed=self._seed, progress=self._progress)
        return model.fit(self.times, self.clouds)

    @cached_property
    def landscape(self) -> PointLandscape:
        """One potential for all times, or one that changes in time if that is clearly rejected."""
        order = min(_MOST_ORDER, self.times.size - 2)
        if not (self.fixed.goodness_.p_value < _CLEARLY and order > 0):
            return self.fixed
        other = PointLandscape(time_order=order, seed=self._seed, progress=self._progress)
        both = (self.fixed, other.fit(self.times, self.clouds))
        return min(both, key=lambda m: m.goodness_.chi_square / max(m.goodness_.dof, 1))

    @property
    def against_one_potential(self) -> str:
        """Why no fixed potential moves the snapshots; empty if none is rejected."""
        test = self.fixed.goodness_
        if not test.rejected:
            return ""
        return (
            f"no potential that is constant in time explains the snapshots; {test}: the forces may "
            "rotate or change in time, or individuals may be born and die"
        )

    def available(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The methods among `names` for which these snapshots are large enough."""
        missing = set()
        if min(len(x) for x in self.clouds) < FEWEST:
            missing.add("landscape")
        if self.times.size < _GROWTH_TIMES:
            missing.add("growing")
        return tuple(name for name in names if name not in missing)

    def worthwhile(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The methods among `names` to try: births and deaths only if transport is rejected."""
        grows = "growing" in self.available(names) and self.parts[0].goodness.rejected
        return tuple(name for name in names if name != "growing" or grows)

    def guess(self, name: str, time: float) -> Guess:
        """The cloud at `time` by one method."""
        rng = np.random.default_rng([self._seed, 1])
        if name == "persistence":
            return Guess(even(self.clouds[-1]))
        if name in MOVERS:
            return Guess(displace(self.times, self.couplings, time, MOVERS[name], rng=rng))
        if name == "landscape":
            model = self.landscape
            against = self.against_one_potential if model is not self.fixed else ""
            if time > self.times[-1]:
                cloud, beyond = self._pooled(time, rng), self._beyond(time)
            else:
                cloud, beyond = self._met(time, rng), ""
            return Guess(cloud, model.goodness_, joined(against, model.warning_, beyond))
        parts = self.parts[:1] if name == "growing" else self.parts
        ps = [part.distribution(time, name) for part in parts]
        clouds = [
            part.seen.to_points(p / p.sum(), time=time) for part, p in zip(parts, ps, strict=True)
        ]
        # Every partition weighs the same points, so that their average has each of them once.
        weights = np.mean([cloud.weights for cloud in clouds], axis=0)
        cloud = WeightedPoints(self.parts[0].seen.pooled, weights).pruned()
        if name == "growing":
            test, growth = parts[0].growing_goodness, str(parts[0].growing.growth_ or "")
            return Guess(cloud, test, joined(test.warning, growth), ps[0])
        if name == "geodesic":
            return Guess(cloud, probabilities=ps[0])
        return Guess(cloud, parts[0].goodness, parts[0].goodness.warning, ps[0])

    def _met(self, time: float, rng: np.random.Generator) -> WeightedPoints:
        """Forward from the snapshot before, backward from the one after, paired and averaged."""
        model, (right, share) = self.landscape, around(self.times, time)
        a, b = float(self.times[right - 1]), float(self.times[right])
        first, last = (thinned(x, self._most, rng) for x in self.clouds[right - 1 : right + 1])
        forward, backward = model.push(first, a, time, rng), model.push(last, b, time)
        if _radius(backward) > _THROWN * max(_radius(first), _radius(last)):
            # A flow that contracts is ill-posed backwards: correct the forward one at its end.
            reached = model.push(forward, time, b, rng)
            i, j, mass = coupling(reached, last)
            middle = forward[i] + share * (last[j] - reached[i])
        else:
            i, j, mass = coupling(forward, backward)
            middle = (1 - share) * forward[i] + share * backward[j]
        return WeightedPoints(middle, mass / mass.sum())

    def _pooled(self, time: float, rng: np.random.Generator) -> WeightedPoints:
        """All snapshots pushed to `time`; the last alone if they are the same individuals.

        Pooling should fill gaps, not blur. A snapshot whose push is uncertain by `e` weighs
        `1 / (1 + (e / s)^2)`, `s` the distance between neighbouring individuals; and one whose
        moments, pushed to the time of the last snapshot, differ from those seen there by more than
        sampling does weighs less by what that bias adds to the variance of a sample. A rejected
        model that fails to forecast the last snapshot moves nothing: snapshots like the last are
        pooled as they are, and so are clouds at rest.
        """
        model, end = self.landscape, float(self.times[-1])
        if self._misled:
            like = np.array([*(1 / (1 + 2 * self._excess(x)) for x in self.clouds[:-1]), 1.0])
            return pooled([even(x) for x in self.clouds], like / like.sum())
        n = len(self.clouds)
        if model.status_ is Status.UNDETERMINED:
            return pooled([even(x) for x in self.clouds], np.full(n, 1 / n))
        clouds, shares = [], []
        some = self.clouds[-1][:1000]
        apart = float(np.median(cKDTree(some).query(some, k=2)[0][:, 1])) + 1e-300
        unsure = float(np.sqrt((model.drift_stderr(some) ** 2).sum(axis=1).mean()))
        alone = model.tracked_ or model.time_order > 0 or model.goodness_.rejected
        for k in range(n - 1 if alone else 0, n):
            start = float(self.times[k])
            now = model.push(self.clouds[k], start, end, rng)
            x = model.push(now, end, time, rng)
            clouds.append(even(x[np.isfinite(x).all(axis=1)]))
            error = ((time - start) * unsure) ** 2 + 2 * model.beta_stderr_ * (time - start)
            off = 2 * self._excess(now) if k < n - 1 else 0.0
            shares.append(1 / (1 + error / apart**2) / (1 + off))
        return pooled(clouds, np.array(shares) / np.sum(shares))

    def _beyond(self, time: float) -> str:
        """A warning if many individuals go where none was seen."""
        if self._misled or self.landscape.status_ is Status.UNDETERMINED:
            return ""
        last, some = float(self.times[-1]), self.clouds[-1][:_ASKED]
        share = self.landscape.extrapolates(some, last, time).mean()
        if share < _BEYOND:
            return ""
        return (
            f"{share:.0%} of the individuals move where none was seen to move: the forecast "
            "extrapolates the potential there"
        )

    @cached_property
    def _misled(self) -> bool:
        """Whether a rejected model, fitted without the last snapshot, forecasts it no better."""
        if not self.landscape.goodness_.rejected or self.times.size < 3:
            return False
        order = min(self.landscape.time_order, self.times.size - 3)
        inner = PointLandscape(time_order=order, seed=self._seed, progress=self._progress)
        inner.fit(self.times[:-1], self.clouds[:-1])
        rng = np.random.default_rng([self._seed, 7])
        before, truth = self.clouds[-2], even(self.clouds[-1])
        moved = inner.push(before, float(self.times[-2]), float(self.times[-1]), rng)
        if not np.isfinite(moved).all():
            return True
        errors = [wasserstein1(even(x), truth, most=_MISLED_POINTS) for x in (moved, before)]
        return errors[0] >= errors[1]

    def _excess(self, x: Array) -> float:
        """Mean square of the differences of moments to the last snapshot's, beyond sampling's."""
        ends = [self._moments.value(y) for y in (x, self.clouds[-1])]
        means, spreads = [v.mean(axis=0) for v in ends], [np.cov(v.T) / len(v) for v in ends]
        white = Whitening.of(spreads[0] + spreads[1])(means[0] - means[1])
        return max(float((white**2).mean()) - 1.0, 0.0)

    @cached_property
    def _moments(self) -> Moments:
        most = int(np.clip(min(len(x) for x in self.clouds) // 8, 4, _POOL_MOMENTS))
        rng = np.random.default_rng([self._seed, 6])
        return Moments.of(np.concatenate([x[:2000] for x in self.clouds]), most, rng)


def _radius(points: Array) -> float:
    """Root mean square distance from the mean; infinite if a point is."""
    if not np.isfinite(points).all():
        return float("inf")
    return float(np.sqrt(points.var(axis=0).sum()))
