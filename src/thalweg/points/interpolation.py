"""`PointInterpolator`: the cloud at a time nobody looked, from the clouds around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg.errors import ConvergenceError, InputError
from thalweg.geometry import TransportGeometry
from thalweg.points.bridge import schroedinger_bridge, walk_generator
from thalweg.points.coupling import wasserstein1
from thalweg.points.displacement import MOST_COUPLED, Displacement, displace
from thalweg.points.relaxation import MOST_STATES, RelaxationFit, fit_relaxation
from thalweg.snapshots import (
    HeatKernel,
    PointSnapshots,
    Snapshots,
    WeightedPoints,
    estimate_probabilities,
)
from thalweg.snapshots.clouds import assign, build, default_states

__all__ = ["METHODS", "Interpolation", "PointInterpolator"]

Array = NDArray[np.float64]
Method = Literal["auto", "flow", "geodesic", "bridge", "displacement", "curved"]

METHODS = ("flow", "bridge", "geodesic", "displacement", "curved")
DEFAULT_METHOD = "flow"
"""What `"auto"` uses where two snapshots are left, which is too few to try methods on."""

_CURVED = Displacement(curvature=0.5, pull=0.5)
_NEAR = 2.0
_SAME = 1e-9
_FARTHER = 1.25
_TRIAL_POINTS = 600
_TRIAL_STATES = 30
_MOVERS = {"displacement": Displacement(), "curved": _CURVED}


@dataclass(frozen=True, eq=False)
class Interpolation:
    """The cloud at a time, the states' distribution where the method has one, and why."""

    time: float
    points: WeightedPoints
    method: str
    why: str
    probabilities: Array | None = None
    """Over the states of the first partition; `None` for methods that move individuals."""


@dataclass(frozen=True, eq=False)
class _Partition:
    """One choice of states, with what is fitted on it."""

    seen: PointSnapshots
    first: _Partition | None = None
    """A partition into as many states, whose clock cannot be far."""

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
    def smooth(self) -> Array:
        smoother = HeatKernel()
        return estimate_probabilities(self.seen.kernel, self.seen, smoother=smoother).probabilities

    def between(self, time: float) -> tuple[int, float, float]:
        """The snapshot before, the time since it, and the length of the interval."""
        times = self.seen.times
        k = int(np.clip(np.searchsorted(times, time) - 1, 0, times.size - 2))
        return k, time - times[k], times[k + 1] - times[k]

    def distribution(self, time: float, method: str) -> Array:
        kernel, times = self.seen.kernel, self.seen.times
        k, since, span = self.between(time)
        if method == "flow":
            if time > times[-1]:
                return self.fit.predict(kernel, [times[-1], time], self.smooth[-1])[-1]
            return self.fit.predict(kernel, [time])[0]
        if method == "bridge":
            walk = walk_generator(kernel, self.fit.energy)
            ends = self.smooth[k], self.smooth[k + 1]
            return schroedinger_bridge(walk, *ends, span, np.array([since]))[0]
        if float(np.abs(self.smooth[k] - self.smooth[k + 1]).sum()) < _SAME:
            return self.smooth[k]
        geometry = TransportGeometry(kernel)
        path = geometry.geodesic(self.smooth[k], self.smooth[k + 1], tolerance=1e-3, n_steps=8)
        return np.asarray(path.at([since / span]).probabilities[0])


