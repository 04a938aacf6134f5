"""The profile likelihood of beta, computed outwards from a fit with warm starts.

At each `beta` the other parameters are fitted again, starting from the last one. A long jump would
often not converge, and a value that did not converge excludes nothing: so the steps are small, and
an end of an interval is closed only by a converged point outside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.learn.likelihood.frozen import FrozenObjective
from thalweg.learn.likelihood.objective import IndependentObjective, Objective
from thalweg.learn.likelihood.optimize import Minimum
from thalweg.learn.likelihood.priors import Prior
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.likelihood.sparse.flow import Point
from thalweg.learn.likelihood.sparse.search import minimise_likelihood
from thalweg.learn.limits import exhausted
from thalweg.status import Status

RANGE = (1e-4, 1e2)
"""Range of `beta T` outside which data carry no information: no spread, or complete mixing."""
_STEP = (0.02, 0.8, 1.6)
"""Least first, greatest first, and greatest step in `log beta`."""
_MOST_STEPS = 30
"""Largest number of points on each side."""
_ITERATIONS = (30, 60)
"""Iterations of a search from the predicted start, and of one from the last point if it fails."""
_PLATEAU = 0.04
"""Range of three values below which the limit of a vanishing beta counts as reached."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The fall of the log likelihood below its best at each `log beta`, in increasing order."""

    log_betas: Array
    falls: Array
    sure: NDArray[np.bool_]
    """Whether the search converged, per point."""
    thetas: Array
    """The other parameters, one row per point."""

    def interval(self, drop: float) -> tuple[float, float]:
        """Both ends of the interval within a fall of `drop`; 0 and infinity if not closed."""
        lower, upper = hull(self.log_betas, self.falls, self.sure, drop)
        return float(np.exp(lower)), float(np.exp(upper))


def hull(x: Array, fall: Array, sure: NDArray[np.bool_], drop: float) -> tuple[float, float]:
    """Points where `fall` last reaches `drop` on both sides; infinite if not closed.

    >>> x = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    >>> hull(x, x**2, np.ones(5, bool), 2.25)
    (-1.5, 1.5)
    >>> hull(x, x**2, x < 2.0, 2.25)
    (-1.5, inf)
    """
    keep = sure | (fall < drop)  # a search that did not converge excludes nothing
    x, fall = x[keep], fall[keep]
    inside = np.flatnonzero(fall < drop)
    if not inside.size:
        return -np.inf, np.inf
    first, last = int(inside[0]), int(inside[-1])
    lower = _crossing(x, fall, first, first - 1, drop) if first > 0 else -np.inf
    upper = _crossing(x, fall, last, last + 1, drop) if last < x.size - 1 else np.inf
    return lower, upper


def _crossing(x: Array, fall: Array, inner: int, outer: int, drop: float) -> float:
    """The point where the root of the fall, nearly linear, reaches that of `drop`."""
    near, far, goal = np.sqrt([max(fall[inner], 0.0), fall[outer], drop])
    share = (goal - near) / max(far - near, 1e-12)
    return float(x[inner] + share * (x[outer] - x[inner]))


def walk_profile(fit: LikelihoodFit, *, drop: float) -> Profile:
    """The profile from the fit outwards, until it has fallen by `drop` or the range ends.

    Parameters
    ----------
    fit : LikelihoodFit
        A fit that learned beta.
    drop : float
        The fall of the log likelihood at which the profile stops.
    """
    walk = _Walk(fit, drop)
    walk.begin()
    for side in (1, -1):
        walk.go(side)
    rows = sorted(walk.rows, key=lambda row: row.log_beta)
    log_betas, value, converged, thetas = (np.array(column) for column in zip(*rows, strict=True))
    return Profile(log_betas, value - value.min(), converged, thetas)


class _Row(NamedTuple):
    log_beta: float
    value: float
    converged: bool
    theta: Array


class _Near(NamedTuple):
    """The part of the last point that the sparse search reuses."""

    point: Point | None
    information: Array


