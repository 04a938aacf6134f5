"""The weak form tested with smooth functions: error bars, a positive beta, a goodness of fit.

Integrated in time and tested with a function `phi`, the master equation is linear in `(V, beta)`:

    phi^T p(t_k) = phi^T p(0) - integral_0^{t_k} phi^T M(rho) (V + beta log rho) dt.

The left side is seen as `phi^T C_k / n_k`, whose noise is known and independent between times. With
the kernel's slow modes as test functions and as basis of `V`, this is a linear least-squares
problem, and its residual is about chi-square.

Its own covariance treats the densities on the right side as known, which makes errors about half
their true size; so the errors are those of refits to data drawn from the solution's flow, around
the solution, and include the bias. The chi-square is judged by the same draws. Where the weak form
itself fails, at a beta far below the potential, draws do not show it: the solution's flow is
compared with the counts as well.

The right side needs the densities: those of the snapshots, smoothed in time where individuals are
few. On many states they are still noisy and would bias beta upwards (errors in variables: by a
factor of two on 1000 states with ten individuals each). There only the first pass uses them; later
ones use the flow of the previous solution, an instrument in the terms of regression. That solution
would carry the noise of its many coefficients into the flow, so potential and start are first
shrunk band by band, like a Wiener filter, to what exceeds their noise; the equations themselves are
solved without shrinkage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg
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
from thalweg.mobility import Mobility
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

MOST_STATES = 2000
"""Number of states above which the modes of the kernel cost more than a likelihood fit."""
_FEW_MODES, _MODES = 250, 700
"""Test functions of the passes before the last and of the last: on 1000 states with 10^4
individuals at 21 times, 250 give beta with a standard error of 44 %, 700 with one of 12 %, in 9 CPU
seconds."""
_PASSES = 4
_STEPS = 5000
"""Number of steps after which the flow used as an instrument is abandoned."""
_HOLD = 1e-9
"""Ridge that fixes what no function determines, relative to the mean diagonal."""
_DRAWS = 16
"""Number of refits behind the errors."""
_ONE_PASS = 200
"""Number of states up to which the snapshots' own densities are used: there the passes that should
improve them move away from the truth. One pass forecasts 10 to 100 states 5 to 40 % better than
four, at a third of the cost, and six states ten times better if beta is a tenth of V."""
_MANY = 100.0
"""Individuals per state and time above which densities are not smoothed in time: a polynomial
cannot follow a fast relaxation over many snapshots, and makes beta too high."""
_BANDS = 10
"""Number of bands of decay rates, within which an instrument's coefficients are shrunk equally."""
_LEAST_START = 0.05
"""Smallest share of the smoothed first snapshot that an instrument starts with."""
_LEAST = 1e-9
"""Smallest probability of a state in the flow that serves as instrument."""


@dataclass(frozen=True, eq=False)
class MomentFit:
    """Potential and beta with their errors, and whether the residuals are noise.

    Parameters
    ----------
    potential : array
        Centred potential, shape (N,).
    potential_stderr : array
        Its standard errors.
    beta : float
        The mean of beta given the data and that it is positive.
    beta_raw : float
        The unconstrained estimate, which may be negative.
    beta_stderr : float
        Its standard error.
    initial : array
        Fitted distribution at the first time.
    chi_square : float
        Sum of the squared residuals in units of their noise.
    freedom : float
        Its expectation if the model is right.
    p_value : float
        Small if one landscape does not explain the moments.
    """

    potential: Array
    potential_stderr: Array
    beta: float
    beta_raw: float
    beta_stderr: float
    initial: Array
    chi_square: float
    freedom: float
    p_value: float = np.nan

    @property
    def energy(self) -> FreeEnergy:
        return FreeEnergy(self.potential, self.beta)

    @property
    def status(self) -> Status:
        """`CONVERGED` always: the equations are linear."""
        return Status.CONVERGED


