"""The weak form as a regression of the counts on the first distribution, `V` and `beta`.

Integrated in time, the master equation is linear in them:

    p(t_k) = p_0 - A_k V - beta b_k,    A_k = integral_0^{t_k} M(rho) dt,
                                        b_k = integral_0^{t_k} M(rho) log rho dt.

The left side is seen as `C_k / n_k`, whose noise is known: independent between times and, among
vectors of equal sum, of variance `p / n_k` in every state. So this is a weighted least-squares
problem with sparse matrices; eliminating `p_0`, one unknown per state, leaves one Cholesky
factorisation for `V`. Every state is a test function and an unknown. Slow modes alone are not
enough: the population follows `V / beta` within a few states long before it does over the whole
graph, so what the modes leave out of a landscape moves beta far more than noise does.

The densities on the right side are those of the snapshots, smoothed in time where individuals are
few. Their noise biases beta, and the least squares' own covariance ignores it; so errors are those
of refits to data drawn from the solution's flow, around the solution, and include the bias. The
chi-square is judged by the same draws. Where the weak form itself fails, at a beta far below the
potential, draws do not show it: the solution's flow is compared with the counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, sparse
from scipy.stats import norm
from scipy.stats import t as student

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.edges import static
from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.observation.multinomial import Multinomial, draw_multinomial
from thalweg.learn.weak.smooth import smoothed_in_time
from thalweg.mobility import LogMean, Mobility
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

MOST_STATES = 2000
"""Number of states above which dense factorisations cost more than a likelihood fit."""
DRAWS = 16
"""Number of refits behind the errors."""
WIDER = float(student.ppf(0.975, DRAWS - 1)) / 1.96
"""Factor that few draws ask for, from Student's distribution."""
REJECTED = 1e-2
"""p-value below which weak fits give no errors."""
_STEPS = 5000
"""Number of steps after which the flow that data are drawn from is abandoned."""
_HOLD = 1e-9
"""Ridge that fixes what the data do not determine, relative to the mean diagonal."""
_SPREAD = 1.0
"""Individuals added to the variance of a count: states where none are expected weigh little."""
_MANY = 100.0
"""Individuals per state and time above which densities are not smoothed in time: a polynomial
cannot follow a fast relaxation over many snapshots, and makes beta too high."""
_SMOOTHED_STATES = 200
"""Number of states above which they never are: on 1000 states with 20 individuals each, beta is
1.35 times too high with smoothing and within 10 % without."""
_LEAST_START = 0.2
"""Smallest share of the smoothed first snapshot at which a fitted start is taken."""


@dataclass(frozen=True, eq=False)
class RegressionFit:
    """Potential and beta, with errors and a goodness of fit if they were assessed."""

    potential: Array
    """Centred."""
    beta: float
    """The mean of beta given the data and that it is positive."""
    initial: Array
    """The fitted distribution at the first time."""
    beta_raw: float
    """The unconstrained estimate, which may be negative."""
    beta_stderr: float
    chi_square: float
    """The sum of the squared residuals in units of their noise."""
    freedom: float
    """Its expectation if the model is right."""
    beta_interval: tuple[float, float] = (0.0, np.inf)
    """Bounds of beta at the 95 % level; the lower one is 0 if the data give none."""
    potential_stderr: Array | None = None
    p_value: float = np.nan
    """Small if one landscape does not explain the counts."""
    status: Status = Status.CONVERGED
    """Converged, since the equations are linear; scoring may stop at its limit of steps."""

    @property
    def energy(self) -> FreeEnergy:
        return FreeEnergy(self.potential, self.beta)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """The equations of the regression for densities that are taken as known."""

    weights: Array
    """Inverse variance of every share, shape (times, N)."""
    drift: sparse.csr_array
    """The `A_k`, one above the other, shape (times * N, N)."""
    heat: Array
    """The `b_k`, shape (times, N)."""
    weighted: sparse.csr_array
    """`sum_k W_k A_k`."""
    factor: Array
    """Cholesky factor of the block of `V` with `p_0` eliminated."""
    column: Array
    """The block between `V` and beta; `along` is its solution."""
    along: Array
    schur: float
    """The entry of beta with everything else eliminated."""

    @property
    def total(self) -> Array:
        return np.asarray(self.weights.sum(axis=0))

    def right(self, shares: Array) -> Array:
        """The right-hand sides of `(p_0, V, beta)` for observed shares, one above the other."""
        seen = self.weights * shares
        rest = [-(self.drift.T @ seen.ravel()), [-float(np.vdot(self.heat, seen))]]
        return np.concatenate([seen.sum(axis=0), *rest])

    def solve(self, right: Array, beta: float | None = None) -> Array:
        """`(p_0, V, beta)` for every column of right-hand sides, or with this beta."""
        n = self.total.size
        inverse = 1.0 / self.total[:, None]
        mixed = np.sum(self.weights * self.heat, axis=0)
        first = right[:n] * inverse
        potential = linalg.cho_solve(
            (self.factor, True), right[n : 2 * n] + self.weighted.T @ first, check_finite=False
        )
        rest = right[2 * n] + mixed @ first - self.column @ potential
        found = rest / self.schur if beta is None else np.full(rest.shape, beta)
        potential -= np.outer(self.along, found)
        first += inverse * (self.weighted @ potential + np.outer(mixed, found))
        return np.concatenate([first, potential, found[None]])

    def fitted(self, solution: Array) -> Array:
        """The shares that a solution expects."""
        n = self.total.size
        moved = (self.drift @ solution[n : 2 * n]).reshape(self.heat.shape)
        return np.asarray(solution[:n] - moved - solution[-1] * self.heat)


