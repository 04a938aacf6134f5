"""`PointInterpolator`: the cloud at a time that was not observed, from the clouds around it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array, Progress
from thalweg.errors import InputError, MissingDependencyError, ThalwegError
from thalweg.points.baselines import BASELINES
from thalweg.points.coupling import MOST_COUPLED
from thalweg.points.goodness import GoodnessOfFit, joined
from thalweg.points.landscape import PointLandscape
from thalweg.points.methods import CURVED, FORECASTS, METHODS, MOVERS, Guess, Methods
from thalweg.points.relaxation import MOST_STATES, RelaxationFit
from thalweg.points.trials import Caps, Choice, Trial, choose, combine, run_trial
from thalweg.snapshots import PointSnapshots, WeightedPoints
from thalweg.snapshots.clouds import as_clouds, default_states

Method = Literal[
    "auto", "flow", "growing", "geodesic", "bridge", "displacement", "curved", "unbalanced",
    "landscape",
]  # fmt: skip
ForecastMethod = Literal["auto", "flow", "growing", "displacement", "landscape", "persistence"]

_INSIDE = Caps(points=1000, coupled=2000, states=30)
"""Trials between snapshots, of a dozen methods at every inner time."""
_AHEAD = Caps(points=4000, coupled=MOST_COUPLED, states=MOST_STATES)
"""Trials of forecasts: couplings and states as in the forecast itself, distances of as many points
as exact W1 takes in seconds."""
_MOST_TRIALS = 4
"""Largest number of trials of a forecast."""
_SAME_REACH = 0.25
"""Difference of the logarithms of horizons up to which a trial counts as looking as far ahead."""
_SHOWN = ("nearest snapshot", "mixture of neighbours")
"""Guesses without a model that accompany every interpolation."""
_MCCANN = "displacement midpoint (McCann)"


@dataclass(frozen=True, eq=False)
class Interpolation:
    """The cloud at a time, how it was made, and evidence for and against it."""

    time: float
    points: WeightedPoints
    method: str
    why: str
    probabilities: Array | None = None
    """Probabilities of the states of the first partition; `None` if individuals are moved."""
    goodness: GoodnessOfFit | None = None
    """The test of the model behind the cloud. For methods without one, `"auto"` tests one potential
    for all times, and `None` is given otherwise."""
    warning: str = ""
    """Why the cloud should not be trusted; empty if nothing speaks against it."""
    w1_interval: tuple[float, float] | None = None
    """90 % prediction interval of the W1 to the truth, from the trials; needs two of them."""
    baselines: dict[str, WeightedPoints] = field(default_factory=dict)
    """Guesses without a model for the same time."""
    scores: dict[str, float] = field(default_factory=dict)
    """Mean W1 of every method in the trials."""


class PointInterpolator:
    """Interpolates and forecasts clouds of points from snapshots of them.

    Parameters
    ----------
    n_states : int, optional
        Number of states of each partition; see `Snapshots.from_points`.
    n_neighbors : int, optional
        Number of neighbours of each state.
    n_partitions : int
        Number of partitions, from k-means with different seeds, to average over.
    seed : int
        Seed of every random number generator used.
    progress : callable, optional
        Called as `progress(what, done, total)`.

    Attributes
    ----------
    partitions_ : tuple of PointSnapshots
        The snapshots on the states of each partition.
    fits_ : tuple of RelaxationFit
        The flow fitted on each partition.
    landscape_ : PointLandscape
        The potential on R^d.
    scores_ : dict
        Mean W1 of each method over the training times left out in turn.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(3 * np.exp(-t), 0.5, size=(80, 2)) for t in (0.0, 1.0, 3.0)]
    >>> model = PointInterpolator(n_states=15, n_partitions=1).fit([0, 1, 3], clouds)
    >>> guess = model.interpolate(0.5, method="displacement")
    >>> guess.points.points.shape, guess.warning, sorted(guess.baselines)[0]
    ((80, 2), '', 'displacement midpoint (McCann)')
    """

    def __init__(
        self,
        *,
        n_states: int | None = None,
        n_neighbors: int | None = None,
        n_partitions: int = 3,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.n_states = n_states
        self.n_neighbors = n_neighbors
        self.n_partitions = n_partitions
        self.seed = seed
        self.progress = progress

    @checked
    def fit(self, times: ArrayLike, points: Iterable[ArrayLike]) -> PointInterpolator:
        """Partition the clouds into states; models are fitted on first use.

        Parameters
        ----------
        times : array
            Increasing times.
        points : iterable of arrays
            One cloud per time, one row per point.
        """
        t = _checks.as_times(times, minimum=2)
        clouds = as_clouds(points, t)
        wanted = self.n_states or default_states(sum(x.shape[0] for x in clouds))
        if wanted > MOST_STATES:
            raise InputError(
                f"n_states is {wanted}; interpolation takes {MOST_STATES} at most: use fewer, and "
                "the points of each state keep the detail."
            )
        self._methods = Methods(
            t, clouds, n_states=wanted, n_neighbors=self.n_neighbors,
            n_partitions=self.n_partitions, seed=self.seed, progress=self.progress,
        )  # fmt: skip
        self.times_, self._clouds, self._wanted = t, clouds, wanted
        self._choices: dict[float | None, Choice] = {}
        return self

    @property
    def partitions_(self) -> tuple[PointSnapshots, ...]:
        return tuple(part.seen for part in self._methods.parts)

    @property
    def fits_(self) -> tuple[RelaxationFit, ...]:
        return tuple(part.fit for part in self._methods.parts)

    @property
    def landscape_(self) -> PointLandscape:
        return self._methods.landscape

    @property
    def scores_(self) -> dict[str, float]:
        return self._choice().scores if self.times_.size > 2 else {}

    # ---------------------------------------------------------------- answers

    @checked
    def interpolate(self, time: float, *, method: Method = "auto") -> Interpolation:
        """The cloud at a time between the first and the last snapshot.

        Parameters
        ----------
        time : float
            The time of the cloud.
        method : str
            `"flow"`: the fitted gradient flow. `"growing"`: with births and deaths, one rate per
            state; from three snapshots on, and tried only if the flow is rejected. `"bridge"`: its
            walk conditioned on the two snapshots around `time`. `"geodesic"`: the shortest path in
            `W_K` between them. `"displacement"`: individuals on straight lines along the exact
            coupling; `"curved"`: bent by the next snapshots and pulled towards the observed cloud,
            as far as the trials prefer; `"unbalanced"`: with births and deaths. `"landscape"`:
            along the potential on R^d, forwards from the snapshot before and backwards from the one
            after. `"auto"` tries all of them on the inner training times, each left out in turn (30
            states, couplings of 2000 individuals, distances of 1000 points at most), and takes the
            best, or a mixture of the best few; with two training times it is the flow, the only one
            with a clock of its own.
        """
        low, high = self.times_[0], self.times_[-1]
        if not low <= time <= high:
            raise InputError(
                f"time is {time:g}, outside the snapshots from {low:g} to {high:g}; use forecast."
            )
        if method == "auto" and self.times_.size < 3:
            why = (
                "two snapshots leave no inner time to try methods on: the flow, which has a clock "
                "of its own, is the default"
            )
            return self._wrap(time, self._methods.guess("flow", time), "flow", why)
        if method != "auto":
            return self._asked(time, method, METHODS)
        return self._chosen(time, self._choice())

    @checked
    def forecast(self, time: float, *, method: ForecastMethod = "auto") -> Interpolation:
        """The cloud at a time after the last snapshot.

        Parameters
        ----------
        time : float
            The time of the cloud.
        method : str
            `"flow"`, `"growing"` (with births and deaths), `"displacement"` (straight on),
            `"landscape"` (all snapshots pushed along the potential on R^d, and pooled) or
            `"persistence"` (no movement). `"auto"` forecasts training times from the times before
            them, about as far ahead as requested and with as many individuals (distances of at most
            4000), and takes the best, or a mixture of the best few; `why` gives how far the trials
            looked ahead. With two training times it is the landscape.
        """
        last = self.times_[-1]
        if not last <= time < np.inf:
            raise InputError(
                f"time is {time:g}; a forecast needs a finite time, not before the last snapshot "
                f"at {last:g}: use interpolate for earlier times."
            )
        if method != "auto":
            return self._asked(time, method, FORECASTS)
        if self.times_.size < 3:
            name, why = "flow", "two snapshots leave nothing to try methods on"
            if self._methods.available(("landscape",)):
                name = "landscape"
            return self._wrap(time, self._methods.guess(name, time), name, why)
        return self._chosen(time, self._choice(float(time - last)))

    # ---------------------------------------------------------------- how

    def _asked(self, time: float, method: str, known: tuple[str, ...]) -> Interpolation:
        """The cloud by the requested method."""
        if method not in known:
            raise InputError(f"method is {method!r}; choose 'auto' or one of {', '.join(known)}.")
        name = self._curved() if method == "curved" else method
        return self._wrap(time, self._methods.guess(name, time), method, f"{method}, as requested")

    def _chosen(self, time: float, choice: Choice) -> Interpolation:
        try:
            guess = combine(choice, lambda name: self._methods.guess(name, time))
        except ThalwegError as error:
            guess, choice = self._instead(choice, time, error)
        return self._wrap(time, self._tested(guess), choice.name, choice.why, choice)

    def _instead(self, choice: Choice, time: float, error: ThalwegError) -> tuple[Guess, Choice]:
        """The best single method that works, where the choice failed on all snapshots."""
        for name in sorted(choice.scores, key=choice.scores.__getitem__):
            if (name,) == choice.parts or not np.isfinite(choice.scores[name]):
                continue
            with suppress(ThalwegError):
                guess = self._methods.guess(name, time)
                why = f"{choice.why}; on all snapshots this failed ({error}), so {name} was taken"
                return guess, replace(
                    choice, parts=(name,), weights=np.ones(1), towards=False, why=why, interval=None
                )
        raise error

    def _tested(self, guess: Guess) -> Guess:
        """A guess without a model, with the test of one potential for all times.

        It needs no potential, but whoever reads it should know whether the snapshots have one.
        """
        if guess.goodness is not None or not self._methods.available(("landscape",)):
            return guess
        against = self._methods.against_one_potential
        if against:
            against += "; the cloud was made without that assumption"
        test, warning = self._methods.fixed.goodness_, joined(guess.warning, against)
        return replace(guess, goodness=test, warning=warning)

    def _wrap(
        self, time: float, guess: Guess, method: str, why: str, choice: Choice | None = None
    ) -> Interpolation:
        interval, scores = (choice.interval, dict(choice.scores)) if choice else (None, {})
        return Interpolation(
            float(time), guess.points.pruned(), method, why, guess.probabilities, guess.goodness,
            guess.warning, interval, self._baselines(time), scores,
        )  # fmt: skip

    def _baselines(self, time: float) -> dict[str, WeightedPoints]:
        rng = np.random.default_rng([self.seed, 3])
        seen = self._methods.parts[0].seen
        found = {name: BASELINES[name](seen, time, rng) for name in _SHOWN}
        with suppress(MissingDependencyError):
            found[_MCCANN] = self._methods.guess("displacement", time).points
        return found

    def _curved(self) -> str:
        """The curvature and the pull that the trials prefer, chosen separately."""
        if self.times_.size < 4:
            return CURVED
        scores = self._choice().scores
        bent = [name for name in scores if name.startswith(("curved", "pulled"))]
        return min(bent, key=scores.__getitem__)

    def _choice(self, ahead: float | None = None) -> Choice:
        """The choice of `"auto"` between snapshots, or for a forecast `ahead` of the last one."""
        if ahead in self._choices:
            return self._choices[ahead]
        if ahead is None:
            trials, where = self._inner_trials(), "inner training times"
        else:
            pairs = self._reaches(ahead)
            names = self._methods.worthwhile(FORECASTS)
            trials = [self._try(list(range(k + 1)), j, names, _AHEAD) for k, j in pairs]
            reach = sorted({f"{self.times_[j] - self.times_[k]:.3g}" for k, j in pairs})
            where = (
                f"later training times, {' and '.join(reach)} ahead where {ahead:.3g} is needed,"
            )
        self._choices[ahead] = choose(trials, where)
        return self._choices[ahead]

    def _inner_trials(self) -> list[Trial]:
        """Every inner time left out in turn; states, kernel and fits are made again each time."""
        n = self.times_.size
        names = self._methods.worthwhile(tuple(name for name in METHODS if name != "curved"))
        bent = [name for name, how in MOVERS.items() if how.curvature or how.pull]
        if n < 4:
            bent = [CURVED]
        return [
            self._try([j for j in range(n) if j != k], k, (*names, *bent), _INSIDE)
            for k in range(1, n - 1)
        ]

    def _reaches(self, ahead: float) -> list[tuple[int, int]]:
        """Pairs of a last time and a later one about `ahead` of it, for trials of forecasts."""
        t = self.times_
        pairs = list(combinations(range(1, t.size), 2))
        off = [abs(np.log((t[j] - t[k]) / max(ahead, 1e-300))) for k, j in pairs]
        most = max(min(off) + 1e-9, _SAME_REACH)
        near = [pair for pair, gap in zip(pairs, off, strict=True) if gap <= most]
        return near[-_MOST_TRIALS:]

    def _try(self, keep: list[int], k: int, names: tuple[str, ...], caps: Caps) -> Trial:
        if self.progress is not None:
            self.progress(f"trial at time {self.times_[k]:g}", k, self.times_.size)
        inner = Methods(
            self.times_[keep], tuple(self._clouds[j] for j in keep),
            n_states=min(self._wanted, caps.states), seed=self.seed, most=caps.coupled,
        )  # fmt: skip
        rng = np.random.default_rng([self.seed, 2, k])
        time = float(self.times_[k])
        return run_trial(inner, inner.available(names), time, self._clouds[k], caps.points, rng)
