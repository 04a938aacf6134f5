"""The potential with the largest evidence, from moments or, for tracked points, from couplings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.stats import chi2

from thalweg._types import Array
from thalweg.points.landscape.features import Moments
from thalweg.points.landscape.field import Field, bounding_box
from thalweg.points.landscape.least_squares import (
    PushFit,
    Whitening,
    at_rest,
    average,
    fit_push,
    goodness,
    informative,
    scatter,
    weak_start,
)
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.problem import Answer, Disagreement, Problem, candidates
from thalweg.points.landscape.shrinkage import Prior, Scales
from thalweg.points.landscape.tracked import solve_tracks, stiffness
from thalweg.status import Status

Start = tuple[Prior, Array, Scales, float]
"""Prior, parameters, scales of the prior, and evidence of the weak form."""

_MOST_MOMENTS = 150
"""Largest number of moments per interval."""
_MOST_ROWS = 3000
"""Largest number of moments in all."""
_SMALL = 0.1
"""Interval times curvature below which one step is the flow, to 5 % at worst."""
_OVERSHOOT = 1.0
"""The same above which one explicit step maps points past each other."""
_STEP = 0.7
"""Longest step in the same unit: 1 % error of the width of a well, 5 % of the drift."""
_MOST_FUNCTIONS = 60
"""Largest number of functions that are pushed in many steps,"""
_FEW_STEPS, _FEW_ITERATIONS = 5, 6
"""and the steps and iterations in which they are compared."""
_MOST_STEPS = 12
"""Largest number of steps per interval."""
_TIE = 8.0
"""Difference of log evidence that decides between one step and the flow: a true flow lost 4."""
_ALIKE = 1.0
"""Difference of log evidence that is negligible."""
_FAR = 100.0
"""Mean square residual above which the flow is not a start."""
_REWEIGHTINGS = 2
"""Times that the covariance is computed again at the new fit."""
_SHARES = (1.0, 0.5, 0.2, 0.0)
"""Shares of the weak form's parameters from which the push may start."""
_PUSHED, _PUSHED_MOVING = 3, 1
"""Candidates that proceed from the weak form to the push, besides the simplest; fewer for a
potential that changes in time, which has several times as many parameters."""
_ACCEPTED = 0.01
"""Level at which other functions that span the potential are accepted."""
_MOST_SCATTER = 0.1
"""Largest share of scatter in the information: twice that of the chosen moments."""
_COUPLED = 300
"""Individuals per snapshot whose coupling gives a start."""


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
    pushed = _PUSHED if problem.order == 0 else _PUSHED_MOVING
    ranked = sorted(starts, key=lambda name: starts[name][3], reverse=True)[:pushed]
    leader = ranked[0]
    if simplest not in ranked:
        ranked.append(simplest)
    prior, z, scales, _ = starts[leader]
    followed = problem.steps in (None, 1)
    # The covariance of no movement first: that of a wild start would hide its residuals.
    for _ in range(_REWEIGHTINGS):
        found, scales = fit_push(models[leader], prior, white, z, scales, iterations=3)
        if followed and _agrees_too_well(models[leader], found):
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
    best = _simplest({name: fit for name, (fit, _) in fits.items()}, models)
    problem.progress("error bars", stages - 1, stages)
    if followed and _agrees_too_well(models[best], fits[best][0]):
        answer = solve_tracks(problem, models)
        if answer is not None:
            return answer
    return _finish(problem, models, {name: (starts[name], fits[name]) for name in fits}, best)


