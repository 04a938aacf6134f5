"""`fit_few`: a landscape from few individuals, averaged over betas and priors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from thalweg._door import single_threaded
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.learn.few.blocks import inverse_of
from thalweg.learn.few.columns import Lattice
from thalweg.learn.few.heights import CONTRADICTED, RISES
from thalweg.learn.few.inner import Cell, Inner
from thalweg.learn.few.interval import DROP, beta_hull
from thalweg.learn.few.lattice import explore
from thalweg.learn.few.mixture import Mixture
from thalweg.learn.likelihood.deviance import fitted_deviance
from thalweg.learn.likelihood.model import Mesh, first_mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.priors import Prior
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.likelihood.sparse.flow import (
    SPARSE_STATES,
    SparseFlow,
    evaluated,
    is_plain,
    probabilities,
)
from thalweg.learn.limits import limit_status
from thalweg.learn.verdict import BetaVerdict
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

__all__ = ["FewFit", "fit_few", "open_above", "reaching"]

_MEMBERS = 12
"""Landscapes kept for forecasts: together they hold most of the weight."""
_MOST_CELLS = (120, 600)
"""Bounds on the number of cells; 12000 / N between them."""
_FIRST_STEPS, _MANY = (4, 1), 60
"""Steps per interval to begin with, at most, below and from so many states: the first fit's beta,
by which they are chosen, may be far too large. Cells whose steps are too coarse refine them. On 12
data sets of 300 states and 16 of 100 beginning with one step took 0.86 of the time of beginning
with four, for the same intervals and forecasts."""
_BETA_PRECISION = 1.0 / 9.0
_NO_OBJECTION = 0.8
"""Expected change of half the deviance that needs no flow to be believed."""
_BARRIERS = (1.0, 2.0, 3.0, 5.0, 8.0)
"""Spreads of the landscape by which a state that was never crossed is lifted."""
_PUSHED_UP = -1.0
"""Change of half the deviance per spread by which counts push up a barrier: -2.7 to -3.7 in six
simulated ones, in which V was covered at 0.67 to 0.96 before."""


@dataclass(frozen=True, eq=False)
class FewFit:
    """An average over landscapes, the best of them, and what the data say about beta."""

    best: LikelihoodFit
    """The landscape of greatest evidence, as an ordinary fit."""
    mixture: Mixture
    potential: Array
    """Centred, averaged."""
    potential_stderr: Array
    """Within and between the landscapes."""
    beta: float
    initial: Array
    joint_covariance: Array
    """Of (centred potential, beta, log initial distribution), within and between."""
    verdict: BetaVerdict
    n_cells: int
    status: Status

    @property
    def energy(self) -> FreeEnergy:
        old = self.best.energy
        return FreeEnergy(self.potential, self.beta, old.interaction, old.internal)


@single_threaded
def fit_few(fit: LikelihoodFit, *, progress: Progress | None = None) -> FewFit:
    """Average over betas and priors, starting from nothing and from an ordinary fit of the data.

    Parameters
    ----------
    fit : The ordinary fit: its data and model are used, its optimum is one of the starts.
    progress : Called as `progress(what, done, total)`.

    >>> from thalweg.kernel import MarkovKernel
    >>> from thalweg.learn.likelihood.fit import fit_likelihood
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = [[80, 15, 5], [60, 29, 11], [47, 37, 16], [40, 41, 19]]
    >>> few = fit_few(fit_likelihood(kernel, [0.0, 0.5, 1.0, 1.5], counts))
    >>> few.status.name, few.mixture.weights.sum().round(6)
    ('CONVERGED', np.float64(1.0))
    """
    model, counts, n = fit.model, fit.counts, fit.model.n_states
    scale = 0.5 / float(model.times[-1] - model.times[0]) + fit.beta
    mesh = first_mesh(model, scale, most=_FIRST_STEPS[n >= _MANY], levels=2)
    inner = Inner(model, counts, mesh, fit.noise)
    log_initial = np.log(smoothed(counts[0]) / model.kernel.stationary)
    begin = np.concatenate([np.zeros(n), log_initial - log_initial.mean()])
    seed = np.concatenate([fit.theta[:n], fit.theta[model.initial_slice]])
    low, high = _MOST_CELLS
    lattice = explore(
        inner,
        begin,
        most=int(np.clip(12_000 // n, low, high)),
        seeds=((float(np.log(max(fit.beta, 1e-300))), seed),),
        log_beta=None if model.fixed_beta is None else float(np.log(model.fixed_beta)),
        progress=progress,
    )
    return _summary(fit, lattice, inner)


def _summary(fit: LikelihoodFit, lattice: Lattice, inner: Inner) -> FewFit:
    model, n = fit.model, fit.model.n_states
    weighted = lattice.weighted()
    if not weighted:
        raise InputError(
            "no landscape at any beta has a finite likelihood; check the sizes of counts and times."
        )
    w = np.array([weight for _, weight in weighted])
    cells = [cell for cell, _ in weighted]
    pi = model.kernel.stationary
    points = np.array([_point(cell, pi) for cell in cells])
    mean = w @ points
    if model.learns_beta:
        mode, lower, upper = beta_hull(lattice)
        log_betas = np.array([cell.place.log_beta for cell in cells])
        beta = float(np.exp(w @ log_betas))
        if lower > 0 and np.isfinite(upper):
            verdict, beta = BetaVerdict("determined", lower, upper), mode
        else:
            verdict = BetaVerdict("undetermined", lower, upper)
    else:
        beta = float(fit.beta)
        verdict = BetaVerdict("given", beta, beta)
    apart = points - mean
    covariance = (w[:, None] * apart).T @ apart
    within = _within(weighted, points, pi)
    free = np.delete(np.arange(2 * n + 1), n)
    covariance[np.ix_(free, free)] += within
    if verdict.kind == "determined":
        covariance += _between_columns(lattice, verdict, covariance[n, n] / mean[n] ** 2, pi)
    elif verdict.kind == "undetermined":
        for end, fall in _ends(lattice, verdict, pi):
            covariance[:n, :n] += reaching(covariance[:n, :n], end - mean[:n], fall)
        if verdict.lower == 0.0 and not np.isfinite(verdict.upper):
            # The potential's size hangs on beta, and so may as well be none or twice that.
            covariance[:n, :n] += np.outer(mean[:n], mean[:n])
    covariance *= fit.noise.inflation
    best = _as_fit(fit, lattice.best, inner)
    linear = np.eye(n) - pi
    covariance[:n, :n] += (linear * open_above(best) ** 2) @ linear.T
    initial = np.exp(mean[n + 1 :])
    some = slice(0, _MEMBERS)
    mixture = Mixture(
        w[some] / w[some].sum(),
        points[some, :n],
        points[some, n],
        np.exp(points[some, n + 1 :]),
    )
    status = Status.CONVERGED if lattice.finished else limit_status()
    return FewFit(
        best=best,
        mixture=mixture,
        potential=mean[:n],
        potential_stderr=np.sqrt(np.maximum(np.diag(covariance)[:n], 0.0)),
        beta=beta,
        initial=initial / initial.sum(),
        joint_covariance=covariance,
        verdict=verdict,
        n_cells=inner.n_cells,
        status=status,
    )


def _between_columns(
    lattice: Lattice, verdict: BetaVerdict, variance: float, pi: Array
) -> Array | float:
    """What the interval of beta says beyond the scatter of the columns, along their path.

    Where data are many, beta is known better than two columns lie apart, and one of them has all
    the weight: the `variance` of log beta between them is then nearly nothing.
    """
    log_betas = lattice.log_betas
    reach = np.log(verdict.upper / verdict.lower) / (2.0 * np.sqrt(2.0 * DROP))
    missing = float(reach**2 - variance)
    if log_betas.size < 2 or missing <= 0.0:
        return 0.0
    i = int(np.clip(np.argmax(lattice.values), 1, log_betas.size - 1))
    first, last = max(i - 1, 0), min(i + 1, log_betas.size - 1)
    ends = [_point(lattice.columns[k].best, pi) for k in (first, last)]
    slope = (ends[1] - ends[0]) / (log_betas[last] - log_betas[first])
    slope[pi.size] = np.sqrt(verdict.lower * verdict.upper)
    return np.asarray(missing * np.outer(slope, slope))


def _ends(lattice: Lattice, verdict: BetaVerdict, pi: Array) -> list[tuple[Array, float]]:
    """Centred potentials at the ends of beta's interval, with the fall of the likelihood there.

    Where zero is not excluded the lower end is the lowest beta that was tried. An interval that is
    open above has no upper end: the prior's width stands for it.
    """
    betas = np.exp(lattice.log_betas)
    inside = np.flatnonzero((betas >= verdict.lower) & (betas <= verdict.upper))
    at = inside[[0, -1]] if np.isfinite(verdict.upper) else inside[:1]
    return [(_point(lattice.columns[k].best, pi)[: pi.size], float(lattice.fall[k])) for k in at]


def reaching(covariance: Array, away: Array, fall: float) -> Array:
    """What a covariance lacks along a way whose end the data allow.

    The average may put nearly all its weight far from there. The end lies as many standard
    deviations away as the `fall` of the log likelihood says, but not less than two of them.

    >>> reaching(np.eye(2), np.array([10.0, 0.0]), 0.1).round(1)
    array([[25.,  0.],
           [ 0.,  0.]])
    """
    square = float(away @ away)
    if square == 0.0:
        return np.zeros_like(covariance)
    allowed = 2.0 * float(np.clip(fall, CONTRADICTED, DROP))
    missing = 1.0 / allowed - float(away @ covariance @ away) / square**2
    return np.asarray(max(missing, 0.0) * np.outer(away, away))


def open_above(fit: LikelihoodFit) -> Array:
    """How much higher each state could lie without being contradicted by the counts.

    A state that empties between two snapshots shows how high it is at least, not at most. There the
    prior decides, at the edge of a plateau of the likelihood, where the curvature says nothing of
    the width of the plateau. The rise is tried at one, two and three spreads of the landscape.
    A state that was never seen has the prior's own width as error, unless the counts push it up
    against the prior: a barrier that nobody crossed, which may be far higher than others are.
    """
    model, n = fit.model, fit.model.n_states
    rise = np.zeros(n)
    spread = float(np.sqrt(model.kernel.stationary @ fit.potential**2))
    gradient = -(fit.prior.quadratic(fit.theta)[1])  # of the data, at the optimum
    half_deviance = _half_deviance(fit)
    most = half_deviance(fit.theta) + CONTRADICTED
    seen = fit.counts.sum(axis=0) > 0
    barrier = ~seen & (gradient[:n] * spread < _PUSHED_UP)
    for x in np.flatnonzero((fit.counts[-1] == 0) & (seen | barrier)):
        for factor in RISES if seen[x] else _BARRIERS:
            step = factor * spread
            # Where the curvature itself hardly objects, no flow is needed.
            expected = step * gradient[x] + 0.5 * step**2 * fit.information[x, x]
            if abs(expected) > _NO_OBJECTION:
                theta = fit.theta.copy()
                theta[x] += step
                if not half_deviance(theta) <= most:
                    break
            rise[x] = step / 1.96
    return rise


def _half_deviance(fit: LikelihoodFit) -> Callable[[Array], float]:
    """Half deviance as a function of the parameters near a fit, on coarse time steps."""
    if is_plain(fit.model) and fit.model.n_states >= SPARSE_STATES:
        flow = SparseFlow(fit.model, fit.counts, Mesh(fit.mesh.substeps, 1), fit.noise)
        first = flow.at(fit.theta)
        if first is not None:

            def fast(theta: Array) -> float:
                return first.value if theta is fit.theta else flow.value_near(theta, first)

            return fast

    def slow(theta: Array) -> float:
        p = probabilities(fit.model, theta, fit.mesh)
        return np.inf if p is None else 0.5 * fit.noise.deviance(fit.counts, p)

    return slow


def _point(cell: Cell, pi: Array) -> Array:
    """(centred potential, beta, log initial distribution) of a cell."""
    n = pi.size
    v, a = cell.theta[:n], cell.theta[n:]
    log_p = a - a.max() + np.log(pi)
    log_p = log_p - np.log(np.exp(log_p).sum())
    return np.concatenate([v - pi @ v, [np.exp(cell.place.log_beta)], log_p])


def _within(weighted: list[tuple[Cell, float]], points: Array, pi: Array) -> Array:
    """The average covariance of `_point` without beta, inside the cells.

    Cells that were expanded from the same one, under the same prior of the start, are taken
    together: the start's part is then computed once for all of them.
    """
    n = pi.size
    groups: dict[object, list[int]] = {}
    for i, (cell, _) in enumerate(weighted):
        key = (id(cell.known), cell.place.log_initial, id(cell.place.initial))
        groups.setdefault(key, []).append(i)
    total = np.zeros((2 * n, 2 * n))
    for members in groups.values():
        potential, p, weight = np.zeros((n, n)), np.zeros(n), 0.0
        for i in members:
            cell, w = weighted[i]
            curvature = cell.curvature
            potential += w * curvature.potential_covariance
            p += w * np.exp(points[i, n + 1 :])
            weight += w
            cell.forget()
        part = weight * curvature.start.covariance(potential / weight)
        for some, weights in ((slice(0, n), pi), (slice(n, 2 * n), p / weight)):
            part[some] -= weights @ part[some]
            part[:, some] -= (part[:, some] @ weights)[:, None]
        total += part
        cell.forget(every=True)
    return total


def _as_fit(fit: LikelihoodFit, cell: Cell, inner: Inner) -> LikelihoodFit:
    """The best cell in the form of an ordinary fit, its beta learned."""
    model, n = fit.model, fit.model.n_states
    parts = [cell.theta[:n], cell.theta[n:]]
    if model.learns_beta:
        parts.insert(1, np.array([cell.place.log_beta]))
    theta = np.concatenate(parts)
    base, mean = np.zeros((theta.size, theta.size)), np.zeros(theta.size)
    i = model.initial_slice
    base[i, i] = np.exp(cell.place.log_initial) * cell.place.initial.matrix
    if model.learns_beta:
        base[model.beta_index, model.beta_index] = _BETA_PRECISION
        mean[model.beta_index] = -np.log(inner.span)
    strength = float(np.exp(cell.place.log_strength))
    prior = Prior(strength, cell.place.potential.matrix, base, mean, 1.0)
    found = evaluated(IndependentObjective(model, fit.counts, fit.noise), theta, cell.mesh)
    if found is None:  # it was computed at this very place before
        return fit
    evaluation, p = found
    covariance = inverse_of(evaluation.information + prior.precision)
    used = float(np.sum(covariance * evaluation.information))
    expected, spread = fitted_deviance(fit.noise.expected_deviance(fit.counts, p), used)
    covariance *= fit.noise.inflation
    return replace(
        fit,
        energy=model.energy(theta),
        initial=p[0],
        probabilities=p,
        log_likelihood=fit.noise.saturated(fit.counts) - evaluation.value,
        deviance=2.0 * evaluation.value,
        expected_deviance=expected,
        deviance_stderr=spread,
        status=cell.status,
        n_iterations=fit.n_iterations + inner.n_iterations,
        theta=theta,
        covariance=np.asarray(covariance, dtype=np.float64),
        information=evaluation.information,
        mesh=cell.mesh,
        prior=prior,
    )
