"""Fisher scoring from the weak form, whose densities depend on the unknowns as well.

The weak form takes the densities on its right side as known. On many states they are noisy, or
belong to a flow that itself follows from `(rho_0, V, beta)`; either way the solution is biased, and
its covariance too small. Scoring replaces the integrals `A_k`, `b_k` of
`thalweg.learn.weak.regression` by the derivatives of the flow: a step solves

    J^T W J step = J^T (C_k - n_k p_k),    J = d log p / d(log rho_0, V, log beta),    W = n p,

without a prior. Conjugate gradients take ten to thirty products with the information; their
preconditioner is the weak form's own normal matrix along the present flow. A few steps reach the
statistical limit: on 1000 states in a plane beta has an error of 5 %, where slow modes, or V
smoothed first, leave it up to twice too high.

Errors are solutions for drawn scores. Without a prior a thousand coefficients bias beta where V is
rough: how far the mean flow of the drawn fields is from the flow of their mean shows by how much,
to second order. That is too much in difficult cases, and a share of it is added to the error
instead of being subtracted from beta.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import linalg
from scipy.stats import norm

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.kernel import MarkovKernel
from thalweg.learn.few.choose import few_per_state
from thalweg.learn.few.heights import CONTRADICTED, RISES
from thalweg.learn.fields.conjugate_gradients import Map, conjugate_gradients
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.likelihood import Likelihood, Place
from thalweg.learn.observation.multinomial import Multinomial
from thalweg.learn.weak.regression import (
    DRAWS,
    REJECTED,
    WIDER,
    RegressionFit,
    normal_equations,
    without_errors,
)
from thalweg.mobility import LogMean
from thalweg.status import Status

_MOST_STEPS, _MORE_STEPS = 20, 3
"""Number of steps, and of those that remain at least after the time step was halved."""
_MOST_SUBSTEPS = 8
"""Largest number of time steps per interval."""
_LONGEST, _TURNED = 1.0, 0.6
"""Longest step in log beta; share of a step that turns back, for V follows beta and overshoots."""
_FAR = 5.0
"""Longest step in a log density or in V."""
_SHARES = 6
"""Number of times a step is halved if it does not raise the likelihood."""
_STILL, _GAIN = 0.1, 0.01
"""Step in log beta, in standard errors, and gain in log likelihood per state that end a search."""
_TIME_BIAS, _TIME_APART = 0.2, 0.05
"""Errors of the time step that are left: in beta, in standard errors, and in deviance per state."""
_DAMPING, _RAISED = 1e-3, 30.0
"""Information added to every field, which holds states that nobody visits, and its factor after a
step that failed."""
_ENOUGH, _ITERATIONS = 0.05, 60
"""Squared error of the solutions in the norm of the information, of one per direction; most
iterations."""
_DENSE_STATES = 150
"""States up to which the information is formed: states that run empty spoil the preconditioner. On
more states conjugate gradients end before they reach the directions that hardly any individual
shows, so that errors are too small where individuals are few: two per state and snapshot gave
errors that held V at 0.76 of 160 and of 300 states."""
_SINGULAR = 1e-13
"""Relative size of the least eigenvalue of the scaled information."""
_UNIT = 300.0
"""Score of log beta whose solution gives its variance, large against `_ENOUGH`."""
_NUDGE, _FARTHEST, _PAIRS = 0.25, 1.0, 6
"""Share of drawn deviations in the mean flow, where they are cut off, and number of draws."""
_SYSTEMATIC = 0.4
"""Share of the second-order bias that counts as an error. On tuning landscapes the true one was 0.1
to 0.3 of it on rough and up to twice it, but below the error, on smooth ones."""
_DETERMINED = 0.3
"""Error of log beta above which its lower bound is not trusted: of four misses in 130 fits of 6 to
100 states, two had errors of 0.3 to 0.4 and betas two to three times too high."""
_TESTED = 60
"""Largest number of emptied states whose height is tried, those that fewest individuals show."""
_LEAST = 1e-12
"""Smallest probability along the path of the preconditioner."""
_LEAST_BETA = 1e-3
"""Smallest beta to start from, relative to the span of the potential."""


@single_threaded
def scored(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    start: RegressionFit,
    *,
    beta: float | None,
    rng: np.random.Generator,
    assessed: bool = True,
) -> RegressionFit | None:
    """The solution of `fit_regression` moved to where the likelihood is stationary.

    `assessed`: with errors and a goodness of fit, from drawn scores. The mean along edges is the
    logarithmic one. `None` if the flow of `start` cannot be computed.
    """
    likelihood = Likelihood(FlowMap(kernel, times), counts)
    u0 = np.log(start.initial / kernel.stationary)
    least = _LEAST_BETA * float(np.ptp(start.potential))
    theta = float(np.log(max(start.beta, least, 1e-6)))
    while (place := likelihood.at(u0, start.potential, theta)) is None:
        likelihood = likelihood.finer()
        if likelihood.flow.substeps > _MOST_SUBSTEPS:
            return None
    search = _Search(place, beta is None)
    while search.run() and search.refine():
        pass
    return search.answer(start, rng, assessed)


class _Search:
    """Scoring steps from a place; the last solution for log beta is kept for its error."""

    def __init__(self, place: Place, free: bool) -> None:
        self.place, self.free = place, free
        self.n = place.u0.size
        self.steps, self.last = 0, 0.0
        self.ended, self.damping = False, _DAMPING
        self.along = np.zeros(2 * self.n + 1)

    def run(self) -> bool:
        """Steps until they are short; whether one was made."""
        begun, self.ended = self.steps, False
        while self.steps < _MOST_STEPS:
            right = self.score(self.place)
            solved = self.solve(np.column_stack([right, self.unit]))
            self.along = solved[:, 1] / _UNIT
            before, step = self.place, self.bounded(solved[:, 0])
            self.steps += 1
            if not self.move(step):
                if self.damping == _DAMPING and 0.5 * float(right @ step) < _GAIN * self.n:
                    self.ended = True
                    break
                self.damping *= _RAISED
                continue
            damped = self.damping > _DAMPING
            self.damping = max(self.damping / _RAISED, _DAMPING)
            gain = self.place.log_likelihood - before.log_likelihood
            self.last = float(np.log(self.place.beta / before.beta))
            short = abs(self.last) <= _STILL * self.error and gain < _GAIN * self.n
            if short and not damped:
                self.ended = True
                break
        return self.steps > begun

    def bounded(self, step: Array) -> Array:
        """The best step whose move of log beta is neither too long nor turns back altogether."""
        turned = self.last * step[-1] < 0.0
        longest = min(_LONGEST, _TURNED * abs(float(step[-1]))) if turned else _LONGEST
        wanted = float(np.clip(step[-1], -longest, longest))
        if not self.free or wanted == step[-1]:
            return step
        return np.asarray(step + (wanted - step[-1]) / max(self.along[-1], 1e-300) * self.along)

    def move(self, step: Array) -> bool:
        """Take the step, or a share of it that raises the likelihood, if there is one."""
        place = self.place
        share = min(1.0, _FAR / max(float(np.abs(step[:-1]).max()), 1e-300))
        for _ in range(_SHARES):
            new = self.at(share * step)
            if new is not None and new.log_likelihood > place.log_likelihood:
                self.place = new
                return True
            share *= 0.5
        return False

    def refine(self) -> bool:
        """Halve the time step if that would move the solution; whether it did."""
        place = self.place
        if 2 * place.likelihood.flow.substeps > _MOST_SUBSTEPS:
            return False
        new = place.finer()
        if new is None:
            return False
        bias = abs(float(self.along @ (self.score(new) - self.score(place))))
        if bias < _TIME_BIAS * self.error and new.apart(place) < _TIME_APART * self.n:
            return False
        self.place, self.steps = new, min(self.steps, _MOST_STEPS - _MORE_STEPS)
        return True

    @property
    def unit(self) -> Array:
        """The score whose solution gives the variance of log beta."""
        return np.append(np.zeros(2 * self.n), _UNIT)

    @property
    def error(self) -> float:
        """The standard error of log beta."""
        return float(np.sqrt(max(self.along[-1], 0.0))) if self.free else 0.0

    def at(self, step: Array) -> Place | None:
        """The place that a step leads to."""
        place, n = self.place, self.n
        moved = float(np.log(place.beta) + step[-1])
        return place.likelihood.at(place.u0 + step[:n], place.V + step[n:-1], moved)

    def score(self, place: Place) -> Array:
        fields, theta = place.score()
        return np.append(fields, theta if self.free else 0.0)

    def curvature(self, tolerance: float = 1e-3) -> Map:
        """The damped information along the coarse chain, which costs a third."""
        place, free, damping = self.place, self.free, self.damping

        def product(x: Array) -> Array:
            z, theta = place.information(x[:-1], x[-1] * free, tolerance=tolerance, coarse=True)
            return np.concatenate([z + damping * x[:-1], (theta if free else x[-1])[None]])

        return product

    def preconditioner(self) -> Map:
        """The inverse of the weak form's normal matrix, in log densities and log beta."""
        place, n, free = self.place, self.n, self.free
        flow, path = place.likelihood.flow, np.maximum(np.exp(place.log_p), _LEAST)
        equations = normal_equations(
            flow.kernel, flow.times, place.likelihood.totals, path, LogMean()
        )
        scale = np.concatenate([1.0 / path[0], np.ones(n), [1.0 / place.beta]])[:, None]

        def solve(r: Array) -> Array:
            x = scale * equations.solve(scale * r, None if free else 0.0)
            x[n:-1] -= x[n:-1].mean(axis=0)
            if not free:
                x[-1] = r[-1]
            return np.asarray(x)

        return solve

    def solve(self, right: Array) -> Array:
        """The inverse information times the columns of `right`."""
        if self.n <= _DENSE_STATES:
            matrix = self.curvature(1e-6)(np.eye(2 * self.n + 1))
            scale = 1.0 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))
            values, vectors = linalg.eigh(0.5 * (matrix + matrix.T) * np.outer(scale, scale))
            inverse = 1.0 / np.maximum(values, _SINGULAR * values[-1])
            along = vectors.T @ (scale[:, None] * right)
            return np.asarray(scale[:, None] * (vectors @ (inverse[:, None] * along)))
        solved, _ = conjugate_gradients(
            self.curvature(), right, self.preconditioner(),
            tolerance=1e-4, least=_ENOUGH, max_iterations=_ITERATIONS,
        )  # fmt: skip
        return solved

    # ------------------------------------------------------------------ the result

    def answer(
        self, start: RegressionFit, rng: np.random.Generator, assessed: bool
    ) -> RegressionFit:
        """Potential, beta and first distribution where the search ended."""
        place, likelihood = self.place, self.place.likelihood
        pi, counts = likelihood.kernel.stationary, likelihood.counts
        p = np.exp(place.log_p)
        beta = place.beta if self.free else start.beta
        noise = Multinomial()
        expected, variance = noise.expected_deviance(counts, p)
        fit = replace(
            start,
            potential=place.V - pi @ place.V,
            beta=beta,
            beta_raw=beta,
            initial=p[0],
            chi_square=noise.deviance(counts, p),
            freedom=expected - 2.0 * self.n,
            status=Status.CONVERGED if self.ended else Status.MAX_ITERATIONS,
        )
        if not assessed:
            return fit
        few = self.n > _DENSE_STATES and few_per_state(counts)
        if few or not self.ended:
            # With few counts it ends well below what is expected without any fitting.
            p_value = float(norm.sf((fit.chi_square - expected) / np.sqrt(variance)))
            fit = replace(fit, p_value=p_value if p_value < REJECTED else np.nan)
            return without_errors(fit, None if self.free else beta)
        self.damping = _DAMPING
        g0, gV, theta = place.pull(place.noise(DRAWS, rng), 1e-3, coarse=True)
        right = np.concatenate([g0, gV, (theta * self.free)[None]])
        scores = right
        if self.n <= _DENSE_STATES:
            # Scores of the damping as well: what it holds and no individual shows is uncertain.
            # Conjugate gradients would take three times as long for them and end too early.
            held = np.sqrt(_DAMPING) * rng.standard_normal((2 * self.n, DRAWS))
            scores = right + np.vstack([held, np.zeros((1, DRAWS))])
        solved = self.solve(np.column_stack([scores, self.unit]))
        draws, self.along = solved[:, :-1], solved[:, -1] / _UNIT
        fields = draws[self.n : -1] - pi @ draws[self.n : -1]
        # What noise takes from the deviance: the number of directions that the data determine.
        freedom = expected - float(np.mean(np.sum(right * draws, axis=0)))
        error, lower, upper, stderr = 0.0, 0.0, np.inf, WIDER * np.sqrt(np.mean(fields**2, axis=1))
        if self.free:
            error = float(np.hypot(WIDER * self.error, _SYSTEMATIC * self.bias(draws)))
            error = float(np.hypot(error, self.last))
            upper = beta * float(np.exp(min(1.96 * error, 700.0)))
            lower = beta * float(np.exp(-1.96 * error)) if error < _DETERMINED else 0.0
            # V follows beta, and so what else is uncertain about beta moves V, too.
            response = (self.along[self.n : -1] - pi @ self.along[self.n : -1]) / self.along[-1]
            further = np.sqrt(max(error**2 - (WIDER * self.error) ** 2, 0.0))
            stderr = np.hypot(stderr, further * response)
        if self.n <= _DENSE_STATES:  # on more states these flows would take most of the time
            rise = self.open_above() ** 2
            stderr = np.sqrt(stderr**2 + rise * (1.0 - 2.0 * pi) + pi**2 @ rise)
        return replace(
            fit,
            potential_stderr=stderr,
            beta_stderr=beta * error,
            beta_interval=(lower, upper),
            freedom=freedom,
            p_value=float(norm.sf((fit.chi_square - freedom) / np.sqrt(variance))),
        )

    def open_above(self) -> Array:
        """How much higher each state could lie without being contradicted, as a standard error.

        A state that empties shows how high it is at least: the likelihood is a plateau above, of
        whose width the curvature at its edge says nothing.
        """
        place, counts = self.place, self.place.likelihood.counts
        pi = place.likelihood.kernel.stationary
        spread = float(np.sqrt(pi @ (place.V - pi @ place.V) ** 2))
        least = place.log_likelihood - CONTRADICTED
        seen = counts.sum(axis=0)
        emptied = np.flatnonzero((counts[-1] == 0) & (seen > 0))
        rise = np.zeros(self.n)
        for x in emptied[np.argsort(seen[emptied])][:_TESTED]:
            for factor in RISES[::-1]:
                step = np.zeros(2 * self.n + 1)
                step[self.n + x] = factor * spread
                new = self.at(step)
                if new is not None and new.log_likelihood > least:
                    rise[x] = factor * spread / 1.96
                    break
        return rise

    def bias(self, draws: Array) -> float:
        """The bias of log beta to second order, for errors `x` of covariance `H^-1`:

        `H^-1 J^T n (E p(theta + x) - p(theta))`.
        """
        place = self.place
        p, total, count = np.exp(place.log_p), np.zeros_like(place.log_p), 0
        for draw in draws.T[:_PAIRS]:
            step = _NUDGE * np.clip(draw, -_FARTHEST, _FARTHEST)
            pair = [self.at(sign * step) for sign in (1.0, -1.0)]
            ends = [np.exp(end.log_p) for end in pair if end is not None]
            if len(ends) == 2:
                total += (0.5 * (ends[0] + ends[1]) - p) / _NUDGE**2
                count += 1
        if count == 0:
            return np.inf
        counts = place.likelihood.totals[:, None] * total / count
        g0, gV, theta = place.pull(counts[:, :, None])
        score = np.concatenate([g0[:, 0], gV[:, 0], theta])
        return float(self.along @ score)