@single_threaded
def with_errors(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    fit: MomentFit,
    *,
    mobility: Mobility,
    beta: float | None,
    rng: np.random.Generator,
) -> MomentFit:
    """The same solution with errors and p-value from refits to data drawn from it.

    Parameters
    ----------
    kernel, times, counts, mobility, beta
        As given to `fit_moments`.
    fit : MomentFit
        Its solution.
    rng : numpy.random.Generator
        Draws the data.
    """
    flow = gradient_flow(
        kernel, fit.energy, fit.initial, times, mobility=mobility, rtol=1e-6, max_steps=_STEPS
    )
    if not flow.status:
        nothing = np.full_like(fit.potential, np.inf)
        return replace(fit, potential_stderr=nothing, beta_stderr=np.inf)
    draws = [
        fit_moments(kernel, times, drawn, mobility=mobility, beta=beta)
        for drawn in (draw_multinomial(counts, flow.probabilities, rng) for _ in range(_DRAWS))
    ]
    noise = Multinomial()
    mean, variance = noise.expected_deviance(counts, flow.probabilities)
    excess = noise.deviance(counts, flow.probabilities) - mean
    apart = np.array([d.potential for d in draws]) - fit.potential
    betas = np.array([d.beta_raw for d in draws]) - fit.beta
    squares = np.array([d.chi_square for d in draws])
    score = (fit.chi_square - squares.mean()) / max(float(squares.std(ddof=1)), 1e-300)
    # Few draws: wider by what Student's distribution asks for.
    wider = float(student.ppf(0.975, _DRAWS - 1)) / 1.96
    error = wider * float(np.sqrt(np.mean(betas**2)))
    return replace(
        fit,
        potential_stderr=wider * np.sqrt(np.mean(apart**2, axis=0)),
        beta_stderr=error,
        beta=fit.beta if beta is not None else _positive_mean(fit.beta_raw, error),
        p_value=min(
            2.0 * float(student.sf(score / np.sqrt(1.0 + 1.0 / _DRAWS), _DRAWS - 1)),
            2.0 * float(norm.sf(excess / np.sqrt(variance))),
            1.0,
        ),
    )


@single_threaded
def fit_moments(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    *,
    mobility: Mobility,
    beta: float | None = None,
) -> MomentFit:
    """Potential and beta from counts at three times or more, in closed form except for a few flows.

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
    >>> from thalweg.mobility import LogMean
    >>> fit = fit_moments(kernel, np.array([0.0, 0.5, 1.0, 1.5]), counts, mobility=LogMean())
    >>> fit.beta > 0, fit.potential.shape
    (True, (3,))
    """
    rates, functions = _modes(kernel)
    many = counts.sum() > _MANY * counts.size
    path = smoothed(counts) if many else smoothed_in_time(times, counts)[0]
    start = path[0]
    found: MomentFit | None = None
    passes = 1 if kernel.n_states <= _ONE_PASS else _PASSES
    for pass_ in range(passes):
        last = pass_ == passes - 1
        d = min(_MODES if last else _FEW_MODES, rates.size)
        normal, right, square = _normal_equations(
            kernel, times, counts, path, functions[:, :d], mobility
        )
        found = _solve(kernel, rates[:d], functions[:, :d], normal, right, square, beta, start)
        found = replace(found, freedom=times.size * d - found.freedom)
        if last:
            break
        energy, begin = _shrunk(kernel, rates[:d], functions[:, :d], normal, right, found, start)
        flow = gradient_flow(
            kernel, energy, begin, times, mobility=mobility, rtol=1e-4, max_steps=_STEPS
        )
        if not flow.status:
            continue
        path = np.maximum(flow.probabilities, _LEAST)
        path = path / path.sum(axis=1, keepdims=True)
    assert found is not None
    return found


def _modes(kernel: MarkovKernel) -> tuple[Array, Array]:
    """Decay rates and modes of the kernel, slowest first, without the constant one."""
    pi = kernel.stationary
    values, vectors = linalg.eigh(
        static.symmetrised(*kernel.edges, pi),
        subset_by_index=[0, min(_MODES, pi.size - 1)],
        check_finite=False,
    )
    return values[1:], np.asarray(vectors[:, 1:] / np.sqrt(pi)[:, None])


def _normal_equations(
    kernel: MarkovKernel,
    times: Array,
    counts: Array,
    path: Array,
    functions: Array,
    mobility: Mobility,
) -> tuple[Array, Array, float]:
    """Normal matrix, right side and square of the whitened equations.

    `path` holds densities at the times. Unknowns: the moments at the first time, the potential's
    coefficients, beta.
    """
    d, pi = functions.shape[1], kernel.stationary
    source, target, conductance = kernel.edges
    gaps = functions[source] - functions[target]
    normal, right, square = np.zeros((2 * d + 1, 2 * d + 1)), np.zeros(2 * d + 1), 0.0
    moved, before = np.zeros((d, d + 1)), np.zeros((d, d + 1))
    at = times[0]
    for t, seen, p in zip(times, counts, path, strict=True):
        rho = p / pi
        weights = static.edge_weights(source, target, conductance, rho, mobility.spec)
        logs = np.log(rho)
        forces = np.column_stack([gaps, logs[source] - logs[target]])
        here = gaps.T @ (weights[:, None] * forces)
        moved = moved - 0.5 * (t - at) * (here + before)
        before, at = here, t
        size = float(seen.sum())
        mean = functions.T @ p
        noise = ((functions.T * p) @ functions - np.outer(mean, mean)) / size
        noise[np.diag_indices(d)] += 1e-10 * np.trace(noise) / d
        table = np.column_stack([np.eye(d), moved, functions.T @ (seen / size)])
        table = linalg.solve_triangular(
            linalg.cholesky(noise, lower=True, check_finite=False), table, lower=True,
            check_finite=False,
        )  # fmt: skip
        normal += table[:, :-1].T @ table[:, :-1]
        right += table[:, :-1].T @ table[:, -1]
        square += float(table[:, -1] @ table[:, -1])
    return normal, right, square