def _finish(
    problem: Problem, models: dict[str, PushModel],
    fits: dict[str, tuple[Start, tuple[PushFit, Scales]]], best: str,
) -> Answer:  # fmt: skip
    """The winner with its own covariance, its number of steps, its posterior and its test."""
    evidences = {name: fit.evidence for name, (_, (fit, _)) in fits.items()}
    first = {name: fit for name, (_, (fit, _)) in fits.items()}
    found = {name: models[name].read(fit.z) for name, fit in first.items()}
    white = Whitening.at(models[best], first[best].z)
    others = _as_right(models, first, best, white)
    fields = {
        name: Field(models[name].basis, found[name][0], problem.times) for name in (best, *others)
    }
    doubt, scheme = Disagreement(tuple((fields[best], fields[name]) for name in others)), None
    off = {name: abs(found[name][1] - found[best][1]) for name in others}
    other = max(off, key=off.__getitem__, default="")
    leeway = off.get(other, 0.0) if problem.beta is None else 0.0
    model, (prior, *_), (fit, scales) = models[best], *fits[best]
    fit, scales = fit_push(model, prior, white, fit.z, scales)
    said = f"{model.steps} step(s) per interval, as asked"
    if problem.steps is None:
        stiff = _stiff(problem, model, fit)
        if stiff < _SMALL:
            said = "one step per interval is the flow, so short are they"
        elif stiff < _OVERSHOOT:
            model, white, fit, said, rival = _choose_steps(model, prior, white, fit, scales, stiff)
            if rival is not None:
                here, there = (m.read(f.z) for m, f in ((model, fit), rival))
                pair = tuple(Field(model.basis, theta, problem.times) for theta, _ in (here, there))
                scheme = Disagreement(((pair[0], pair[1]),))
                leeway = max(leeway, abs(here[1] - there[1]) if problem.beta is None else 0.0)
        else:
            best, model, white, fit, said = _flow(problem, models, fits, best, white, stiff)
            prior = fits[best][0][0]
    if fit.spread is None:
        fit = average(model, prior, white, fit)
    theta, beta = model.read(fit.z)
    spread = fit.posterior()
    tiled = np.tile(model.scale, model.order + 1)
    m = model.n_weights
    error = float(np.sqrt(spread[-1, -1])) * model.beta_scale if problem.beta is None else 0.0
    resting = problem.beta is None and at_rest(model)
    if other and off[other] == leeway > error:
        said += f"; with {other}, perhaps as right, beta is {leeway:.2g} off, and its error says so"
    return Answer(
        Field(model.basis, theta, problem.times, bounding_box(problem.clouds)),
        beta,
        spread[:m, :m] / tiled[:, None] / tiled[None],
        np.inf if resting else float(np.hypot(error, leeway)),
        goodness(model, fit),
        False,
        model.steps,
        Status.UNDETERMINED if resting else fit.status,
        evidences,
        f"{best} had the largest evidence; {said}",
        doubt,
        scheme,
    )


def _agrees_too_well(model: PushModel, fit: PushFit) -> bool:
    """Whether the individuals may have been tracked, by the fit's own covariance as well.

    That of no movement is too large where clouds contract, and couplings are expensive.
    """
    if not fit.too_good:
        return False
    white = Whitening.at(model, fit.z)
    residual = white(model.residual(model.pushed(fit.z)))
    return replace(fit, residual=residual, jacobian=white(model.jacobian(fit.z))).too_good


def _as_right(
    models: dict[str, PushModel], fits: dict[str, PushFit], best: str, white: Whitening
) -> list[str]:
    """Other functions that may fit as well as the chosen ones.

    Functions too rich for few individuals follow their scatter, which the derivatives share with
    the residuals; the noise absorbs it, and the posterior does not show that (30 moments of 1000
    individuals, Gaussians along the axes: beta 3.7 +- 1.2 for a true 0.1, where a quarter of the
    information is scatter; polynomials, which also hold the truth, 0.1 +- 0.4). If more than a
    tenth is scatter, the simplest functions are always included, otherwise those that the data do
    not reject.
    """
    simplest = next(iter(models))
    scattered = scatter(models[best], fits[best].z, white.inverse())[0] > _MOST_SCATTER
    return [
        name
        for name, fit in fits.items()
        if name != best
        and (
            (scattered and name == simplest)
            or chi2.sf(float(fit.residual @ fit.residual), fit.dof) > _ACCEPTED
        )
    ]


def _stiff(problem: Problem, model: PushModel, fit: PushFit) -> float:
    field = Field(model.basis, model.read(fit.z)[0], problem.times)
    return stiffness(field, problem.clouds, problem.times)


