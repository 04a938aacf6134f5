"""The search along the mean-field chain: all intervals at once, or else a horizon that grows.

The rates of every interval are those of the infinite population, which the parameters push along
the whole chain: over many intervals the likelihood has many optima, over one it has one. Where
holding the population near the counts and letting it go (`nudging`) does not lead to parameters
that describe all intervals, a crowd of parameters is gathered there (`crowd`); where the crowd
gathers in the wrong place, particles are carried along a horizon that grows (`particles`). With
many states, or where the particles fail too, the first `k` intervals are fitted, `k` growing, each
stage from the last one's optimum, with probes where it ends at a kink, and checked by its deviance.
A stage that fails is tried again over a shorter step; where the step is one interval already, draws
from the last stage's posterior, some brought back to its optimum's level, give other starts, and a
few distinct optima are carried on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.learn.likelihood.chain.crowd import gathered, held_law
from thalweg.learn.likelihood.chain.kinks import certify
from thalweg.learn.likelihood.chain.nudging import let_go
from thalweg.learn.likelihood.chain.particles import carry
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.optimize import Penalty, minimise
from thalweg.learn.likelihood.tracked import Judgement, TrackedObjective
from thalweg.status import Status

_BEAM = 4  # largest number of optima carried to the next stage
_HOPELESS = 12.0  # an optimum whose log likelihood is this far below the best is dropped
_SUSPICIOUS = 2.0  # standard deviations of the deviance above which other starts are tried
_SURPRISING = 3.0  # the same for the intervals that a stage added
_SHARE = 4  # a stage adds at most 1/4 of the horizon: larger steps miss the right optimum
_DRAWS = 90
_WIDTHS = (0.3, 1.0, 3.0)
_PROJECTED = 24
_SHORT_DRAWS, _DRAWS_NEARBY = 10, 24
_POLISHED = 5
_ROUNDS = 3
_SETTLING = 0.1  # largest share of the work spent on draws around an optimum
_PARABOLIC = 0.3  # deviation from a parabola, per parameter, that draws may show
_GAIN = 0.1  # smallest gain of log likelihood that is worth another round
_LONGEST_DRAW = 1.0  # in units of the potential's scale; for log beta, of one
_FOLLOWED = 8
_PATIENCE = 3  # consecutive horizons without a valid start before the search stops
_VALUE = 0.3  # cost of a chain without derivatives, relative to one with them
_FEW_STATES = 20  # largest number of states at which a crowd of parameters is dense enough
_PARTICLE_WIDTH, _PARTICLE_WIDEST = 3.0, 1.0  # of the first particles, around the pulled optimum
_LEAST_WIDTH = 0.03  # smallest width of the first particles, in units of each parameter
_LEAST_WIDTH_BETA = 0.5  # the same for log beta: a small one is far from the pulled optimum's
_CARRIED = 5.0  # most work spent on particles, relative to that of the search
_POLISHED_PARTICLES = 3
_MANY = 24  # number of parameters above which the cost of probes is counted
_EVALUATIONS = 3000
"""Largest number of full chains in a search on six states; fewer where each costs more."""


def _suspicious(now: Judgement, before: Judgement) -> bool:
    """Whether the intervals that a stage added are described worse than by a true model.

    An excess that was there before, and that no other start could lower, is not searched for again.
    """
    if now.rejects(_SUSPICIOUS) and not before.rejects(_SUSPICIOUS):
        return True
    added = max(now.expected - before.expected, 0.0)
    return now.deviance - before.deviance > added + _SURPRISING * np.sqrt(2.0 * added + 2.0)


@dataclass(frozen=True, eq=False)
class _Pull:
    """The prior of a stage: the fit's own, and a pull towards the start that fades with `k`."""

    base: Penalty
    centre: Array
    precision: Array

    @property
    def units(self) -> Array:
        return self.base.units

    def quadratic(self, theta: Array) -> tuple[float, Array, Array]:
        value, gradient, hessian = self.base.quadratic(theta)
        away = theta - self.centre
        pulled = self.precision * away
        return (
            value + 0.5 * float(away @ pulled),
            gradient + pulled,
            hessian + np.diag(self.precision),
        )


