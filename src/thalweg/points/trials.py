"""Trying methods on observed times: scores, mixtures of the best, and an interval for W1.

Each trial leaves a time out (or, for forecasts, all later times) and runs the whole procedure on
the rest. The choice is the method or mixture with the least mean W1. That score is optimistic,
since it made the choice; the interval uses scores of what the *other* trials would have chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.stats import t as student

from thalweg._types import Array
from thalweg.errors import ThalwegError
from thalweg.points.baselines import even, pooled
from thalweg.points.coupling import coupling, thinned, wasserstein1
from thalweg.points.goodness import joined
from thalweg.points.methods import Guess, Methods
from thalweg.snapshots import WeightedPoints

Recipe = tuple[tuple[str, ...], bool]
"""Methods, and whether the first is moved towards the second instead of mixed with it."""
Table = dict[Recipe, list[float]]
"""The W1 of each recipe in each trial."""

_BEST = 3
"""Number of methods that mixtures are made of."""
_WORTH = 0.99
"""Score, relative to a single method, that a mixture must reach."""
_USUAL_SPREAD, _USUAL_WEIGHT = 0.35, 3
"""Usual standard deviation of the logarithm of W1 between times, and the number of trials that it
counts for."""


@dataclass(frozen=True)
class Caps:
    """How large a trial may be: points in its distances, individuals per coupling, and states."""

    points: int
    coupled: int
    states: int


@dataclass(frozen=True, eq=False)
class Trial:
    """The clouds of several methods for an observed time, and their distances to it."""

    truth: WeightedPoints
    clouds: dict[str, WeightedPoints]
    scores: dict[str, float]
    most: int
    """Largest number of points of a method's cloud."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A method or a combination, why, its scores, and an interval for the W1 to come."""

    parts: tuple[str, ...]
    weights: Array
    towards: bool
    scores: dict[str, float]
    why: str
    interval: tuple[float, float] | None

    @property
    def name(self) -> str:
        return (" halfway to " if self.towards else " + ").join(self.parts)


def run_trial(
    inner: Methods, names: tuple[str, ...], time: float, truth: Array, most: int,
    rng: np.random.Generator,
) -> Trial:  # fmt: skip
    """Every method's cloud at `time`, and its distance to what was seen there.

    Clouds are thinned to `most` points, not to the number that was seen: pooling several snapshots
    gains by having more.
    """
    seen = even(thinned(truth, most, rng))
    clouds, scores = {}, {}
    for name in names:
        try:
            guess = inner.guess(name, time).points
        except ThalwegError:
            # A method that fails on the training times is never the one to choose.
            scores[name] = np.inf
            continue
        if len(guess.weights) > most:
            guess = even(guess.resample(most, rng=rng))
        clouds[name] = guess
        scores[name] = wasserstein1(guess, seen)
    return Trial(seen, clouds, scores, most)


def choose(trials: list[Trial], where: str) -> Choice:
    """The method or mixture of the best few that came nearest over all trials."""
    names = [name for name in trials[0].scores if all(name in t.scores for t in trials)]
    mean = {name: float(np.mean([t.scores[name] for t in trials])) for name in names}
    table: Table = {((name,), False): [t.scores[name] for t in trials] for name in names}
    ranked = sorted((n for n in names if np.isfinite(mean[n])), key=lambda n: mean[n])[:_BEST]
    several = [(group, False) for k in (2, 3) for group in combinations(ranked, k)]
    if len(ranked) > 1:
        several.append(((ranked[0], ranked[1]), True))
    for group, towards in several:
        table[group, towards] = []
        for t in trials:
            cloud = _joined([t.clouds[name] for name in group], _shares(group, mean), towards)
            if len(cloud.weights) > 2 * t.most:
                cloud = even(cloud.resample(2 * t.most, rng=np.random.default_rng(0)))
            table[group, towards].append(wasserstein1(cloud, t.truth))
    parts, towards = best = _least(table, range(len(trials)))
    shares = _shares(parts, mean)
    listed = ", ".join(f"{n} {w:.3g}" for n, w in sorted(mean.items(), key=lambda item: item[1]))
    score = float(np.mean(table[best]))
    found = Choice(parts, shares, towards, mean, "", _interval(table, len(trials)))
    why = f"{found.name} came nearest to {where} when left out, W1 {score:.3g} (singly: {listed})"
    if len(parts) > 1 and not towards:
        given = ", ".join(f"{w:.2f} {n}" for n, w in zip(parts, shares, strict=True))
        why += f"; weights {given}"
    return replace(found, why=why)


def combine(choice: Choice, guess: Callable[[str], Guess]) -> Guess:
    """The cloud of a choice, with the tests and warnings of every model in it."""
    parts = [guess(name) for name in choice.parts]
    if len(parts) == 1:
        return parts[0]
    cloud = _joined([part.points for part in parts], choice.weights, choice.towards)
    tested = [part.goodness for part in parts if part.goodness is not None]
    worst = min(tested, key=lambda test: test.p_value if test.dof > 0 else 1.0, default=None)
    warning = joined(*dict.fromkeys(part.warning for part in parts))
    return Guess(cloud, worst, warning, parts[0].probabilities)


def _joined(clouds: list[WeightedPoints], shares: Array, towards: bool) -> WeightedPoints:
    """A mixture, or each individual of one cloud moved halfway to its partner in the other."""
    if not towards:
        return pooled(clouds, shares)
    first, second = clouds
    i, j, mass = coupling(first.points, second.points, (first.weights, second.weights))
    return WeightedPoints(0.5 * (first.points[i] + second.points[j]), mass / mass.sum())


def _shares(group: tuple[str, ...], mean: dict[str, float]) -> Array:
    inverse = np.array([1 / max(mean[name], 1e-300) ** 2 for name in group])
    return np.asarray(inverse / inverse.sum())


def _least(table: Table, which: range | list[int]) -> Recipe:
    """The entry with the least mean over some trials; a single method unless a mixture gains."""

    def cost(key: Recipe) -> float:
        mean = float(np.mean([table[key][k] for k in which]))
        return _WORTH * mean if len(key[0]) == 1 else mean

    return min(table, key=cost)


def _interval(table: Table, n: int, level: float = 0.9) -> tuple[float, float] | None:
    """A prediction interval of the next W1, log-normal, from choices made without each trial.

    Two trials that happen to agree do not make it narrow: their spread is pooled with a usual one.
    """
    others = [[j for j in range(n) if j != k] or [k] for k in range(n)]
    scores = [table[_least(table, which)][k] for k, which in enumerate(others)]
    logs = np.log(np.maximum(scores, 1e-300))
    if not np.isfinite(logs).all():
        return None
    middle, dof = float(logs.mean()), _USUAL_WEIGHT + n - 1
    square = (_USUAL_WEIGHT * _USUAL_SPREAD**2 + float(((logs - middle) ** 2).sum())) / dof
    reach = np.sqrt(square * (1 + 1 / n)) * float(student.ppf(0.5 + level / 2, dof))
    return float(np.exp(middle - reach)), float(np.exp(middle + reach))
