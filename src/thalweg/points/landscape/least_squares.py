"""Generalised least squares for the push: exact covariance, evidence, Gauss-Newton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, eigh, solve_triangular
from scipy.stats import chi2

from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.moments import Moments
from thalweg.points.landscape.shrinkage import Prior, Scales, averaged, best_scales, solution
from thalweg.status import Status

__all__ = [
    "PushFit",
    "Whitening",
    "at_rest",
    "average",
    "covariance",
    "fit_push",
    "goodness",
    "informative",
    "scatter",
    "weak_start",
]

Array = NDArray[np.float64]

_JITTERS = (1e-6, 1e-4, 1e-2, 1.0)
"""Amounts added to a correlation matrix, in turn, until its Cholesky factor exists."""
_MOST_NOISE = 0.05
"""Largest share of scatter in the information of the moments."""
_ITERATIONS = 12
"""Largest number of Gauss-Newton iterations."""
_FREE_SCALES = 2
"""Iterations in which the prior is still chosen."""
_ALIKE = 1.5
"""Largest squared residual of an average, relative to the best fit."""
_GAIN = 0.05
"""Fall of chi-square below which iterations end: a twentieth of a standard error, squared."""
_DAMPINGS = 7
_TRACKED = 0.8
"""Mean square of whitened moments below which individuals may have been tracked,"""
_LUCK = 1e-3
"""if independent snapshots agree so well with at most this probability."""
_SIZES = (150, 105, 70, 45, 30, 20, 12)
"""Numbers of moments tried, from many to few."""
_TESTED = 30
"""Leading moments per interval in the test of fit."""
_FIRST = 6
"""Number of smoothest moments, in which a slow drift shows best."""
_STILL = 0.05
"""Level of the test of no movement."""
_ABSORBED = 0.2
"""Remaining variance below which a direction is absorbed by the parameters."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """Division by the square root of a covariance."""

    scale: Array
    lower: Array
    bias: Array | None = None
    """Bias of the score, by which least squares is corrected."""

    @classmethod
    def at(cls, model: PushModel, z: Array | None) -> Whitening:
        """Whitening by the samples' covariance under the parameters `z`; `None` is no movement."""
        return cls.of(covariance(model, z))

    def inverse(self) -> Array:
        """Inverse of the covariance."""
        half = self(np.eye(self.scale.size))
        return np.asarray(half.T @ half)

    def corrected(self, model: PushModel, z: Array) -> Whitening:
        """The same covariance with the bias of a model's score at `z`."""
        return Whitening(self.scale, self.lower, model.score_noise(z, self.inverse())[0])

    @classmethod
    def of(cls, sigma: Array) -> Whitening:
        scale = np.sqrt(np.maximum(np.diag(sigma), 1e-300))
        correlation = sigma / scale[:, None] / scale[None, :]
        for jitter in _JITTERS[:-1]:
            try:
                lower = cholesky(correlation + jitter * np.eye(len(sigma)), lower=True)
                return cls(scale, lower)
            except LinAlgError:
                continue
        return cls(scale, cholesky(correlation + _JITTERS[-1] * np.eye(len(sigma)), lower=True))

    def __call__(self, r: Array) -> Array:
        return np.asarray(solve_triangular(self.lower, (r.T / self.scale).T, lower=True))


def covariance(model: PushModel, z: Array | None) -> Array:
    """Covariance of the residuals of all intervals: block tridiagonal, exact for the samples.

    `Cov r_k = C_{k+1}[g] / n_{k+1} + C_k[g o F] / n_k` and
    `Cov(r_k, r_{k-1}) = -C_k[g o F, g] / n_k`. The covariances at time `k` are those over the
    snapshot together with its neighbours carried to that time. Over the snapshot alone they would
    go up and down with its moments, as a rare individual adds to both, and weighting by them would
    bias the fit (measured: beta 3 standard errors above its true zero). `z = None` is no movement.
    """
    n, m = len(model.clouds) - 1, model.moments.size
    sigma = np.zeros((n * m, n * m))
    for k in range(n + 1):
        now, moved = model.joint_values(k, z)
        size = len(model.clouds[k])
        now = now - now.mean(axis=0)
        before, here = slice((k - 1) * m, k * m), slice(k * m, (k + 1) * m)
        if k > 0:
            sigma[before, before] += now.T @ now / len(now) / size
        if k < n:
            f = moved - moved.mean(axis=0)
            sigma[here, here] += f.T @ f / len(f) / size
            if k > 0:
                sigma[here, before] = -f.T @ now / len(f) / size
                sigma[before, here] = sigma[here, before].T
    return sigma