class _Optimum(NamedTuple):
    theta: Array
    curvature: Array
    judgement: Judgement

    @property
    def merit(self) -> float:
        return self.judgement.merit


class Growth(NamedTuple):
    """Where the search ended: the best parameters, and how many intervals they describe."""

    theta: Array
    n_intervals: int
    n_iterations: int
    rejected: bool
    """Whether not even this horizon passes its check."""
    interrupted: bool = False


@dataclass
class _Search:
    whole: TrackedObjective
    prior: Penalty
    starts: list[Array]
    mesh: Mesh
    rng: np.random.Generator
    limit: float
    spent: float = 0.0
    n_iterations: int = 0
    interrupted: bool = False
    stages: dict[int, TrackedObjective] = field(default_factory=dict)

    @property
    def n_intervals(self) -> int:
        return self.whole.counts.shape[0] - 1

    def stage(self, k: int) -> TrackedObjective:
        if k not in self.stages:
            self.stages[k] = self.whole.shortened(k)
        return self.stages[k]

    def pull(self, k: int) -> _Pull:
        centre = self.starts[0]
        model: FlowModel = self.whole.model
        precision = self.prior.units**-2.0
        precision[model.initial_slice] *= 0.05
        if k == self.n_intervals:
            precision = precision * 0.0
        return _Pull(self.prior, centre, precision / (1.0 + 0.2 * (k - 1) ** 2))

    def pay(self, k: int, evaluations: float) -> None:
        self.spent += evaluations * k / self.n_intervals

    def growth(self, best: _Optimum, k: int) -> Growth:
        rejected = best.judgement.rejects() and not self.interrupted
        return Growth(best.theta, k, self.n_iterations, rejected, self.interrupted)

    def polish(
        self, k: int, theta: Array, iterations: int, tolerance: float = 1e-3, *, probe: bool = False
    ) -> _Optimum:
        """The optimum near `theta`; with `probe`, kinks are not taken for one."""
        stage, prior = self.stage(k), self.pull(k)
        weighted = stage.reweighted(theta, self.mesh)
        curvature = np.diag(self.prior.units**-2.0)
        if weighted is not None:
            search = partial(
                minimise, weighted, prior,
                mesh=self.mesh, max_iterations=iterations, tolerance=tolerance,
            )  # fmt: skip
            found = search(theta)
            if found is not None and probe and not found.status and self.spent < self.limit:
                found = certify(weighted, prior, found, self.mesh, search)
                self.pay(k, _VALUE * 8 * theta.size * (theta.size > _MANY))
            if found is not None:
                theta = found.theta
                curvature = found.evaluation.curvature + prior.quadratic(theta)[2]
                self.n_iterations += found.n_iterations
                self.pay(k, found.n_iterations)
                if found.status is Status.INTERRUPTED:
                    self.interrupted, self.limit = True, 0.0
        return _Optimum(theta, curvature, stage.judge(theta, self.mesh))

    def advance(self, k: int, beam: list[_Optimum]) -> list[_Optimum]:
        """The optima of a longer horizon, best first."""
        out = []
        for optimum in beam:
            new = self.polish(k, optimum.theta, 12, probe=True)
            if new.judgement.rejects() and self.spent < self.limit:
                again = self.polish(k, new.theta, 25)
                new = again if again.merit < new.merit else new
            out.append(new)
        return sorted(out, key=lambda o: o.merit)

    def rescue(self, k: int, last: int, before: list[_Optimum]) -> list[_Optimum]:
        """Optima from draws of the last horizon's posterior, and from other starts."""
        stage = self.stage(k)
        candidates: list[tuple[float, Array]] = []

        def judge(theta: Array) -> None:
            candidates.append((stage.judge(theta, self.mesh).merit, theta))
            self.pay(k, _VALUE)

        for optimum in before:
            for width in _WIDTHS:
                for theta in self.draws(optimum, width, _DRAWS // (3 * len(before))):
                    judge(theta)
        if last:
            nearest = before[:2]
            for optimum in nearest:
                for width in (1.0, 2.0, 4.0):
                    for theta in self.draws(optimum, width, _PROJECTED // (3 * len(nearest))):
                        judge(self.polish(last, theta, 5, 0.5).theta)
        for start in self.starts[1:] if k <= 15 else []:
            theta = start
            for h in sorted({min(2, k), max(1, k // 2), k}):
                theta = self.polish(h, theta, 15).theta
            judge(theta)
        candidates.sort(key=lambda c: c[0])
        return [
            self.polish(k, theta, 20)
            for merit, theta in candidates[:_FOLLOWED]
            if np.isfinite(merit)
        ]

    def settled(self, best: _Optimum) -> _Optimum:
        """The optimum, or a better one among the draws around it.

        Where nearly empty states fill and empty in turns, the likelihood has many optima within one
        posterior width. A few short draws show whether it does: they do not rise like a parabola.
        """
        k, size = self.n_intervals, best.theta.size
        most = self.spent + _SETTLING * self.limit
        for _ in range(_ROUNDS):
            tried = self.judged(best, 0.5, _SHORT_DRAWS)
            merits = np.array([merit for merit, _ in tried]) - best.merit
            parabolic = abs(np.median(merits) - 0.125 * size) < _PARABOLIC * size
            if (parabolic and merits.min() > 0.0) or self.spent > most:
                break
            tried = sorted(tried + self.judged(best, 1.0, _DRAWS_NEARBY), key=lambda c: c[0])
            found = [self.polish(k, theta, 15) for _, theta in tried[:_POLISHED]]
            better = min(found, key=lambda optimum: optimum.merit)
            if not better.merit < best.merit - _GAIN:
                break
            best = better
        return best

    def from_crowd(self, theta: Array) -> _Optimum | None:
        """The optimum of the whole chain where a crowd around a pulled population's gathers."""
        k = self.n_intervals
        found = gathered(self.whole, self.prior, theta, self.mesh, rng=self.rng)
        if found is None:
            return None
        self.pay(k, _VALUE * found[1])
        return self.settled(self.polish(k, found[0], 40, 1e-4, probe=True))

    def from_particles(self, theta: Array) -> _Optimum | None:
        """The optimum of the whole chain near the likeliest of particles that were carried to it.

        `None` where the pulled population has no flow, or where the work or the time ran out.
        """
        k, most = self.n_intervals, _CARRIED * self.limit
        law = held_law(
            self.whole, self.prior, theta, self.mesh,
            gain=1.0, width=_PARTICLE_WIDTH, widest=_PARTICLE_WIDEST,
        )  # fmt: skip
        if law is None:
            return None
        least = _LEAST_WIDTH * self.prior.units
        if self.whole.model.learns_beta:
            least[self.whole.model.beta_index] = _LEAST_WIDTH_BETA

        def log_likelihood(horizon: int, point: Array) -> float:
            return -self.stage(horizon).judge(point, self.mesh).merit

        try:
            found = carry(
                log_likelihood, k, law[0], law[1] + np.diag(least**2), rng=self.rng, most=most
            )
        except KeyboardInterrupt:
            self.interrupted, self.limit = True, 0.0
            return None
        if found is None:
            return None
        # The likeliest few: a ridge of kinks may hold one of them off its optimum.
        optima = [
            self.polish(k, point, 40, 1e-4, probe=True) for point in found[:_POLISHED_PARTICLES]
        ]
        return self.settled(min(optima, key=lambda optimum: optimum.merit))

    def judged(self, optimum: _Optimum, width: float, count: int) -> list[tuple[float, Array]]:
        """Draws around an optimum of the whole chain, each with its merit."""
        self.pay(self.n_intervals, _VALUE * count)
        around = self.draws(optimum, width, count)
        return [(self.whole.judge(theta, self.mesh).merit, theta) for theta in around]

    def draws(self, optimum: _Optimum, width: float, count: int) -> list[Array]:
        values, axes = np.linalg.eigh(optimum.curvature)
        values = np.maximum(values, 1e-12 * values.max())
        units = self.prior.units
        normal = self.rng.normal(size=(count, values.size))
        steps = width * (normal / np.sqrt(values)) @ axes.T
        longest = _LONGEST_DRAW * units
        return [optimum.theta + step for step in np.clip(steps, -longest, longest)]


def grow(
    objective: TrackedObjective,
    prior: Penalty,
    starts: list[Array],
    mesh: Mesh,
    *,
    rng: np.random.Generator,
) -> Growth:
    """Parameters that describe as many intervals as could be followed.

    Parameters
    ----------
    objective : TrackedObjective
        The mean-field chain of frozen rates; its weights are not used.
    prior : Penalty
        The fit's prior.
    starts : list of arrays
        Parameters to begin from; the others are tried where the first leads nowhere.
    mesh : Mesh
        Passed on to the objective.
    rng : numpy.random.Generator
        Draws of the rescues.
    """
    guide = let_go(objective, prior, starts, mesh)
    n = objective.model.n_states
    search = _Search(objective, prior, starts, mesh, rng, _EVALUATIONS * min(1.0, (6 / n) ** 1.5))
    if guide is not None:
        search.n_iterations = guide.n_iterations
        if guide.interrupted:
            return Growth(guide.theta, search.n_intervals, guide.n_iterations, False, True)
        if not guide.judgement.rejects(_SUSPICIOUS):
            best = search.settled(search.polish(search.n_intervals, guide.theta, 40, 1e-4))
            return search.growth(best, search.n_intervals)
        search.starts = starts = [guide.held, *starts]
    whole = search.n_intervals
    other = search.from_crowd(guide.held) if guide is not None and n <= _FEW_STATES else None
    if other is not None and not other.judgement.rejects(_SUSPICIOUS):
        return search.growth(other, whole)
    if guide is not None and n <= _FEW_STATES:
        carried = search.from_particles(guide.held)
        if search.interrupted:
            return Growth(guide.theta, whole, search.n_iterations, False, True)
        if carried is not None and (other is None or carried.merit < other.merit):
            other = carried
            if not other.judgement.rejects(_SUSPICIOUS):
                return search.growth(other, whole)
    beam = [_Optimum(starts[0], np.diag(prior.units**-2.0), Judgement(0.0, 0.0, 0.0))]
    reached, step, failures = 0, 1, 0
    passed: tuple[int, list[_Optimum]] = (0, beam)
    while reached < whole:
        k = min(whole, reached + step)
        found = search.advance(k, beam)
        if _suspicious(found[0].judgement, beam[0].judgement):
            if k - reached > 1:
                step = (k - reached) // 2
                continue
            if search.spent < search.limit:
                found = sorted(
                    found + search.rescue(k, reached, beam), key=lambda optimum: optimum.merit
                )
        beam, reached = _distinct(found), k
        if search.interrupted:
            break
        if beam[0].judgement.rejects():
            failures += 1
            if failures == _PATIENCE or search.spent > search.limit:
                break
            step = 1
        else:
            failures, passed = 0, (k, beam)
            step = max(step, min(2 * step, k // _SHARE))
    k, beam = passed if passed[0] else (reached, beam)
    if search.interrupted:
        return search.growth(beam[0], k)
    final = [search.polish(k, optimum.theta, 40, 1e-4) for optimum in beam] + beam
    best = min(final, key=lambda optimum: optimum.merit)
    if other is not None and not other.judgement.rejects():
        if k < whole or other.merit < best.merit:
            best, k = other, whole
    return search.growth(search.settled(best) if k == whole else best, k)


def _distinct(optima: list[_Optimum]) -> list[_Optimum]:
    """The best few that differ, and none that is far behind."""
    kept: list[_Optimum] = []
    for optimum in optima:
        if len(kept) == _BEAM or (kept and optimum.merit > kept[0].merit + _HOPELESS):
            break
        if all(abs(optimum.merit - other.merit) > 1e-2 for other in kept):
            kept.append(optimum)
    return kept or optima[:1]
