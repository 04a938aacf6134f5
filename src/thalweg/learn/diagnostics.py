"""What the data leave open, and whether the form of the model is right.

- `undetermined`: states never seen, and contrasts of the potential on which the likelihood is flat.
- `goodness_of_fit`: is this a gradient flow of this form? The deviance against what it would be if
  the fit were true, with small counts and the fitted parameters accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, gamma

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg._words import p_text
from thalweg.energy import FreeEnergy
from thalweg.flow import simulate
from thalweg.flow.particles import transition_matrices
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.deviance import expected_deviance
from thalweg.learn.likelihood.inverse import inverse
from thalweg.learn.likelihood.result import LikelihoodFit

_MOST_CYCLES = 50
"""Largest number of cycle forces in the test."""
_COMMON = 1.0
"""Expected individuals from which a cell (a state at a time) enters the test against forces around
cycles: one individual in a cell of 1e-8 would decide it, which is no chi-square variable."""
_RARE, _VAGUE = 0.1, 1.0
"""Expected individuals up to which a cell, and error of its log probability from which it, is not
predicted. In two of 24 simulated sets with hills of 30 beta, one individual was seen where the fit
expected 5e-4 and 3e-8, with errors of 5 and 13 in the logarithm; p was below 1e-250."""
_LEAPS = 200
"""Steps per interval of a simulated population whose own density sets its rates."""
_USED = 0.2
"""Relative error of the number of parameters that large fits determine: it comes from a few draws,
and from a prior that suits no landscape exactly."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A direction of the potential that the data leave open."""

    weights: Array
    """Unit vector over the states."""
    stderr: float
    """Standard error from the data alone; infinite where the likelihood is flat."""
    raised: tuple[int, ...]
    """States that go up along it."""
    lowered: tuple[int, ...]

    def __str__(self) -> str:
        up = ", ".join(map(str, self.raised)) or "-"
        down = ", ".join(map(str, self.lowered)) or "-"
        return f"states {up} against {down}: standard error {self.stderr:.3g}"


@dataclass(frozen=True, eq=False)
class Undetermined:
    """States and contrasts that the data do not determine."""

    never_seen: tuple[int, ...]
    contrasts: tuple[Contrast, ...]
    beta: bool
    """Whether the data leave the scale of `beta` open (standard error of its logarithm above 1)."""

    def __bool__(self) -> bool:
        return bool(self.never_seen or self.contrasts or self.beta)

    def __str__(self) -> str:
        lines = []
        if self.never_seen:
            lines.append(f"states never seen: {', '.join(map(str, self.never_seen))}")
        lines += [f"not determined: {contrast}" for contrast in self.contrasts]
        if self.beta:
            lines.append("not determined: the size of beta; give it, or add snapshots")
        return "\n".join(lines) or "the data determine every contrast"


def undetermined(fit: LikelihoodFit, *, tolerance: float = 1.0) -> Undetermined:
    """States never seen, and contrasts whose standard error exceeds the potential's own size.

    `tolerance` is in units of the standard deviation of a typical potential here. The information
    about the potential is that left after adjusting for the other parameters.
    """
    model = fit.model
    k, n = model.n_potential, model.n_states
    never = tuple(int(x) for x in np.flatnonzero(fit.counts.sum(axis=0) == 0))
    vague = model.learns_beta and _vague(fit)
    if k == 0:
        return Undetermined(never, (), vague)
    information = fit.information + 1e-12 * np.trace(fit.information) * np.eye(model.n_parameters)
    rest = np.arange(k, model.n_parameters)
    own = information[:k, :k]
    if rest.size:
        cross = information[:k, rest]
        base = fit.prior.precision[np.ix_(rest, rest)]
        own = own - cross @ inverse(information[np.ix_(rest, rest)] + base) @ cross.T
    # The gauge is taken out first: constants change nothing and are not reported.
    linear = fit._centring
    _, sizes, rows = np.linalg.svd(linear)
    seen = rows[: sizes.size][sizes > 1e-9 * sizes.max()]
    values, vectors = np.linalg.eigh(0.5 * seen @ (own + own.T) @ seen.T)
    vectors = seen.T @ vectors
    scale = float(np.sqrt(fit.kernel.stationary @ fit.potential**2)) + fit.beta
    contrasts = []
    floor = 1e-10 * max(float(values.max()), 1e-300)
    for value, vector in zip(values, vectors.T, strict=True):
        shape = linear @ vector
        size = float(np.linalg.norm(shape))
        stderr = size / np.sqrt(value) if value > floor else np.inf
        if stderr < tolerance * scale * np.sqrt(n):
            continue
        unit = shape / size
        unit = unit - np.median(unit)
        large = np.abs(unit) > 0.3 * np.abs(unit).max()
        sign = 1.0 if unit[np.argmax(np.abs(unit))] > 0 else -1.0
        contrasts.append(
            Contrast(
                sign * shape / size,
                float(stderr),
                tuple(int(x) for x in np.flatnonzero(large & (sign * unit > 0))),
                tuple(int(x) for x in np.flatnonzero(large & (sign * unit < 0))),
            )
        )
    return Undetermined(never, tuple(contrasts), vague)