class PointInterpolator:
    """Interpolates and forecasts clouds of points from snapshots of them.

    Parameters
    ----------
    n_states, n_neighbors : of each partition into states; see `Snapshots.from_points`.
    n_partitions : how many partitions, from k-means with different seeds, are averaged over.
    seed : of everything random.

    Attributes
    ----------
    partitions_ (the `PointSnapshots`), fits_, scores_ (nested leave-one-time-out, by method).

    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(3 * np.exp(-t), 0.5, size=(80, 2)) for t in (0.0, 1.0, 3.0)]
    >>> model = PointInterpolator(n_states=15, n_partitions=1).fit([0, 1, 3], clouds)
    >>> guess = model.interpolate(0.5, method="flow")
    >>> guess.points.points.shape
    (240, 2)
    """

    def __init__(
        self,
        *,
        n_states: int | None = None,
        n_neighbors: int | None = None,
        n_partitions: int = 3,
        seed: int = 0,
    ) -> None:
        self.n_states = n_states
        self.n_neighbors = n_neighbors
        self.n_partitions = n_partitions
        self.seed = seed

    def fit(self, times: ArrayLike, points: Iterable[ArrayLike]) -> PointInterpolator:
        """Lay the states over the clouds; fits are made when first asked for."""
        t = _checks.as_times(times, minimum=2)
        clouds = tuple(_checks.as_array(x, f"points[{k}]") for k, x in enumerate(points))
        wanted = self.n_states or default_states(sum(x.shape[0] for x in clouds))
        if wanted > MOST_STATES:
            raise InputError(
                f"n_states is {wanted}; interpolation takes {MOST_STATES} at most: use fewer, and "
                "the points of each state keep the detail."
            )
        self._parts: list[_Partition] = []
        for j in range(self.n_partitions):
            rng = np.random.default_rng([self.seed, j])
            seen = build(t, clouds, n_states=wanted, n_neighbors=self.n_neighbors, rng=rng)
            self._parts.append(_Partition(seen, self._parts[0] if j else None))
        self.times_, self._clouds = t, self._parts[0].seen.points
        self._scores: dict[str, dict[str, float]] = {}
        return self

    @property
    def partitions_(self) -> tuple[PointSnapshots, ...]:
        return tuple(part.seen for part in self._parts)

    @property
    def snapshots_(self) -> Snapshots:
        return self._parts[0].seen

    @property
    def fits_(self) -> tuple[RelaxationFit, ...]:
        return tuple(part.fit for part in self._parts)

    @property
    def scores_(self) -> dict[str, float]:
        """Mean W1 of each method over the training times left out in turn."""
        return self._trial("interpolate")

    # ---------------------------------------------------------------- what it gives

    def interpolate(self, time: float, *, method: Method = "auto") -> Interpolation:
        """The cloud at a time between the first and the last snapshot.

        `"flow"`: the fitted gradient flow. `"bridge"`: its walk conditioned on the two snapshots
        around `time`. `"geodesic"`: the shortest path in `W_K` between them. `"displacement"`:
        individuals on straight lines along the exact coupling; `"curved"`: bent by the snapshots
        beyond and pulled towards the observed cloud. `"auto"` tries all of them on the inner
        training times, each left out in turn, and takes the best; with two training times it is
        the flow, whose relaxation has a clock where the others have none.
        """
        low, high = self.times_[0], self.times_[-1]
        if not low <= time <= high:
            raise InputError(
                f"time is {time:g}, outside the snapshots from {low:g} to {high:g}; use forecast."
            )
        if method != "auto":
            return self._one(time, method, f"{method} was asked for")
        if self.times_.size < 3:
            return self._one(
                time, DEFAULT_METHOD,
                "two snapshots leave no inner time to try methods on: the flow, which has a clock "
                "of its own, is the default",
            )  # fmt: skip
        name, why = self._choose("interpolate")
        return self._one(time, name, why)

    def forecast(
        self,
        time: float,
        *,
        method: Literal["auto", "flow", "displacement", "persistence"] = "auto",
    ) -> Interpolation:
        """The cloud at a time past the last snapshot.

        `"flow"` goes on from the last snapshot with the fitted energy; `"displacement"` moves
        individuals straight on; `"persistence"` changes nothing. `"auto"` tries them on the last
        training time; straight lines only where they were tried about as far ahead, in units of
        the interval before, as they are asked for. With two training times it is the flow.
        """
        if time < self.times_[-1]:
            raise InputError(
                f"time is {time:g}, before the last snapshot at {self.times_[-1]:g}; use "
                "interpolate."
            )
        if method != "auto":
            return self._one(time, method, f"{method} was asked for")
        if self.times_.size < 3:
            return self._one(time, "flow", "two snapshots leave nothing to try methods on")
        asked = self._reach(self.times_, time)
        tried = self._reach(self.times_[:-1], float(self.times_[-1]))
        ruled_out = ("displacement",) if asked > _FARTHER * tried else ()
        name, why = self._choose("forecast", ruled_out)
        return self._one(time, name, why)

    # ---------------------------------------------------------------- how

    def _one(
        self, time: float, method: str, why: str, *, most: int = MOST_COUPLED
    ) -> Interpolation:
        rng = np.random.default_rng([self.seed, 1])
        if method == "persistence":
            last = self._clouds[-1]
            cloud = WeightedPoints(last, np.full(last.shape[0], 1 / last.shape[0]))
            return Interpolation(time, cloud, method, why)
        if method in _MOVERS:
            cloud = displace(self.times_, self._clouds, time, _MOVERS[method], rng=rng, most=most)
            return Interpolation(time, cloud, method, why)
        if method not in METHODS:
            raise InputError(f"method is {method!r}; choose 'auto' or one of {', '.join(METHODS)}.")
        ps = [part.distribution(time, method) for part in self._parts]
        clouds = [
            part.seen.to_points(p / p.sum(), time=time)
            for part, p in zip(self._parts, ps, strict=True)
        ]
        weights = np.mean([cloud.weights for cloud in clouds], axis=0)
        return Interpolation(time, WeightedPoints(clouds[0].points, weights), method, why, ps[0])

    @staticmethod
    def _reach(times: Array, time: float) -> float:
        """How far ahead, in units of the last interval; infinite where there is none."""
        return float((time - times[-1]) / (times[-1] - times[-2])) if times.size > 1 else np.inf

    def _choose(self, task: str, ruled_out: tuple[str, ...] = ()) -> tuple[str, str]:
        scores = {name: w for name, w in self._trial(task).items() if name not in ruled_out}
        best = min(scores, key=lambda name: scores[name])
        listed = ", ".join(f"{name} {w:.3g}" for name, w in sorted(scores.items(), key=_second))
        times = "inner training times" if task == "interpolate" else "the last training time"
        why = f"{best} came nearest to {times} when left out (W1: {listed})"
        if ruled_out:
            why += f"; {', '.join(ruled_out)} was not tried so far ahead"
        return best, why

    def _trial(self, task: str) -> dict[str, float]:
        """Nested leave-one-time-out: states, kernel and bandwidth are chosen anew each time."""
        if task in self._scores:
            return self._scores[task]
        n = self.times_.size
        left_out = range(1, n - 1) if task == "interpolate" else [n - 1]
        names = METHODS if task == "interpolate" else ("flow", "displacement", "persistence")
        scores: dict[str, list[float]] = {name: [] for name in names}
        if n >= 3:
            for k in left_out:
                self._try_time(k, task, scores)
        self._scores[task] = {name: float(np.mean(w)) for name, w in scores.items() if w}
        return self._scores[task]

    def _try_time(self, k: int, task: str, scores: dict[str, list[float]]) -> None:
        rng = np.random.default_rng([self.seed, 2, k])
        keep = [j for j in range(self.times_.size) if j != k]
        wanted = min(self._parts[0].seen.n_states, _TRIAL_STATES)
        inner = PointInterpolator(n_states=wanted, n_partitions=1, seed=self.seed)
        inner.fit(self.times_[keep], [self._clouds[j] for j in keep])
        x = self._clouds[k]
        truth = WeightedPoints(x, np.full(x.shape[0], 1 / x.shape[0]))
        time = float(self.times_[k])
        for name in scores:
            try:
                guess = inner._one(time, name, "", most=_TRIAL_POINTS).points
            except ConvergenceError:
                # A method that fails on the training times is never the one to choose.
                scores[name].append(np.inf)
                continue
            scores[name].append(wasserstein1(guess, truth, most=_TRIAL_POINTS, rng=rng))


def _second(item: tuple[str, float]) -> float:
    return item[1]