@dataclass(frozen=True, eq=False)
class PushFit:
    """Parameters, residuals, and the normal equations at the solution."""

    z: Array
    residual: Array
    """Whitened residuals."""
    jacobian: Array
    """Whitened Jacobian."""
    precision: Array
    evidence: float
    status: Status
    spread: Array | None = None
    """Covariance of `z` over all scales of the prior; by default, with the precision alone."""

    @property
    def dof(self) -> float:
        """Moments less the parameters that they determine."""
        normal = self.jacobian.T @ self.jacobian
        used = np.trace(np.linalg.solve(normal + np.diag(self.precision), normal))
        return float(max(self.residual.size - used, 1.0))

    @property
    def chi(self) -> float:
        """Square of the whitened residuals per degree of freedom: 1 for independent snapshots."""
        return float((self.residual**2).sum() / self.dof)

    @property
    def too_good(self) -> bool:
        """Whether independent snapshots would hardly ever agree so well: they were tracked."""
        dof, chi = self.dof, self.chi
        return chi < _TRACKED and bool(chi2.cdf(chi * dof, dof) < _LUCK)

    def posterior(self) -> Array:
        """Covariance of `z`, inflated if residuals exceed those of sampling."""
        spread = self.spread
        if spread is None:
            normal = self.jacobian.T @ self.jacobian + np.diag(self.precision)
            spread = cho_solve(cho_factor(normal), np.eye(len(self.z)))
        return np.asarray(max(1.0, self.chi) * spread)


def informative(model: PushModel) -> Moments:
    """The smoothest moments, as many as carry information rather than noise.

    The scatter of the derivatives `J` over the individuals looks like information: it is kept below
    a twentieth of `J' S^-1 J`. Clouds with sharp edges support seventy moments, smooth ones thirty
    (with 105 of a smooth cloud's, beta came out at 0.12 +- 0.01 where it is 0.3; with 30, at
    0.29 +- 0.05).
    """
    full = model.moments
    z = np.zeros(model.size)
    sigma = covariance(model, None)
    n = len(model.clouds) - 1
    for size in [k for k in _SIZES if k <= full.size]:
        keep = np.concatenate([k * full.size + np.arange(size) for k in range(n)])
        small = replace(model, moments=full.first(size))
        inverse = Whitening.of(sigma[np.ix_(keep, keep)]).inverse()
        if scatter(small, z, inverse) < _MOST_NOISE:
            return full.first(size)
    return full.first(min(_SIZES[-1], full.size))


def scatter(model: PushModel, z: Array, inverse: Array) -> float:
    """The share of the information `J' S^-1 J` that is scatter of `J`; `inverse` is `S^-1`."""
    m = model.jacobian(z)
    information = m.T @ inverse @ m
    lift = 1e-9 * np.trace(information) * np.eye(len(z))
    noise = np.linalg.solve(information + lift, model.score_noise(z, inverse)[1])
    return float(np.trace(noise) / len(z))


def weak_start(model: PushModel, prior: Prior, white: Whitening) -> tuple[Array, Scales, float]:
    """The linear weak form's parameters, scales of the prior, and evidence."""
    rows, right = model.weak()
    m, y = white(rows), white(right)
    side = m.T @ y
    scales, evidence = best_scales(m.T @ m, side, float(y @ y), prior)
    return solution(m, side, prior.precision(scales), prior.free_beta), scales, evidence


def fit_push(
    model: PushModel, prior: Prior, white: Whitening, z: Array, scales: Scales,
    *, iterations: int = _ITERATIONS,
) -> tuple[PushFit, Scales]:  # fmt: skip
    """Gauss-Newton with damping; the prior follows the evidence in the first iterations."""

    def left_over(z: Array) -> Array:
        return white(model.residual(model.pushed(z)))

    def linear() -> tuple[Array, Array, float]:
        """The normal equations of the linearised problem."""
        y = m @ z - r
        return m.T @ m, m.T @ y + bias, float(y @ y)

    bias = np.zeros(z.size) if white.bias is None else white.bias
    r, m = left_over(z), white(model.jacobian(z))
    damping, status = 1e-3, Status.MAX_ITERATIONS
    for step in range(iterations):
        if step < _FREE_SCALES:
            scales, _ = best_scales(*linear(), prior)
        found = _damped_step(
            left_over, (z, r, m), (prior.precision(scales), bias), prior.free_beta, damping
        )
        if found is None:
            status = Status.CONVERGED if damping <= 1e-3 else Status.STALLED
            break
        z, r, gain, damping = found
        m = white(model.jacobian(z))
        if gain < _GAIN and step >= min(_FREE_SCALES, iterations - 1):
            status = Status.CONVERGED
            break
    _, evidence = best_scales(*linear(), prior)
    return PushFit(z, r, m, prior.precision(scales), evidence, status), scales