def normal_equations(
    kernel: MarkovKernel, times: Array, sizes: Array, path: Array, mobility: Mobility
) -> NormalEquations:
    """The normal equations along `path`, positive probabilities of shape (times, N)."""
    n, (source, target, conductance) = kernel.n_states, kernel.edges
    moved, heat = [], []
    for rho in path / kernel.stationary:
        moved.append(static.edge_weights(source, target, conductance, rho, mobility.spec))
        if isinstance(mobility, LogMean):
            heat.append(static.apply_laplacian(source, target, conductance, rho))
        else:
            heat.append(static.apply_laplacian(source, target, moved[-1], np.log(rho)))
    b = _integrals(times, np.array(heat))
    drift = static.stacked_laplacians(source, target, _integrals(times, np.array(moved)), n)
    weights = sizes[:, None] ** 2 / (sizes[:, None] * path + _SPREAD)
    total, flat = weights.sum(axis=0), weights.ravel()
    every = np.arange(flat.size)
    sums = sparse.csr_array((flat, (every % n, every)), shape=(n, flat.size))
    weighted = sparse.csr_array(sums @ drift)
    scaled = sparse.diags_array(np.sqrt(flat)) @ drift
    without = sparse.diags_array(1.0 / np.sqrt(total)) @ weighted
    left = np.asarray((scaled.T @ scaled - without.T @ without).toarray())
    left[np.diag_indices(n)] += _HOLD * np.trace(left) / n
    factor, _ = linalg.cho_factor(left, lower=True, overwrite_a=True, check_finite=False)
    apart = weights * (b - (weights * b).sum(axis=0) / total)
    column = drift.T @ apart.ravel()
    along = linalg.cho_solve((factor, True), column, check_finite=False)
    schur = float(np.vdot(b, apart) - column @ along)
    return NormalEquations(weights, drift, b, weighted, factor, column, along, schur)


def _integrals(times: Array, rates: Array) -> Array:
    """From the first time to each, by the trapezoid rule."""
    out = np.zeros_like(rates)
    np.cumsum(0.5 * np.diff(times)[:, None] * (rates[1:] + rates[:-1]), axis=0, out=out[1:])
    return out


