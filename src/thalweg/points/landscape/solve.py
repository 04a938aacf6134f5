"""The potential that the evidence prefers, from moments or, for tracked points, from couplings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from thalweg.points.landscape.least_squares import (
    PushFit,
    Whitening,
    at_rest,
    average,
    fit_push,
    goodness,
    informative,
    weak_start,
)
from thalweg.points.landscape.model import Field, PushModel, bounding_box
from thalweg.points.landscape.moments import Moments
from thalweg.points.landscape.problem import Answer, Problem, candidates
from thalweg.points.landscape.shrinkage import Prior, Scales
from thalweg.points.landscape.tracked import solve_tracks, stiffness
from thalweg.status import Status

__all__ = ["solve"]

Array = NDArray[np.float64]

_MOST_MOMENTS = 150
_MOST_ROWS = 3000
_SMALL = 0.3  # interval times curvature below which one step is the flow, to 15 % at the worst
_STEP = 0.5  # longest midpoint step in the same unit: 2 % error
_MOST_STEPS = 12
_TIE = 3.0
_ALIKE = 1.0  # difference of log evidence that is none
_FAR = 100.0  # mean square residual beyond which the flow is no start
_REWEIGHTINGS = 2
_SHARES = (1.0, 0.5, 0.2, 0.0)  # of the weak form's parameters that the push may start from
_PUSHED = 3  # candidates that go on from the weak form to the push, and always the simplest
_COUPLED = 300  # individuals per snapshot whose coupling is a start


def solve(problem: Problem) -> Answer:
    """Fit every candidate, and keep the one with the largest evidence."""
    rng = np.random.default_rng([problem.seed, 7])
    smallest = min(len(x) for x in problem.clouds)
    rows = _MOST_ROWS // (problem.times.size - 1)
    most = int(max(4, min(_MOST_MOMENTS, rows, smallest // 8)))
    moments = Moments.of(np.concatenate(problem.clouds), most, rng)
    models = {
        name: PushModel(
            problem.times, problem.clouds, basis, moments, problem.order, problem.beta,
            problem.steps or 1, problem.seed,
        )
        for name, basis in candidates(problem, rng).items()
    }  # fmt: skip
    probe = next(iter(models.values()))
    moments = informative(replace(probe, steps=1, order=0))
    models = {name: replace(model, moments=moments) for name, model in models.items()}
    simplest, first = next(iter(models.items()))
    for model in models.values():
        model.__dict__["observed"] = first.observed
    stages = len(models) + 2
    problem.progress("weak form", 0, stages)
    white = Whitening.at(first, None)
    starts, seen = {}, _slopes(problem)
    for name, model in models.items():
        prior = Prior.of(model)
        z, scales, evidence = weak_start(model, prior, white)
        starts[name] = (prior, _better_start(model, white, z, seen), scales, evidence)
    ranked = sorted(starts, key=lambda name: starts[name][3], reverse=True)[:_PUSHED]
    leader = ranked[0]
    if simplest not in ranked:
        ranked.append(simplest)
    prior, z, scales, _ = starts[leader]
    followed = problem.steps in (None, 1)
    # The covariance of no movement first: that of a wild start would make light of its residuals.
    for _ in range(_REWEIGHTINGS):
        found, scales = fit_push(models[leader], prior, white, z, scales, iterations=3)
        if followed and found.too_good:
            answer = solve_tracks(problem, models)
            if answer is not None:
                return answer
            followed = False
        z = found.z
        white = Whitening.at(models[leader], z)
    starts[leader] = (prior, z, scales, 0.0)
    fits = {}
    for done, name in enumerate(ranked):
        problem.progress(f"landscape with {name}", 1 + done, stages)
        prior, z, scales, _ = starts[name]
        fits[name] = fit_push(models[name], prior, white, z, scales)
    most_likely = max(fit.evidence for fit, _ in fits.values())
    # Of those that differ by nothing, the simplest, and not the one that rounding prefers.
    alike = [name for name, (fit, _) in fits.items() if fit.evidence > most_likely - _ALIKE]
    best = min(alike, key=lambda name: models[name].basis.size)
    problem.progress("error bars", stages - 1, stages)
    evidences = {name: fit.evidence for name, (fit, _) in fits.items()}
    fit, scales = fits[best]
    if followed and fit.too_good:
        answer = solve_tracks(problem, models)
        if answer is not None:
            return answer
    return _finish(problem, models[best], starts[best][0], fit, scales, (best, evidences))


def _finish(
    problem: Problem, model: PushModel, prior: Prior, fit: PushFit, scales: Scales,
    chosen: tuple[str, dict[str, float]],
) -> Answer:  # fmt: skip
    """The winner with its own covariance, its number of steps, its posterior and its test."""
    white = Whitening.at(model, fit.z).corrected(model, fit.z)
    fit, scales = fit_push(model, prior, white, fit.z, scales)
    said = f"{model.steps} step(s) per interval, as asked"
    if problem.steps is None:
        model, white, fit, said = _choose_steps(problem, model, prior, white, fit, scales)
    fit = average(model, prior, white, fit)
    theta, beta = model.read(fit.z)
    spread = fit.posterior()
    tiled = np.tile(model.scale, model.order + 1)
    m = model.n_weights
    return Answer(
        Field(model.basis, theta, problem.times, bounding_box(problem.clouds)),
        beta,
        spread[:m, :m] / tiled[:, None] / tiled[None],
        float(np.sqrt(spread[-1, -1])) * model.beta_scale if problem.beta is None else 0.0,
        goodness(model, fit),
        False,
        model.steps,
        Status.UNDETERMINED if problem.beta is None and at_rest(model) else fit.status,
        chosen[1],
        f"{chosen[0]} had the largest evidence; {said}",
    )


def _choose_steps(
    problem: Problem, model: PushModel, prior: Prior, white: Whitening, fit: PushFit, scales: Scales
) -> tuple[PushModel, Whitening, PushFit, str]:
    """One explicit step per interval, or the flow in continuous time where the two differ."""
    field = Field(model.basis, model.read(fit.z)[0], problem.times)
    stiff = stiffness(field, problem.clouds, problem.times)
    if stiff < _SMALL:
        return model, white, fit, "one step per interval is the flow, so short are they"
    steps = int(np.clip(np.ceil(stiff / _STEP), 2, _MOST_STEPS))
    fine = model.with_steps(steps)
    first = white(fine.residual(fine.pushed(fit.z)))
    if not float(first @ first) < _FAR * first.size:
        said = "one explicit step per interval, as the flow leaves the points behind"
        return model, white, fit, said
    corrected = white.corrected(fine, fit.z)
    other, _ = fit_push(fine, prior, corrected, fit.z, scales)
    gain = other.evidence - fit.evidence
    if gain > -_TIE:
        said = f"the flow in continuous time, log evidence {gain:+.1f} over one step"
        return fine, corrected, other, said
    said = f"one explicit step per interval, log evidence {-gain:+.1f} over the flow"
    return model, white, fit, said


def _slopes(problem: Problem) -> list[tuple[Array, Array]]:
    """Points with a gradient there: of the given potential, and of optimal couplings.

    The weak form is no start for a cloud that leaves its own support within an interval; couplings
    of a few hundred individuals show where it goes.
    """
    rng = np.random.default_rng([problem.seed, 3])
    least = min(_COUPLED, *(len(x) for x in problem.clouds))
    few = [x[rng.permutation(len(x))[:least]] for x in problem.clouds]
    backward = []
    for x, y, tau in zip(few[:-1], few[1:], np.diff(problem.times), strict=True):
        partner = linear_sum_assignment(cdist(x, y, "sqeuclidean"))[1]
        backward.append((x - y[partner]) / tau)
    found = [(np.concatenate(few[:-1]), np.concatenate(backward))]
    if problem.guess is not None:
        x = np.concatenate(problem.clouds)
        x = x[:: max(1, len(x) // 2000)]
        found.append((x, problem.guess(x)))
    return found


def _better_start(
    model: PushModel, white: Whitening, z: Array, seen: list[tuple[Array, Array]]
) -> Array:
    """The weak form, a part of it, or a potential of known slopes, whichever pushes nearest."""
    tried = [share * z for share in _SHARES]
    for x, slope in seen:
        g = (model.basis.gradient(x) / model.scale).reshape(x.size, -1)
        normal = g.T @ g + 1e-6 * x.size * np.eye(g.shape[1])
        other = np.zeros_like(z)
        other[: g.shape[1]] = np.linalg.solve(normal, g.T @ slope.ravel())
        if model.beta is None:
            other[-1] = z[-1]
        tried.append(other)
    near = [float((white(model.residual(model.pushed(one))) ** 2).sum()) for one in tried]
    return tried[int(np.argmin(near))]
