"""The stages of a fit by the likelihood: starts, time steps, strength of the prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.errors import ConvergenceError, InputError
from thalweg.learn.likelihood import start
from thalweg.learn.likelihood.chain.kinks import certify
from thalweg.learn.likelihood.chain.search import grow
from thalweg.learn.likelihood.deviance import fitted_deviance
from thalweg.learn.likelihood.frozen import FrozenObjective, chain_probabilities
from thalweg.learn.likelihood.inverse import inverse
from thalweg.learn.likelihood.model import FlowModel, Mesh, first_mesh
from thalweg.learn.likelihood.objective import IndependentObjective, KinkedObjective, Objective
from thalweg.learn.likelihood.optimize import Minimum
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.priors import WEAK, Prior, make_prior
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.likelihood.sparse.flow import probabilities
from thalweg.learn.likelihood.sparse.search import minimise_likelihood
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.learn.limits import exhausted
from thalweg.learn.observation import CountModel, Multinomial, Residuals
from thalweg.status import Status

__all__ = ["Seed", "Stages"]

_MOST_REFINEMENTS = 4
_EVIDENCE_ROUNDS, _BRIEF_ROUNDS = 4, 2
_REWEIGHTINGS = 6
_BRIEF_ITERATIONS = 24  # per reweighting round; only the last one is searched to its end
_SUSPICIOUS = 4.0  # standard deviations of the deviance above which other starts are tried
_DATA_DECIDE = 0.9  # share of the directions of V determined by the data that keeps a weak prior
_HURRIED_ITERATIONS = 60
_HURRIED_STARTS = 3
# Individuals per state below which a hurried fit only serves as a start (in 15 of 15 trials).
_SCARCE = 100.0
_SCARCE_ITERATIONS, _SCARCE_MESH = 8, {"most": 2, "levels": 2}
# Largest initial numbers of steps per interval. The weak form's potential, which sets the steps,
# may be a hundred times too steep on few counts; the fit itself decides about refinement.
_FIRST_STEPS, _HURRIED_STEPS = 64, 8
_SAME_VALUE = 0.1  # steps are fine enough if finer ones change the log likelihood by less
_DISPERSION_ROUNDS = 6  # alternations between the scatter of the counts and the fit
_FINEST = 400_000  # largest number of steps of the finest chain
# Individuals from which a hurried search's time steps are too coarse for the counts: the census of
# three states converged with 4e7 and not with 1e8.
_PLENTY = 1e7
_NO_START = "no flow could be computed from any start; check the sizes of times and weights."


class Seed(NamedTuple):
    """Start of a search: parameters, beta, and the typical size of the potential."""

    theta: Array
    beta: float
    scale: float


@dataclass
class Stages:
    """The stages of a fit, which share the data and count the iterations."""

    model: FlowModel
    counts: Array
    options: LikelihoodOptions
    n_iterations: int = 0
    interrupted: bool = False
    latest: tuple[Minimum, Prior, Mesh] | None = None
    """The iterate returned after an interruption."""
    seed: Seed | None = None
    """A start known beforehand; by default that of the weak form."""
    brief: bool = False
    """Whether to stop early, like a hurried fit."""
    noise: CountModel = field(init=False)
    totals: Array | None = None

    def __post_init__(self) -> None:
        self.noise = self.options.noise.started(self.counts)
        if self.options.growth is not None:
            self.totals = self.options.growth.whole(self.counts.shape[0])

    def _objective(self) -> IndependentObjective:
        return IndependentObjective(self.model, self.counts, self.noise, self.totals)

    def run(self) -> LikelihoodFit:
        """The fit; after an interruption, the latest iterate."""
        try:
            tracked = self.options.observation == "tracked"
            return self.tracked() if tracked else self.independent()
        except KeyboardInterrupt:
            return self.unfinished()

    def independent(self) -> LikelihoodFit:
        best, prior, mesh = self._from_starts(self._objective())
        best, prior, mesh = self._scatter(best, prior, mesh)
        decided = best.status is Status.CONVERGED and not self._stopped
        continuous = self.options.discretization == "continuous"
        weak: LikelihoodFit | None = None
        if self.options.prior_strength == "evidence" and decided:
            if continuous and not (self.options.hurried or self.model.grows):
                weak = self._continuous(best, prior, mesh)
                prior = self._holding_beta(prior, best.theta)
            before = best
            best, prior, mesh = self._evidence(self._objective(), prior, best, mesh)
            if best is before and weak is not None:
                return weak
            best, prior, mesh = self._scatter(best, prior, mesh)
        if not continuous:
            return self._freeze(best, prior, mesh)
        fit = self._continuous(best, prior, mesh)
        return fit if weak is None else _with_shift(fit, weak)

    def _continuous(self, best: Minimum, prior: Prior, mesh: Mesh) -> LikelihoodFit:
        return self._finish(best, prior, mesh, probabilities(self.model, best.theta, mesh))

    def _holding_beta(self, prior: Prior, theta: Array) -> Prior:
        """The prior under which the evidence cannot shrink beta together with the potential."""
        return prior.holding(self.model.beta_index, theta) if self.model.learns_beta else prior

    def tracked(self) -> LikelihoodFit:
        """Increments weighted at the fit: start as if independent, then reweight and refit."""
        empirical = self.options.environment == "empirical"
        if self.options.discretization == "frozen":
            return self._along_the_chain(empirical)
        independent = IndependentObjective(self.model, self.counts)
        best, prior, mesh = self._from_starts(independent, patient=False)
        objective = TrackedObjective(self.model, self.counts, False, empirical)
        return self._followed(objective, best.theta, prior, mesh, FlowModel.probabilities)

    def _along_the_chain(self, empirical: bool) -> LikelihoodFit:
        """Frozen rates: of the density seen, or of the infinite population on a growing horizon."""
        points, beta, scale = start.starting_points(self.model, self.counts)
        prior, mesh = self._weak_prior(beta, scale), first_mesh(self.model, scale)
        objective = TrackedObjective(self.model, self.counts, True, empirical)
        theta, horizon, whole = points[0], self.counts.shape[0] - 1, self.counts.shape[0] - 1
        if not empirical:
            # The search is part of the method, not of the data: the same draws for everybody.
            growth = grow(objective, prior, points, mesh, rng=np.random.default_rng(0))
            self.n_iterations += growth.n_iterations
            self.interrupted = self.interrupted or growth.interrupted
            theta = growth.theta
            # Where no horizon fits, the model is wrong rather than the search: all data count.
            horizon = whole if growth.rejected else growth.n_intervals
        part = objective.shortened(horizon)
        fit = self._followed(part, theta, prior, mesh, chain_probabilities)
        if horizon < whole and fit.status is Status.CONVERGED:
            fit = replace(fit, status=Status.SHORTER_HORIZON)
        return fit if empirical else fit.over(horizon)

    def _followed(
        self,
        objective: TrackedObjective,
        theta: Array,
        prior: Prior,
        mesh: Mesh,
        probabilities: Callable[[FlowModel, Array, Mesh], Array | None],
    ) -> LikelihoodFit:
        """The fit to increments, shrunk as the evidence wants it, at the beta of a weak prior."""

        def finish(best: Minimum, prior: Prior) -> LikelihoodFit:
            expected = objective.judge(best.theta, mesh).expected
            p = probabilities(self.model, best.theta, mesh)
            return self._finish(best, prior, mesh, p, (expected, 2.0 * expected))

        best, prior = self._reweight(objective, theta, prior, mesh)
        weak = finish(best, prior)
        if self.options.prior_strength != "evidence" or self._stopped:
            return weak
        prior = self._holding_beta(prior, best.theta)
        best, prior = self._reweight(objective, best.theta, prior, mesh, evidence=True)
        return _with_shift(finish(best, prior), weak)

    def unfinished(self) -> LikelihoodFit:
        """The latest iterate of an interrupted search; the interruption itself if there is none."""
        if self.latest is None:
            raise KeyboardInterrupt
        self.interrupted = True
        best, prior, mesh = self.latest
        p = self.model.probabilities(best.theta, mesh)
        return self._finish(best, prior, mesh, p, (np.nan, np.nan))

    # ------------------------------------------------------------------ stages

    def shrunk(self, fit: LikelihoodFit) -> LikelihoodFit:
        """The fit with rates of growth as small as the evidence wants them.

        Its errors are those of the weak prior, with the shift itself as a further error.
        """
        best, prior, mesh, part = fit, fit.prior, fit.mesh, self.model.growth_slice
        for _ in range(_EVIDENCE_ROUNDS):
            factor = prior.firmer(best.theta, best.information, part)
            if best.status is not Status.CONVERGED or factor == 1.0 or self._stopped:
                break
            prior = prior.with_firmer(part, factor)
            found, mesh = self._climb(self._objective(), prior, best.theta, mesh)
            if found is None:
                break
            best = self._finish(found, prior, mesh, probabilities(self.model, found.theta, mesh))
        if best is fit:
            return fit
        return replace(_with_shift(best, fit), transport=fit.transport)

    def _scatter(self, best: Minimum, prior: Prior, mesh: Mesh) -> tuple[Minimum, Prior, Mesh]:
        """Alternate between estimating the scatter of the counts and fitting under it."""
        for _ in range(0 if isinstance(self.noise, Multinomial) else _DISPERSION_ROUNDS):
            refined = self.noise.refined(self._residuals(best, prior, mesh))
            again = refined.differs(self.noise)
            self.noise = refined
            if not again:
                break
            result, mesh = self._climb(self._objective(), prior, best.theta, mesh)
            if result is None:
                break
            best = result
        return best, prior, mesh

    def _residuals(self, best: Minimum, prior: Prior, mesh: Mesh) -> Residuals:
        p = self.model.probabilities(best.theta, mesh)
        if p is None:
            raise ConvergenceError(Status.NOT_FINITE.value)
        information = best.evaluation.information
        covariance = inverse(information + prior.precision)

        def sensitivities() -> Array:
            found = self.model.sensitivities(best.theta, mesh)
            assert found is not None  # the probabilities were computed at the same place
            return found[1]

        used = float(np.sum(covariance * information))
        return Residuals(self.counts, p, used, covariance, sensitivities)

    def _reweight(
        self,
        objective: TrackedObjective,
        theta: Array,
        prior: Prior,
        mesh: Mesh,
        *,
        evidence: bool = False,
    ) -> tuple[Minimum, Prior]:
        """Alternate between the weights of the increments, the fit, and the prior's strength."""
        best, last = None, None
        for round_ in range(_REWEIGHTINGS + 1):
            weighted = objective.reweighted(theta, mesh)
            if weighted is None or (best is not None and self._stopped):
                break
            if best is not None and evidence:
                prior = prior.with_strength(prior.updated(theta, best.evaluation.information))
            result = self._minimise(weighted, prior, theta, mesh, brief=True)
            if result is None:
                break
            moved, theta = result.theta - theta, result.theta
            best, last = result, weighted
            if round_ > 2 and moved @ result.evaluation.information @ moved < 1e-3:
                break
        if best is None or last is None:
            raise InputError(_NO_START)
        if best.status is not Status.CONVERGED and not self._stopped:
            best = self._minimise(last, prior, theta, mesh) or best
        return best, prior

    def _from_starts(
        self, objective: Objective, *, patient: bool = True
    ) -> tuple[Minimum, Prior, Mesh]:
        """The best minimum under a weak prior; other starts only if the first looks wrong."""
        points, beta, scale = start.starting_points(self.model, self.counts)
        if self.seed is not None:
            points, beta, scale = [self.seed.theta, points[0]], self.seed.beta, self.seed.scale
            patient = False
        prior = self._weak_prior(beta, scale)
        first = first_mesh(self.model, scale, **self._coarse)
        best, mesh = self._climb(objective, prior, points[0], first)
        tried = 1
        while tried < len(points):
            if best is not None and not (patient and self._suspicious(best, mesh)):
                break
            if self._hurried and best is not None and not best.status:
                break
            if self._stopped or (self._hurried and tried >= _HURRIED_STARTS) or self._scarce:
                break
            other, other_mesh = self._climb(objective, prior, points[tried], first)
            if other is not None and (best is None or other.value < best.value):
                best, mesh = other, other_mesh
            tried += 1
        if best is None:
            raise InputError(_NO_START)
        return best, prior, mesh

    def _weak_prior(self, beta: float, scale: float) -> Prior:
        strength = self.options.prior_strength
        return make_prior(self.model, beta, scale, WEAK if isinstance(strength, str) else strength)

    def _freeze(self, best: Minimum, prior: Prior, mesh: Mesh) -> LikelihoodFit:
        """Continuation: rates renewed 8, 4, 2 times per interval, then once."""
        for pieces in (8, 4, 2, 1):
            objective = FrozenObjective(self.model, self.counts, pieces)
            result = self._minimise(objective, prior, best.theta, mesh)
            if result is not None:
                if pieces == 1 or result.status is Status.CONVERGED:
                    best = result
        return self._finish(best, prior, mesh, chain_probabilities(self.model, best.theta))

    def _minimise(
        self,
        objective: Objective,
        prior: Prior,
        theta: Array,
        mesh: Mesh,
        *,
        brief: bool = False,
    ) -> Minimum | None:
        """The minimum near `theta`; a `brief` one, on the way to another, may end at a kink."""
        most, own = self.options.max_iterations, self.options.optimizer
        if brief:
            most = min(most, _BRIEF_ITERATIONS)
        if self._hurried:
            most = min(most, _SCARCE_ITERATIONS if self._scarce else _HURRIED_ITERATIONS)
        # If an average over priors can follow, one optimum is enough.
        dense = not (self.options.hurried and self.latest is not None)
        find: Callable[..., Minimum | None] = partial(minimise_likelihood, dense=dense)
        if own is not None:
            find = own.minimise

        def search(theta: Array) -> Minimum | None:
            return find(
                objective,
                prior,
                theta,
                mesh,
                max_iterations=most,
                tolerance=self.options.tolerance,
            )

        result = search(theta)
        if result is not None:
            stalled = not brief and result.status is Status.STALLED
            if stalled and isinstance(objective, KinkedObjective) and objective.kinked:
                result = certify(objective, prior, result, mesh, search)
            self.n_iterations += result.n_iterations
            self.latest = (result, prior, mesh)
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
        return result

    def _climb(
        self, objective: Objective, prior: Prior, theta: Array, mesh: Mesh
    ) -> tuple[Minimum | None, Mesh]:
        """Optimise; if the search stalls or time steps are too coarse, refine them and continue."""
        best: Minimum | None = None
        found = mesh
        fine, hurried = False, self._hurried
        refinements = 0 if self._scarce else 2 if hurried else _MOST_REFINEMENTS
        for attempt in range(refinements + 1):
            result = self._minimise(objective, prior, theta, mesh)
            if result is not None:
                before = np.inf if best is None else best.value
                best, theta, found = result, result.theta, mesh
                if self._stopped:
                    break
                fine = result.evaluation.mesh_error <= self._allowed_error()
                # Beside states that nearly empty the estimate stays large on any steps.
                fine = fine or abs(before - result.value) < _SAME_VALUE
                if fine and result.status is not Status.STALLED:
                    break
                if result.status is Status.MAX_ITERATIONS and (attempt or self.brief):
                    break
            finer = mesh.refined()
            if finer.substeps.sum() * 4 > max(_FINEST, 16 * mesh.substeps.size):
                break
            mesh = finer
        if hurried and best is not None and best.status and not fine:
            best = replace(best, status=Status.MAX_ITERATIONS)
        return best, found

    @property
    def _stopped(self) -> bool:
        """Interrupted, or out of time or iterations: the best so far is the answer."""
        return self.interrupted or exhausted()

    @property
    def _coarse(self) -> dict[str, int]:
        """Bounds on the first time steps."""
        if self._scarce:
            return _SCARCE_MESH
        return {"most": _HURRIED_STEPS if self._hurried else _FIRST_STEPS}

    @property
    def _hurried(self) -> bool:
        return self.brief or (self.options.hurried and self.counts.sum() < _PLENTY)

    @property
    def _scarce(self) -> bool:
        """Whether an average over priors is certain to follow, so that any start will do."""
        plain = self.options.hurried and isinstance(self.noise, Multinomial)
        return plain and self.counts.sum() < _SCARCE * self.model.n_states

    def _allowed_error(self) -> float:
        return self.options.mesh_tolerance * self.model.n_parameters

    def _suspicious(self, minimum: Minimum, mesh: Mesh) -> bool:
        """Whether the deviance is far above that of a true model."""
        if minimum.status is Status.INTERRUPTED:
            return False
        if minimum.status is not Status.CONVERGED:
            return True
        p = probabilities(self.model, minimum.theta, mesh)
        if p is None:
            return True
        moments = self.noise.expected_deviance(self.counts, p)
        if moments is None:
            return False
        mean, variance = moments
        excess = 2.0 * minimum.evaluation.value - mean + self.model.n_parameters - 2
        return excess > _SUSPICIOUS * np.sqrt(variance)

    def _decided(self, best: Minimum, prior: Prior) -> bool:
        """Whether the data determine nearly every direction of the potential by themselves."""
        n = np.inf if self.model.features is not None else self.model.n_states
        return prior.determined(best.evaluation.information) > _DATA_DECIDE * (1.0 - 1.0 / n)

    def _evidence(
        self, objective: Objective, prior: Prior, best: Minimum, mesh: Mesh
    ) -> tuple[Minimum, Prior, Mesh]:
        """Alternate between the strength of the smoothness prior and the fit under it.

        Where the data determine nearly every direction by themselves, the prior stays weak: it
        could only shrink beta and the potential. Constants are never determined and do not count.
        """
        if self._decided(best, prior):
            return best, prior, mesh
        for _ in range(_BRIEF_ROUNDS if self.brief else _EVIDENCE_ROUNDS):
            strength = prior.updated(best.theta, best.evaluation.information)
            if abs(np.log(strength / prior.strength)) < 0.1 or self._stopped:
                break
            prior = prior.with_strength(strength)
            result, mesh = self._climb(objective, prior, best.theta, mesh)
            if result is None:
                break
            best = result
        return best, prior, mesh

    def _finish(
        self,
        best: Minimum,
        prior: Prior,
        mesh: Mesh,
        p: Array | None,
        null: tuple[float, float] | None = None,
    ) -> LikelihoodFit:
        """The answer; `null`: mean and variance of the deviance at the true parameters."""
        model = self.model
        if p is None:  # the optimiser accepts no parameters without a flow
            raise ConvergenceError(Status.NOT_FINITE.value)
        information = best.evaluation.information
        covariance = inverse(information + prior.precision)
        moments = self.noise.expected_deviance(self.counts, p) if null is None else null
        expected, spread = fitted_deviance(moments, float(np.sum(covariance * information)))
        covariance *= self.noise.inflation
        status = Status.INTERRUPTED if self.interrupted else best.status
        if status is Status.CONVERGED and p[-1].max() > 1 - 1e-9 and p[0].max() < 0.99:
            seen = self.counts[-1] / self.counts[-1].sum()
            if seen.max() < 1 - 1e-9:
                status = Status.COLLAPSED
        return LikelihoodFit(
            energy=model.energy(best.theta),
            initial=p[0],
            probabilities=p,
            log_likelihood=self.noise.saturated(self.counts) - best.evaluation.value,
            deviance=2.0 * best.evaluation.value
            if self.totals is None
            else self.noise.deviance(self.counts, p),
            expected_deviance=expected,
            deviance_stderr=spread,
            status=status,
            n_iterations=self.n_iterations,
            settings=replace(self.options),
            theta=best.theta,
            covariance=covariance,
            information=information,
            counts=self.counts,
            model=model,
            mesh=mesh,
            prior=prior,
            noise=self.noise,
            totals=self.totals,
        )


def _with_shift(fit: LikelihoodFit, weak: LikelihoodFit) -> LikelihoodFit:
    """A fit under a firmer prior with the errors of the weak one, and the shift between both."""
    shift = fit.theta - weak.theta
    return replace(fit, covariance=weak.covariance + np.outer(shift, shift), unshrunk=weak)