@single_threaded
def fit_regression(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    *,
    mobility: Mobility,
    beta: float | None = None,
) -> RegressionFit:
    """Potential and beta from counts at three times or more, in closed form.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph, of at most `MOST_STATES` states.
    times : array
        Increasing times.
    counts : array
        Individuals per time and state.
    mobility : Mobility
        The mean along edges.
    beta : float, optional
        The noise, if known.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = np.array([[800.0, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]])
    >>> fit = fit_regression(kernel, np.array([0.0, 0.5, 1.0, 1.5]), counts, mobility=LogMean())
    >>> fit.beta > 0, fit.potential.shape
    (True, (3,))
    """
    n, pi, sizes = kernel.n_states, kernel.stationary, counts.sum(axis=1)
    plain = counts.sum() > _MANY * counts.size or n > _SMOOTHED_STATES
    path = smoothed(counts) if plain else smoothed_in_time(times, counts)[0]
    equations = normal_equations(kernel, times, sizes, path, mobility)
    shares = counts / sizes[:, None]
    right = equations.right(shares)[:, None]
    raw = equations.solve(right, beta)[:, 0]
    residual = shares - equations.fitted(raw)
    error = float(1.0 / np.sqrt(equations.schur)) if beta is None else 0.0
    found = positive_mean(float(raw[-1]), error) if beta is None else beta
    solution = equations.solve(right, found)[:, 0]
    initial = np.where(solution[:n] > _LEAST_START * path[0], solution[:n], path[0])
    expected = sizes[:, None] * path
    freedom = float(np.sum(expected / (expected + _SPREAD)))
    return RegressionFit(
        potential=solution[n:-1] - pi @ solution[n:-1],
        beta=found,
        initial=initial / initial.sum(),
        beta_raw=float(raw[-1]),
        beta_stderr=error,
        chi_square=float(np.sum(equations.weights * residual**2)),
        freedom=freedom * (1.0 - min(2.0 * n / counts.size, 1.0)),
    )


@single_threaded
def with_errors(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    fit: RegressionFit,
    *,
    mobility: Mobility,
    beta: float | None,
    rng: np.random.Generator,
) -> RegressionFit:
    """The solution of `fit_regression` with errors and a p-value from refits to drawn data."""
    flow = gradient_flow(
        kernel, fit.energy, fit.initial, times, mobility=mobility, rtol=1e-6, max_steps=_STEPS
    )
    if not flow.status:
        return without_errors(fit, beta)
    draws = [
        fit_regression(kernel, times, drawn, mobility=mobility, beta=beta)
        for drawn in (draw_multinomial(counts, flow.probabilities, rng) for _ in range(DRAWS))
    ]
    noise = Multinomial()
    mean, variance = noise.expected_deviance(counts, flow.probabilities)
    excess = noise.deviance(counts, flow.probabilities) - mean
    apart = np.array([d.potential for d in draws]) - fit.potential
    betas = np.array([d.beta_raw for d in draws]) - fit.beta
    squares = np.array([d.chi_square for d in draws])
    score = (fit.chi_square - squares.mean()) / max(float(squares.std(ddof=1)), 1e-300)
    error = WIDER * float(np.sqrt(np.mean(betas**2)))
    fit = replace(
        fit,
        potential_stderr=WIDER * np.sqrt(np.mean(apart**2, axis=0)),
        beta=fit.beta if beta is not None else positive_mean(fit.beta_raw, error),
        p_value=min(
            2.0 * float(student.sf(score / np.sqrt(1.0 + 1.0 / DRAWS), DRAWS - 1)),
            2.0 * float(norm.sf(excess / np.sqrt(variance))),
            1.0,
        ),
    )
    return fit if beta is not None else with_beta_error(fit, error)


def with_beta_error(fit: RegressionFit, error: float) -> RegressionFit:
    """The fit with another error of beta and the matching interval."""
    lower, upper = fit.beta_raw - 1.96 * error, max(fit.beta_raw, 0.0) + 1.96 * error
    return replace(fit, beta_stderr=error, beta_interval=(max(lower, 0.0), upper))


def without_errors(fit: RegressionFit, beta: float | None) -> RegressionFit:
    """The fit with infinite errors, except for a beta that was given."""
    error = np.inf if beta is None else 0.0
    nothing = np.full_like(fit.potential, np.inf)
    return replace(fit, potential_stderr=nothing, beta_stderr=error, beta_interval=(0.0, np.inf))


def positive_mean(value: float, error: float) -> float:
    """The mean of a normal variable, given that it is positive.

    >>> round(positive_mean(3.0, 1.0), 3), round(positive_mean(-1.0, 1.0), 3)
    (3.004, 0.525)
    """
    ratio = value / max(error, 1e-300)
    if ratio > 8.0:
        return value
    if ratio < -30.0:
        return error / -ratio
    return value + error * float(np.exp(norm.logpdf(ratio) - norm.logcdf(ratio)))