class _Walk:
    """The prior on beta is left out, so that the profile is the data's."""

    def __init__(self, fit: LikelihoodFit, drop: float) -> None:
        self.fit, self.drop = fit, drop
        index = fit.model.beta_index
        keep = np.arange(fit.model.n_parameters) != index
        prior = fit.prior
        base = prior.base[np.ix_(keep, keep)]
        self.prior = Prior(prior.strength, prior.shape, base, prior.mean[keep], prior.scale)
        self.centre, self.rest = float(fit.theta[index]), fit.theta[keep]
        # How the rest follows beta, to first order.
        self.slope = fit.covariance[keep, index] / max(fit.covariance[index, index], 1e-300)
        span = float(fit.times[-1] - fit.times[0])
        self.ends = tuple(float(np.log(b / span)) for b in RANGE)
        self.rows: list[_Row] = []

    def begin(self) -> None:
        found = self.at(self.centre, self.rest, None, _ITERATIONS[1])
        if found is None:  # the fit itself was computed there
            self.rows.append(_Row(self.centre, np.inf, False, self.rest))
            return
        self.first = found
        converged = found.status is Status.CONVERGED
        self.rows.append(_Row(self.centre, found.value, converged, found.theta))

    def go(self, side: int) -> None:
        """Outwards on one side."""
        if not np.isfinite(self.rows[0].value):
            return
        end = self.ends[0] if side < 0 else self.ends[1]
        step = float(np.clip(1.2 * self.fit.log_beta_stderr, *_STEP[:2]))
        here, now, slope = self.centre, self.first, self.slope
        shortened = 0
        recent = [self.rows[0].value]
        for _ in range(_MOST_STEPS):
            if side * (end - here) <= 1e-9 or exhausted():
                return
            new = here + side * min(step, side * (end - here))
            found = self.search(new, now, now.theta + (new - here) * slope)
            converged = found is not None and found.status is Status.CONVERGED
            if not converged and shortened < 2:
                step, shortened = 0.4 * step, shortened + 1
                continue
            if found is None:
                return
            slope = 0.7 * (found.theta - now.theta) / (new - here)
            here, now = new, found
            self.rows.append(_Row(new, found.value, converged, found.theta))
            rise = found.value - min(row.value for row in self.rows)
            if converged and rise > self.drop:
                return
            recent = [*recent[-2:], found.value]
            flat = len(recent) == 3 and max(recent) - min(recent) < _PLATEAU
            if side < 0 and new < end + np.log(300.0) and flat:
                return
            step = min(1.35 * step, _STEP[2])

    def search(self, log_beta: float, now: Minimum, predicted: Array) -> Minimum | None:
        found = self.at(log_beta, predicted, now, _ITERATIONS[0])
        if found is None or found.status is not Status.CONVERGED or found.value > now.value + 15.0:
            again = self.at(log_beta, now.theta, now, _ITERATIONS[1])
            if found is None or (again is not None and again.value < found.value):
                return again
        return found

    def at(
        self, log_beta: float, start: Array, now: Minimum | None, iterations: int
    ) -> Minimum | None:
        objective = self.objective(log_beta)
        if objective is None:
            return None
        near = None if now is None else _Near(now.point, now.evaluation.information)
        return minimise_likelihood(
            objective, self.prior, start, self.fit.mesh,
            max_iterations=iterations, tolerance=1e-2, near=near,
        )  # fmt: skip

    def objective(self, log_beta: float) -> Objective | None:
        fit = self.fit
        model = replace(fit.model, fixed_beta=float(np.exp(log_beta)))
        if fit.settings.observation == "tracked":
            tracked = fit.increments(fit.counts).reweighted(fit.theta, fit.mesh)
            if tracked is None:
                return None
            return replace(tracked, model=replace(model, times=tracked.model.times))
        if fit.settings.discretization == "frozen":
            return FrozenObjective(model, fit.counts)
        return IndependentObjective(model, fit.counts, fit.noise, fit.totals)
