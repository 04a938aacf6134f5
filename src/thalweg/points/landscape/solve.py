"""The potential with the largest evidence, from moments or, for tracked points, from couplings."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from thalweg._types import Array
from thalweg.points.landscape.evenness import partners
from thalweg.points.landscape.features import Moments
from thalweg.points.landscape.least_squares import (
    AveragedFit,
    PushFit,
    Start,
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
from thalweg.points.landscape.tracked import solve_tracks, stiffness
from thalweg.status import Status

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
    models = _models(problem)
    simplest, first = next(iter(models.items()))
    stages = len(models) + 2
    problem.progress("weak form", 0, stages)
    white, seen = Whitening.at(first, None), _slopes(problem)
    starts = {}
    for name, model in models.items():
        weak = weak_start(model, white)
        starts[name] = weak._replace(z=_better_start(model, white, weak.z, seen))
    pushed = _PUSHED if problem.order == 0 else _PUSHED_MOVING
    ranked = sorted(starts, key=lambda name: starts[name].evidence, reverse=True)[:pushed]
    leader = ranked[0]
    if simplest not in ranked:
        ranked.append(simplest)
    followed = problem.steps in (None, 1)
    # The covariance of no movement first: that of a wild start would hide its residuals.
    for _ in range(_REWEIGHTINGS):
        z, scales, evidence = starts[leader]
        found = fit_push(models[leader], white, z, scales, iterations=3)
        if followed and _agrees_too_well(found):
            answer = solve_tracks(problem, models)
            if answer is not None:
                return answer
            followed = False
        starts[leader] = Start(found.z, found.scales, evidence)
        white = Whitening.at(models[leader], found.z)
    fits = {}
    for done, name in enumerate(ranked):
        problem.progress(f"landscape with {name}", 1 + done, stages)
        fits[name] = fit_push(models[name], white, starts[name].z, starts[name].scales)
    best = _simplest(fits)
    problem.progress("error bars", stages - 1, stages)
    if followed and _agrees_too_well(fits[best]):
        answer = solve_tracks(problem, models)
        if answer is not None:
            return answer
    return _finish(problem, starts, fits, (best, simplest))


def _models(problem: Problem) -> dict[str, PushModel]:
    """The push with each candidate basis, and with the moments that carry information."""
    rng = np.random.default_rng([problem.seed, 7])
    rows = _MOST_ROWS // (problem.times.size - 1)
    smallest = min(len(x) for x in problem.clouds)
    most = int(max(4, min(_MOST_MOMENTS, rows, smallest // 8)))
    moments = Moments.of(np.concatenate(problem.clouds), most, rng)
    bases = candidates(problem, rng)
    probe = PushModel(
        problem.times, problem.clouds, next(iter(bases.values())), moments, 0, problem.beta,
        seed=problem.seed,
    )  # fmt: skip
    steps, moments = problem.steps or 1, informative(probe)
    first = probe.changed(moments=moments, order=problem.order, steps=steps)
    return {name: first.changed(basis=basis) for name, basis in bases.items()}


def _finish(
    problem: Problem, starts: dict[str, Start], fits: dict[str, PushFit], names: tuple[str, str]
) -> Answer:
    """The winner with its own covariance, its number of steps, its posterior and its test.

    `names` are those of the winner and of the simplest functions.
    """
    (best, simplest), free = names, problem.beta is None
    chosen = fits[best].reweighted()
    rivals = {name: fit for name, fit in fits.items() if name != best}
    others = _as_right(chosen, rivals, simplest)
    doubt, scheme = Disagreement(chosen.field, [fits[name].field for name in others]), None
    off = {name: abs(fits[name].beta - chosen.beta) if free else 0.0 for name in others}
    other = max(off, key=off.__getitem__, default="")
    leeway = off.get(other, 0.0)
    found = fit_push(chosen.model, chosen.white, chosen.z, chosen.scales)
    said = f"{found.model.steps} step(s) per interval, as requested"
    if problem.steps is None:
        stiff = stiffness(found.field, problem.clouds, problem.times)
        if stiff < _SMALL:
            said = "one step per interval is the flow, so short are they"
        elif stiff < _OVERSHOOT:
            found, said, step = _choose_steps(found, stiff)
            if step is not None:
                scheme = Disagreement(found.field, [step.field])
                leeway = max(leeway, abs(found.beta - step.beta) if free else 0.0)
        else:
            best, found, said = _flow(problem, starts, fits, chosen.white, stiff)
    fit = found if isinstance(found, AveragedFit) else average(found)
    model, spread = fit.model, fit.posterior
    error = float(np.sqrt(spread[-1, -1])) * model.beta_scale if free else 0.0
    if other and off[other] == leeway > error:
        rival = names[0] if other == best else other
        said += f"; with {rival}, perhaps as right, beta is {leeway:.2g} off, and its error says so"
    resting = free and at_rest(model)
    tiled, m = np.tile(model.scale, model.order + 1), model.n_weights
    return Answer(
        fit.field,
        fit.beta,
        spread[:m, :m] / tiled[:, None] / tiled[None],
        np.inf if resting else float(np.hypot(error, leeway)),
        goodness(fit),
        False,
        model.steps,
        Status.UNDETERMINED if resting else fit.status,
        {name: one.evidence for name, one in fits.items()},
        f"{best} had the largest evidence; {said}",
        doubt,
        scheme,
    )


def _agrees_too_well(fit: PushFit) -> bool:
    """Whether the individuals may have been tracked, by the fit's own covariance as well.

    That of no movement is too large where clouds contract, and couplings are expensive.
    """
    return fit.too_good and fit.reweighted().too_good


def _as_right(chosen: PushFit, rivals: dict[str, PushFit], simplest: str) -> list[str]:
    """Other functions that may fit as well as the chosen ones.

    Functions too rich for few individuals follow their scatter, which the derivatives share with
    the residuals; the noise absorbs it, and the posterior does not show that (30 moments of 1000
    individuals, Gaussians along the axes: beta 3.7 +- 1.2 for a true 0.1, where a quarter of the
    information is scatter; polynomials, which also hold the truth, 0.1 +- 0.4). If more than a
    tenth is scatter, the simplest functions are always included, otherwise those that the data do
    not reject.
    """
    scattered = scatter(chosen) > _MOST_SCATTER
    return [
        name
        for name, fit in rivals.items()
        if (scattered and name == simplest)
        or chi2.sf(float(fit.residual @ fit.residual), fit.dof) > _ACCEPTED
    ]


def _choose_steps(fit: PushFit, stiff: float) -> tuple[PushFit, str, PushFit | None]:
    """One explicit step per interval, or the flow in continuous time if the two differ.

    Each map is nearly the other's for another potential, so that equal intervals rarely decide. In
    doubt it is the flow, and the step's fit is returned as well, for the error bars.
    """
    fine = fit.model.changed(steps=_count(stiff))
    first = fit.white(fine.residual(fit.z))
    if not float(first @ first) < _FAR * first.size:
        return fit, "one explicit step per interval, as the flow leaves the points behind", None
    step, flow = average(fit), average(fit_push(fine, fit.white, fit.z, fit.scales))
    gain = flow.evidence - step.evidence
    if gain < -_TIE:
        said = f"one explicit step per interval, log evidence {-gain:+.1f} over the flow"
        return step, said, None
    said = f"the flow in continuous time, log evidence {gain:+.1f} over one step"
    if gain > _TIE:
        return flow, said, None
    return flow, f"{said}, which does not decide: the error bars include the difference", step


def _flow(
    problem: Problem, starts: dict[str, Start], fits: dict[str, PushFit], white: Whitening,
    stiff: float,
) -> tuple[str, PushFit, str]:  # fmt: skip
    """The flow in continuous time if an explicit step would overshoot the valleys.

    Such a step can send individuals anywhere, and so fits even births and deaths; it is not a flow.
    The functions are chosen again, among those that are few enough.
    """
    found = {}
    fewest = min(fit.model.basis.size for fit in fits.values())
    for name, fit in fits.items():
        if fit.model.basis.size > max(_MOST_FUNCTIONS, fewest):
            continue
        fine = fit.model.changed(steps=min(_count(stiff), _FEW_STEPS))
        tried = [share * z for z in (fit.z, starts[name].z) for share in _SHARES]
        for z in (_nearest(fine, white, tried), np.zeros_like(fit.z)):
            found[name] = fit_push(fine, white, z, fit.scales, iterations=_FEW_ITERATIONS)
            if np.isfinite(found[name].evidence):
                break
    best = _simplest(found)
    fit = found[best]
    # The explicit step's valleys were too steep: as many steps as these ask for.
    fine = fit.model.changed(steps=_count(stiffness(fit.field, problem.clouds, problem.times)))
    fit = fit_push(fine, Whitening.at(fine, fit.z), fit.z, fit.scales)
    said = f"the flow in {fine.steps} steps per interval, as one explicit step would overshoot"
    return best, fit, said


def _count(stiff: float) -> int:
    return int(np.clip(np.ceil(stiff / _STEP), 2, _MOST_STEPS))


def _simplest(fits: dict[str, PushFit]) -> str:
    """The simplest of equally good candidates, rather than the one that rounding prefers."""
    known = {name: fit.evidence for name, fit in fits.items() if np.isfinite(fit.evidence)}
    most = max(known.values(), default=-np.inf)
    alike = [name for name, one in known.items() if one > most - _ALIKE] or list(fits)
    return min(alike, key=lambda name: fits[name].model.basis.size)


def _slopes(problem: Problem) -> list[tuple[Array, Array]]:
    """Points with a gradient there: of the given potential, and of optimal couplings.

    The weak form is no start for a cloud that leaves its own support within an interval; couplings
    of a few hundred individuals show where it goes.
    """
    rng = np.random.default_rng([problem.seed, 3])
    least = min(_COUPLED, *(len(x) for x in problem.clouds))
    few = [x[rng.permutation(len(x))[:least]] for x in problem.clouds]
    pairs = zip(few[:-1], few[1:], np.diff(problem.times), strict=True)
    backward = [(x - partners(x, y)[0]) / tau for x, y, tau in pairs]
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
    """The parameters among some whose moments come nearest."""
    near = np.array([(white(model.residual(z)) ** 2).sum() for z in tried])
    return tried[int(np.argmin(np.where(np.isfinite(near), near, np.inf)))]