def _solve(
    kernel: MarkovKernel,
    rates: Array,
    functions: Array,
    normal: Array,
    right: Array,
    square: float,
    known: float | None,
    start: Array,
) -> MomentFit:
    """The least-squares solution, its ridge chosen by evidence, and beta kept positive."""
    d = rates.size
    # The moments at the first time are eliminated; what is left is (coefficients, beta).
    factor = linalg.cho_factor(normal[:d, :d], check_finite=False)
    across = linalg.cho_solve(factor, normal[:d, d:], check_finite=False)
    schur = normal[d:, d:] - normal[d:, :d] @ across
    load = right[d:] - across.T @ right[:d]
    if known is not None:
        load = load - known * schur[:, d]
        schur, load = schur[:d, :d], load[:d]
    # Just enough to fix what no function determines; more would shrink V and lower beta with it.
    hold = _HOLD * float(np.trace(schur[:d, :d])) / d
    covariance = linalg.inv(schur + hold * np.eye(load.size), check_finite=False)
    theta = covariance @ load
    moments = (
        linalg.cho_solve(factor, right[:d], check_finite=False) - across[:, : load.size] @ theta
    )
    if known is not None:
        moments = moments - known * across[:, d]
        whole = np.concatenate([moments, theta, [known]])
    else:
        whole = np.concatenate([moments, theta])
    residual = square - 2.0 * float(whole @ right) + float(whole @ normal @ whole)
    raw, error, beta = (known, 0.0, known) if known is not None else (0.0, 0.0, 0.0)
    if known is None:
        raw, error = float(theta[d]), float(np.sqrt(covariance[d, d]))
        beta = _positive_mean(raw, error)
        # The potential that goes with this beta.
        theta = theta + covariance[:, d] / covariance[d, d] * (beta - raw)
    assert raw is not None
    assert beta is not None
    pi = kernel.stationary
    centred = functions - pi @ functions
    linear = np.zeros((pi.size + 1, load.size))
    linear[:-1, :d] = centred
    if known is None:
        linear[-1, d] = 1.0
    joint = linear @ covariance @ linear.T
    fitted = pi * (1.0 + functions @ moments)
    initial = np.where(fitted > 0.2 * start, fitted, start)
    return MomentFit(
        centred @ theta[:d],
        np.sqrt(np.maximum(np.diag(joint)[:-1], 0.0)),
        beta,
        raw,
        error,
        initial / initial.sum(),
        residual,
        float(load.size + d),
    )


def _shrunk(
    kernel: MarkovKernel,
    rates: Array,
    functions: Array,
    normal: Array,
    right: Array,
    found: MomentFit,
    start: Array,
) -> tuple[FreeEnergy, Array]:
    """Energy and start of the next instrument: what exceeds the noise of the solution."""
    d = rates.size
    # At the beta that was found: the coefficients left are those of the start and the potential.
    left = right[:-1] - found.beta * normal[:-1, -1]
    hold = _HOLD * float(np.trace(normal)) / normal.shape[0]
    covariance = linalg.inv(normal[:-1, :-1] + hold * np.eye(2 * d), check_finite=False)
    coefficients, noise = covariance @ left, np.diag(covariance)
    edges = np.geomspace(rates[0], rates[-1], _BANDS + 1)[1:-1]
    # Twice as many bands: the start's, then the potential's.
    band = np.searchsorted(edges, rates)
    band = np.concatenate([band, band + _BANDS])
    power = np.bincount(band, coefficients**2, 2 * _BANDS)
    share = 1.0 - np.bincount(band, noise, 2 * _BANDS) / np.maximum(power, 1e-300)
    coefficients = coefficients * np.maximum(share, 0.0)[band]
    potential = functions @ coefficients[d:]
    begin = kernel.stationary * (1.0 + functions @ coefficients[:d])
    begin = np.maximum(begin, _LEAST_START * start)
    energy = FreeEnergy(potential - kernel.stationary @ potential, found.beta)
    return energy, begin / begin.sum()


def _positive_mean(value: float, error: float) -> float:
    """The mean of a normal variable, given that it is positive.

    >>> round(_positive_mean(3.0, 1.0), 3), round(_positive_mean(-1.0, 1.0), 3)
    (3.004, 0.525)
    """
    ratio = value / max(error, 1e-300)
    if ratio > 8.0:
        return value
    if ratio < -30.0:
        return error / -ratio
    return value + error * float(np.exp(norm.logpdf(ratio) - norm.logcdf(ratio)))