def _vague(fit: LikelihoodFit) -> bool:
    precision = fit.prior.precision.copy()
    i = fit.model.beta_index
    precision[i, i] = 0.0
    covariance = inverse(fit.information + precision)
    return bool(covariance[i, i] > 1.0 or fit.information[i, i] < 1.0)


@dataclass(frozen=True)
class GoodnessOfFit:
    """The verdict on the form of the model."""

    deviance: float
    expected: float
    """Its mean if the fitted flow were the true one."""
    deviation: float
    """Its standard deviation then."""
    p_overall: float
    """P-value of the deviance: any misfit."""
    p_cycles: float
    """P-value of forces around the graph's cycles, which no potential has; 1 without cycles."""
    p_joint: float | None = None
    """P-value of the smaller of the two, among draws from the fit; `None` without draws."""

    @property
    def p_value(self) -> float:
        """Both together: uniform between 0 and 1 if the model is true."""
        if self.p_joint is not None:
            return self.p_joint
        if self.p_cycles == 1.0:
            return self.p_overall
        # As if they were independent.
        return 1.0 - (1.0 - min(self.p_overall, self.p_cycles)) ** 2

    @property
    def statistic(self) -> float:
        """Standard deviations above the mean."""
        return (self.deviance - self.expected) / self.deviation

    def __str__(self) -> str:
        verdict = "fits" if self.p_value >= 0.05 else "does not fit"
        return (
            f"the gradient flow {verdict} (deviance {self.deviance:.1f}, expected "
            f"{self.expected:.1f} +- {self.deviation:.1f}, {p_text(self.p_value, 3)})"
        )


@single_threaded
def goodness_of_fit(
    fit: LikelihoodFit, *, rng: np.random.Generator, n_draws: int = 400
) -> GoodnessOfFit:
    """Whether counts like these are likely under the fitted flow.

    Counts are drawn from the fit, and their deviance from it gives the null distribution, which is
    also correct where states are nearly empty. A fit to each draw would lower its deviance; for
    independent snapshots one step of Newton's method under the fit's own prior gives by how much,
    which saves the refits. For tracked ones the null is shifted and narrowed by the number of
    parameters used.

    A drift that is not a gradient has forces around the cycles of the graph. For independent
    snapshots these have their own score test: with `s` the slope of the log likelihood in such
    forces and `I` their information adjusted for all parameters, the statistic is `s^T I^-1 s`. The
    p-value of the smaller of both comes from the same draws.

    If the scatter of the counts was estimated from the same residuals, a large deviance looks like
    scatter and tests nothing. The residuals of a wrong flow are alike at neighbouring times, those
    of scatter are not: the statistic is then the sum of the products of standardised residuals at
    neighbouring times, and `expected` and `deviation` are its own.

    A fit shrunk by the evidence is tested as it was before: its errors include the shift.
    """
    if fit.unshrunk is not None:
        return goodness_of_fit(fit.unshrunk, rng=rng, n_draws=n_draws)
    if fit.noise.absorbs_misfit:
        return _pattern_test(fit, rng, n_draws)
    options = fit.settings
    if options.observation == "independent" and options.discretization == "continuous":
        joint = _joint_test(fit, rng, n_draws)
        if joint is not None:
            return joint
    draws = _null_deviances(fit, rng, n_draws)
    used = _parameters_used(fit)
    mean, variance = float(draws.mean()), float(draws.var(ddof=1))
    expected = mean - used
    deviation = float(np.sqrt(max(variance - 2.0 * used, 0.25 * variance)))
    null = (draws - mean) / np.sqrt(variance)
    observed = (fit.deviance - expected) / deviation
    above = float(np.sum(null >= observed))
    p_value = (above + 1.0) / (n_draws + 1.0)
    if above < 10:
        # Beyond the draws: a gamma distribution with their mean, variance and skewness.
        p_value = min(p_value, _gamma_tail(draws, observed))
    return GoodnessOfFit(fit.deviance, expected, deviation, p_value, 1.0)