def average(model: PushModel, prior: Prior, white: Whitening, fit: PushFit) -> PushFit:
    """The same fit over all scales of the prior, each with its evidence as weight."""
    y = fit.jacobian @ fit.z - fit.residual
    bias = np.zeros(fit.z.size) if white.bias is None else white.bias
    z, spread = averaged(fit.jacobian, fit.jacobian.T @ y + bias, float(y @ y), prior)
    r = white(model.residual(model.pushed(z)))
    if not float(r @ r) < _ALIKE * float(fit.residual @ fit.residual):
        z, r = fit.z, fit.residual  # too far for the linear problem
    return replace(fit, z=z, residual=r, jacobian=white(model.jacobian(z)), spread=spread)


def _damped_step(
    left_over: Callable[[Array], Array], at: tuple[Array, Array, Array],
    pulls: tuple[Array, Array], free_beta: bool, damping: float,
) -> tuple[Array, Array, float, float] | None:  # fmt: skip
    """The first damped step that lowers the objective, with its gain; `None` if none does."""
    (z, r, m), (d, bias) = at, pulls
    now = float(r @ r + d @ z**2 - 2 * bias @ z)
    normal, slope = m.T @ m + np.diag(d), m.T @ r + d * z - bias
    free = np.ones(z.size, dtype=bool)
    if free_beta and z[-1] <= 0 and slope[-1] > 0:
        free[-1] = False
    for _ in range(_DAMPINGS):
        lifted = normal[np.ix_(free, free)]
        lifted = lifted + damping * np.diag(np.diag(lifted))
        new = z.copy()
        try:
            new[free] -= cho_solve(cho_factor(lifted), slope[free])
        except LinAlgError:
            damping = max(damping, 1e-3) * 8
            continue
        if free_beta:
            new[-1] = max(new[-1], 0.0)
        r_new = left_over(new)
        after = float(r_new @ r_new + d @ new**2 - 2 * bias @ new)
        if np.isfinite(after) and after < now:
            return new, r_new, now - after, max(damping / 8, 1e-8)
        damping *= 8
    return None


def goodness(model: PushModel, fit: PushFit) -> GoodnessOfFit:
    """Chi-square of the smoothest moments, less the directions that the parameters absorb.

    What is left over has covariance `S - M C M'`, `C` the posterior of the parameters. Few, smooth
    moments keep the estimated covariance honest; its inverse is too large by about
    `n / (n - q - 1)`, which is divided out.
    """
    total, intervals = model.moments.size, len(model.clouds) - 1
    smallest = min(len(x) for x in model.clouds)
    q = int(np.clip(smallest // 20, 2, min(_TESTED, total)))
    claim = "one potential moves all points" if model.order == 0 else (
        "a potential that changes smoothly in time moves all points"
    )  # fmt: skip
    keep = np.concatenate([k * total + np.arange(q) for k in range(intervals)])
    white = Whitening.of(covariance(model, fit.z)[np.ix_(keep, keep)])
    r = white(model.residual(model.pushed(fit.z))[keep])
    m = white(model.jacobian(fit.z)[keep])
    spread = fit.posterior() / max(1.0, fit.chi)
    values, vectors = eigh(np.eye(len(r)) - m @ spread @ m.T)
    free = values > _ABSORBED
    dof = int(free.sum())
    chi_square = float((((vectors.T @ r)[free]) ** 2 / values[free]).sum())
    return GoodnessOfFit(chi_square * max(smallest - q - 1, 1) / smallest, dof, claim)


def at_rest(model: PushModel) -> bool:
    """Whether the clouds could all be samples of one distribution, by their smoothest moments.

    Then nothing shows how fast individuals move, and any potential at rest would fit.
    """
    total, intervals = model.moments.size, len(model.clouds) - 1
    still = np.zeros(model.size)
    residual = model.residual(model.pushed(still))
    sigma = covariance(model, None)
    smallest = min(len(x) for x in model.clouds)
    for q in {min(_FIRST, total), int(np.clip(smallest // 20, 2, min(_TESTED, total)))}:
        keep = np.concatenate([k * total + np.arange(q) for k in range(intervals)])
        r = Whitening.of(sigma[np.ix_(keep, keep)])(residual[keep])
        if chi2.sf(float(r @ r), keep.size) < _STILL / 2:
            return False
    return True