def _choose_steps(
    model: PushModel, prior: Prior, white: Whitening, fit: PushFit, scales: Scales, stiff: float
) -> tuple[PushModel, Whitening, PushFit, str, tuple[PushModel, PushFit] | None]:
    """One explicit step per interval, or the flow in continuous time if the two differ.

    Each map is nearly the other's for another potential, so that equal intervals hardly decide. In
    doubt it is the flow, and the step's fit is returned as well, for the error bars.
    """
    fine = model.with_steps(_count(stiff))
    first = white(fine.residual(fine.pushed(fit.z)))
    if not float(first @ first) < _FAR * first.size:
        said = "one explicit step per interval, as the flow leaves the points behind"
        return model, white, fit, said, None
    other, _ = fit_push(fine, prior, white, fit.z, scales)
    fit, other = average(model, prior, white, fit), average(fine, prior, white, other)
    gain = other.evidence - fit.evidence
    if gain < -_TIE:
        said = f"one explicit step per interval, log evidence {-gain:+.1f} over the flow"
        return model, white, fit, said, None
    said = f"the flow in continuous time, log evidence {gain:+.1f} over one step"
    if gain > _TIE:
        return fine, white, other, said, None
    said += ", which does not decide: the error bars include the difference"
    return fine, white, other, said, (model, fit)


def _flow(
    problem: Problem, models: dict[str, PushModel],
    fits: dict[str, tuple[Start, tuple[PushFit, Scales]]], best: str, white: Whitening,
    stiff: float,
) -> tuple[str, PushModel, Whitening, PushFit, str]:  # fmt: skip
    """The flow in continuous time if an explicit step would overshoot the valleys.

    Such a step can send individuals anywhere, and so fits even births and deaths; it is not a flow.
    The functions are chosen again, among those that are few enough.
    """
    found = {}
    fewest = min(models[name].basis.size for name in fits)
    for name, (start, (fit, scales)) in fits.items():
        if models[name].basis.size > max(_MOST_FUNCTIONS, fewest):
            continue
        fine = models[name].with_steps(min(_count(stiff), _FEW_STEPS))
        tried = [share * z for z in (fit.z, start[1]) for share in _SHARES]
        for z in (_nearest(fine, white, tried), np.zeros_like(fit.z)):
            found[name] = fit_push(fine, start[0], white, z, scales, iterations=_FEW_ITERATIONS)
            if np.isfinite(found[name][0].evidence):
                break
    best = _simplest({name: fit for name, (fit, _) in found.items()}, models)
    fit, scales = found[best]
    # The explicit step's valleys were too steep: as many steps as these ask for.
    fine = models[best].with_steps(_count(_stiff(problem, models[best], fit)))
    white = Whitening.at(fine, fit.z)
    fit, _ = fit_push(fine, fits[best][0][0], white, fit.z, scales)
    said = f"the flow in {fine.steps} steps per interval, as one explicit step would overshoot"
    return best, fine, white, fit, said


def _count(stiff: float) -> int:
    return int(np.clip(np.ceil(stiff / _STEP), 2, _MOST_STEPS))


def _simplest(fits: dict[str, PushFit], models: dict[str, PushModel]) -> str:
    """The simplest of equally good candidates, rather than the one that rounding prefers."""
    known = {name: fit.evidence for name, fit in fits.items() if np.isfinite(fit.evidence)}
    most = max(known.values(), default=-np.inf)
    alike = [name for name, one in known.items() if one > most - _ALIKE] or list(fits)
    return min(alike, key=lambda name: models[name].basis.size)


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
    """The weak form, a fraction of it, or a potential of known slopes, whichever pushes nearest."""
    tried = [share * z for share in _SHARES]
    for x, slope in seen:
        g = (model.basis.gradient(x) / model.scale).reshape(x.size, -1)
        normal = g.T @ g + 1e-6 * x.size * np.eye(g.shape[1])
        other = np.zeros_like(z)
        other[: g.shape[1]] = np.linalg.solve(normal, g.T @ slope.ravel())
        if model.beta is None:
            other[-1] = z[-1]
        tried.append(other)
    return _nearest(model, white, tried)


def _nearest(model: PushModel, white: Whitening, tried: list[Array]) -> Array:
    near = [float((white(model.residual(model.pushed(one))) ** 2).sum()) for one in tried]
    return tried[int(np.argmin(np.where(np.isfinite(near), near, np.inf)))]