def goodness_of_many(
    deviance: float, counts: Array, probabilities: Array, used: float
) -> GoodnessOfFit:
    """The verdict on a fit to many states, from the moments of its deviance alone.

    `used` is the number of parameters that the data determined. A prior that suits the landscape
    lowers the deviance by that number; the error of that is added to the spread.

    >>> counts = np.full((3, 50), 40.0)
    >>> goodness_of_many(147.0 - 60.0, counts, counts / 2000, 60.0).p_value > 0.4
    True
    """
    mean, variance = expected_deviance(counts.sum(axis=1), probabilities)
    expected = max(mean - used, 1.0)
    spread = max(variance - 2.0 * used, 0.25 * variance) + (_USED * used) ** 2
    p_value = float(gamma.sf(deviance, expected**2 / spread, scale=spread / expected))
    return GoodnessOfFit(deviance, expected, float(np.sqrt(spread)), p_value, 1.0)


def _joint_test(fit: LikelihoodFit, rng: np.random.Generator, n_draws: int) -> GoodnessOfFit | None:
    """Deviance and forces around cycles together, against draws; None without a flow."""
    size, forces = fit.model.n_parameters, cycle_forces(fit.kernel, rng)
    found = fit.model.sensitivities(fit.theta, fit.mesh, forces=forces)
    if found is None:
        return None
    log_p, slopes = found[0], found[1].reshape(found[0].size, -1)
    terms = fit.noise.terms(fit.counts, log_p)
    own = slopes[:, :size]
    cells = _Cells.of(fit, log_p, own)
    common = cells.common.ravel()
    drawn = [draw_counts(fit, rng) for _ in range(n_draws)]
    pulls = np.array([fit.noise.terms(counts, log_p).pull.ravel() for counts in drawn])
    pulls *= cells.predicted.ravel()
    deviances = np.array([fit.noise.deviance(*cells.lumped(counts)) for counts in drawn])
    deviances = fit.noise.null_deviances(deviances, rng)
    scores = pulls @ own
    moved = (scores - fit.prior.quadratic(fit.theta)[1]) @ (fit.covariance / fit.noise.inflation)
    gained = 2.0 * np.sum(scores * moved, axis=1) - np.sum(
        moved * (moved @ fit.information), axis=1
    )
    deviances -= gained
    cycles = _score_directions(slopes, common * terms.information.ravel(), size) * common[:, None]
    observed = fit.noise.deviance(*cells.lumped(fit.counts))
    statistics = [(observed, deviances)]
    if cycles.shape[1]:
        seen = float(np.sum((terms.pull.ravel() @ cycles) ** 2))
        statistics.append((seen, np.sum((pulls @ cycles) ** 2, axis=1)))
    own_ranks = [float(1.0 + np.sum(draws >= seen)) / (n_draws + 1.0) for seen, draws in statistics]
    ranks = [1.0 - np.argsort(np.argsort(draws)) / n_draws for _, draws in statistics]
    smallest = np.min(ranks, axis=0)
    p_joint = (1.0 + np.sum(smallest <= min(own_ranks))) / (n_draws + 1.0)
    expected, deviation = float(deviances.mean()), float(deviances.std(ddof=1))
    if own_ranks[0] * (n_draws + 1) <= 10:
        # Beyond the draws: a gamma distribution with their mean, variance and skewness.
        tail = _gamma_tail(deviances, (observed - expected) / deviation)
        own_ranks[0] = min(own_ranks[0], tail)
    if len(statistics) > 1 and own_ranks[1] * (n_draws + 1) <= 10:
        own_ranks[1] = min(own_ranks[1], float(chi2.sf(statistics[1][0], cycles.shape[1])))
    if min(own_ranks) < 1.0 / n_draws:
        p_joint = min(p_joint, len(own_ranks) * min(own_ranks))
    return GoodnessOfFit(
        observed, expected, deviation, float(own_ranks[0]),
        float(own_ranks[1]) if len(own_ranks) > 1 else 1.0, float(p_joint),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Cells:
    """What a fit says about its cells, each a state at one of the times."""

    p: Array
    common: Array
    """Where at least `_COMMON` individuals are expected."""
    predicted: Array
    """All but the rare cells whose probability has an error of more than a factor."""
    rest: Array
    """Probability of the other cells together, at each time: as large as their errors allow, up to
    one individual."""

    @classmethod
    def of(cls, fit: LikelihoodFit, log_p: Array, slopes: Array) -> _Cells:
        sizes = fit.noise.effective(fit.counts).sum(axis=1, keepdims=True)
        p, covariance = np.exp(log_p), fit.covariance / fit.noise.inflation
        squares = np.sum((slopes @ covariance) * slopes, axis=1).reshape(p.shape)
        errors = np.sqrt(np.maximum(squares, 0.0))
        predicted = (sizes * p >= _RARE) | (errors <= _VAGUE)
        upper = np.exp(np.minimum(log_p + 2.0 * errors, 0.0))
        inside, most = (np.where(predicted, 0.0, q).sum(axis=1) for q in (p, upper))
        rest = np.maximum(inside, np.minimum(most, 1.0 / sizes.ravel()))
        return cls(p, sizes * p >= _COMMON, predicted, rest)

    def lumped(self, counts: Array) -> tuple[Array, Array]:
        """Counts and probabilities, cells that are not predicted as one more state."""
        if self.predicted.all():
            return counts, self.p
        tables = []
        for table, rest in ((counts, None), (self.p, self.rest)):
            other = np.where(self.predicted, 0.0, table).sum(axis=1) if rest is None else rest
            tables.append(np.column_stack([np.where(self.predicted, table, 0.0), other]))
        return tables[0], tables[1] / tables[1].sum(axis=1, keepdims=True)


def _score_directions(slopes: Array, weights: Array, size: int) -> Array:
    """Directions whose products with a pull are the whitened scores of the columns from `size` on.

    They are adjusted for all parameters, the columns before.
    """
    information = slopes.T @ (weights[:, None] * slopes)
    own = information[:size, :size]
    ridge = 1e-10 * np.trace(own) / size * np.eye(size)
    adjust = np.linalg.solve(own + ridge, information[:size, size:])
    spread = information[size:, size:] - adjust.T @ information[:size, size:]
    if not spread.size:
        return np.zeros((slopes.shape[0], 0))
    values, vectors = np.linalg.eigh(0.5 * (spread + spread.T))
    kept = values > max(1e-6 * float(np.diag(information)[size:].max()), 1e-12)
    whiten = vectors[:, kept] / np.sqrt(values[kept])
    return np.asarray((slopes[:, size:] - slopes[:, :size] @ adjust) @ whiten)


def _pattern_test(fit: LikelihoodFit, rng: np.random.Generator, n_draws: int) -> GoodnessOfFit:
    """Whether residuals at neighbouring times resemble each other more than the fit explains."""
    found = fit.model.sensitivities(fit.theta, fit.mesh)
    if found is None:
        return GoodnessOfFit(fit.deviance, fit.deviance, 1.0, 1.0, 1.0)
    log_p, slopes = found
    terms = fit.noise.terms(fit.counts, log_p)
    size = np.sqrt(np.maximum(terms.curvature, 1e-300))
    scaled = (slopes * size[:, :, None]).reshape(-1, slopes.shape[2])
    back = fit.covariance / fit.noise.inflation @ scaled.T

    def statistic(counts: Array, fitted: bool) -> float:
        z = (fit.noise.terms(counts, log_p).pull / size).ravel()
        if not fitted:  # a fit to the draw would take its share of the residuals
            z = z - scaled @ (back @ z)
        by_time = z.reshape(size.shape)
        return float(np.sum(by_time[1:] * by_time[:-1]))

    seen = statistic(fit.counts, True)
    draws = np.array([statistic(draw_counts(fit, rng), False) for _ in range(n_draws)])
    p_value = (float(np.sum(draws >= seen)) + 1.0) / (n_draws + 1.0)
    return GoodnessOfFit(
        seen, float(draws.mean()), float(draws.std(ddof=1)), p_value, _cycle_test(fit, rng, n_draws)
    )


def _cycle_test(fit: LikelihoodFit, rng: np.random.Generator, n_draws: int) -> float:
    """The p-value of the score test of clumped counts against forces around cycles."""
    forces, size = cycle_forces(fit.kernel, rng), fit.model.n_parameters
    found = fit.model.sensitivities(fit.theta, fit.mesh, forces=forces)
    if found is None:
        return 1.0
    log_p = found[0]
    terms = fit.noise.terms(fit.counts, log_p)
    slopes = found[1].reshape(log_p.size, -1)
    cycles = _score_directions(slopes, terms.information.ravel(), size)
    if not cycles.shape[1]:
        return 1.0
    statistic = float(np.sum((terms.pull.ravel() @ cycles) ** 2))
    # The slopes of clumped counts are far from normal: draws give the distribution.
    above = 0
    for _ in range(n_draws):
        pull = fit.noise.terms(draw_counts(fit, rng), log_p).pull.ravel()
        above += float(np.sum((pull @ cycles) ** 2)) >= statistic
    return (above + 1.0) / (n_draws + 1.0)


def cycle_forces(kernel: MarkovKernel, rng: np.random.Generator) -> Array:
    """Forces along the edges that no potential makes, one column each, at most 50 of them.

    They span the complement of all gradients (weighted by conductance); where there are more than
    50, random ones among them are taken.

    >>> square = MarkovKernel.from_weights([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> cycle_forces(square, np.random.default_rng(0)).shape
    (4, 1)
    """
    source, target, conductance = kernel.edges
    count, n = kernel.n_edges, kernel.n_states
    if count < n:
        return np.zeros((count, 0))
    rows = np.arange(count)
    incidence = np.zeros((count, n))
    incidence[rows, source], incidence[rows, target] = 1.0, -1.0
    weight = np.sqrt(conductance)
    basis, _ = np.linalg.qr(weight[:, None] * incidence[:, 1:])
    n_cycles = count - n + 1
    free = rng.normal(size=(count, min(n_cycles, _MOST_CYCLES)))
    free -= basis @ (basis.T @ free)
    orthogonal, _ = np.linalg.qr(free)
    return np.asarray(orthogonal / weight[:, None] * np.sqrt(np.mean(conductance)))


def _null_deviances(fit: LikelihoodFit, rng: np.random.Generator, n_draws: int) -> Array:
    out = np.empty(n_draws)
    tracked = fit.settings.observation == "tracked"
    follow = tracked_draws(fit) if tracked else None
    for i in range(n_draws):
        if follow is None:
            out[i] = fit.noise.deviance(draw_counts(fit, rng), fit.probabilities)
            continue
        objective = fit.increments(follow(rng)).reweighted(fit.theta, fit.mesh)
        found = None if objective is None else objective.evaluate(fit.theta, fit.mesh)
        out[i] = np.nan if found is None else 2.0 * found.value
    return fit.noise.null_deviances(out[np.isfinite(out)], rng)


def _parameters_used(fit: LikelihoodFit) -> float:
    """The trace of the hat matrix: parameters that the data rather than the prior decide."""
    return float(np.sum(fit.covariance * fit.information))


def _gamma_tail(draws: Array, observed: float) -> float:
    centred = (draws - draws.mean()) / draws.std(ddof=1)
    skewness = max(float(np.mean(centred**3)), 0.05)
    shape = 4.0 / skewness**2
    return float(gamma.sf(observed * np.sqrt(shape) + shape, shape))


def draw_counts(fit: LikelihoodFit, rng: np.random.Generator) -> Array:
    """Counts of independent snapshots drawn from the fit, at its times."""
    return fit.noise.draw(fit.counts, fit.probabilities, rng)


def tracked_draws(fit: LikelihoodFit) -> Callable[[np.random.Generator], Array]:
    """Draws of tracked populations from the fit, at its times.

    In mean-field rates, one individual's transition matrices are computed once for all draws; in
    the population's own, every draw is simulated, in at most `_LEAPS` steps per interval.
    """
    options, size = fit.settings, int(np.rint(fit.counts[0].sum()))
    p0 = fit.initial / fit.initial.sum()
    energy = FreeEnergy(fit.potential, fit.beta, fit.energy.interaction, fit.energy.internal)
    frozen = options.discretization == "frozen"
    if options.environment == "empirical":
        dt = None if frozen else max(0.01, float(np.diff(fit.times).max()) / _LEAPS)

        def simulated(rng: np.random.Generator) -> Array:
            seen = simulate(
                fit.kernel, energy, p0, fit.times, size, rng=rng, rates="empirical", dt=dt,
                method="frozen" if frozen else "tau-leap", mobility=options.mobility,
            )  # fmt: skip
            return np.asarray(seen.counts, dtype=np.float64)

        return simulated
    matrices = transition_matrices(
        fit.kernel, energy, p0, fit.times, method="frozen" if frozen else "exact",
        mobility=options.mobility,
    )  # fmt: skip

    def moved(rng: np.random.Generator) -> Array:
        rows = [rng.multinomial(size, p0)]
        for matrix in matrices:
            held = np.flatnonzero(rows[-1])
            rows.append(rng.multinomial(rows[-1][held], matrix[held]).sum(axis=0))
        return np.array(rows, dtype=np.float64)

    return moved
