"""Generalised least squares for the push: exact covariance, evidence, Gauss-Newton."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, eigh, solve_triangular
from scipy.stats import chi2

from thalweg._types import Array, Index
from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.landscape.features import Moments
from thalweg.points.landscape.field import Field
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.shrinkage import Prior, Scales, averaged, best_scales, solution
from thalweg.status import Status

_MOST_SHARE = 0.8
"""Largest share of scatter that is subtracted from the information, in any direction."""
_LIFT = 1e-9
"""Share of the mean information that keeps undetermined directions regular."""
_JITTERS = (1e-6, 1e-4, 1e-2, 1.0)
"""Amounts added to a correlation matrix, in turn, until its Cholesky factor exists."""
_MOST_NOISE = 0.15
"""Largest share of scatter in the information that is corrected well,"""
_LITTLE_NOISE = 0.05
"""and largest share where most of what is known of the noise is scatter."""
_SCATTERED = 500
"""Least number of individuals per snapshot by which moments are chosen."""
_ITERATIONS = 12
"""Largest number of Gauss-Newton iterations."""
_FREE_SCALES = 2
"""Iterations in which the prior is still chosen."""
_ALIKE = 1.5
"""Largest squared residual of an average, relative to the best fit."""
_WAYS = (1.0, 0.5, 0.25)
"""Shares of a correction that are tried."""
_GAIN = 0.05
"""Fall of chi-square below which iterations end: a twentieth of a standard error, squared."""
_DAMPINGS = 7
"""Dampings of a Levenberg-Marquardt step that are tried."""
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

    @classmethod
    def at(cls, model: PushModel, z: Array | None) -> Whitening:
        """Whitening by the samples' covariance under the parameters `z`; `None` is no movement."""
        return cls.of(covariance(model, z))

    @classmethod
    def of(cls, sigma: Array) -> Whitening:
        scale = np.sqrt(np.maximum(np.diag(sigma), 1e-300))
        correlation = sigma / scale[:, None] / scale[None, :]
        for jitter in _JITTERS:
            with suppress(LinAlgError):
                lower = cholesky(correlation + jitter * np.eye(len(sigma)), lower=True)
                break
        return cls(scale, lower)

    def __call__(self, r: Array) -> Array:
        return np.asarray(solve_triangular(self.lower, (r.T / self.scale).T, lower=True))

    def inverse(self) -> Array:
        """Inverse of the covariance."""
        half = self(np.eye(self.scale.size))
        return np.asarray(half.T @ half)


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


class Start(NamedTuple):
    """Parameters from which a fit starts, scales of the prior, and their evidence."""

    z: Array
    scales: Scales
    evidence: float


@dataclass(frozen=True, eq=False)
class PushFit:
    """Parameters, residuals, and the normal equations at the solution."""

    model: PushModel
    white: Whitening
    z: Array
    scales: Scales
    """The prior's."""
    residual: Array
    """Whitened residuals."""
    jacobian: Array
    """Whitened Jacobian."""
    evidence: float
    status: Status

    @property
    def field(self) -> Field:
        return self.model.field(self.model.read(self.z)[0])

    @property
    def beta(self) -> float:
        return self.model.read(self.z)[1]

    @property
    def dof(self) -> float:
        """Moments less the parameters that they determine."""
        normal = self.jacobian.T @ self.jacobian
        lift = np.diag(Prior.of(self.model).precision(self.scales))
        used = np.trace(np.linalg.solve(normal + lift, normal))
        return float(max(self.residual.size - used, 1.0))

    @property
    def chi(self) -> float:
        """Square of the whitened residuals per degree of freedom: 1 for independent snapshots."""
        return float((self.residual**2).sum() / self.dof)

    @property
    def too_good(self) -> bool:
        """Whether independent snapshots would almost never agree so well: they were tracked."""
        dof, chi = self.dof, self.chi
        return chi < _TRACKED and bool(chi2.cdf(chi * dof, dof) < _LUCK)

    def reweighted(self) -> PushFit:
        """The same parameters seen by their own covariance."""
        white, residual = Whitening.at(self.model, self.z), self.model.residual(self.z)
        jacobian = white(self.model.jacobian(self.z))
        return replace(self, white=white, residual=white(residual), jacobian=jacobian)


@dataclass(frozen=True, eq=False)
class AveragedFit(PushFit):
    """A fit averaged over all scales of the prior."""

    spread: Array
    """Covariance of `z`."""
    taken: Array
    """The part of it that leaves the residuals."""

    @property
    def posterior(self) -> Array:
        """Covariance of `z`, inflated if residuals exceed those of sampling."""
        return np.asarray(max(1.0, self.chi) * self.spread)


def _corrected(fit: PushFit) -> tuple[Array, Array, float, Array]:
    """Rows, side and constant of least squares about a fit, without what shared individuals add.

    The same individuals enter derivatives and residuals: `J' S^-1 r` is off by
    `bias + noise (z' - z)` at `z'`, where `noise` (returned last) is the part of `J' S^-1 J` that
    is the scatter of `J`. It is held below a share of the information in every direction.
    """
    bias, noise = fit.model.score_noise(fit.z, fit.white.inverse())
    m, r, z = fit.jacobian, fit.residual, fit.z
    information = m.T @ m
    metric = information + _LIFT * np.trace(information) / len(bias) * np.eye(len(bias))
    values, vectors = eigh(0.5 * (noise + noise.T), metric)
    share, back = np.clip(values, 0.0, _MOST_SHARE), metric @ vectors
    noise = (back * share) @ back.T
    # Without the scatter, J' S^-1 J is that of these rows.
    rows = m @ (np.eye(len(bias)) - (vectors * (1 - np.sqrt(1 - share))) @ back.T)
    y = m @ z - r
    side = rows.T @ (rows @ z) - m.T @ r + bias
    return rows, side, float(y @ y + 2 * bias @ z - z @ noise @ z), noise


def informative(model: PushModel) -> Moments:
    """The smoothest moments, as many as carry information rather than noise.

    The scatter of the derivatives `J` over the individuals looks like information. Where it is a
    small part of what is known of the noise, it can be corrected for, and many moments are best
    (clouds with sharp edges, 1000 individuals: beta is known to 0.06 with 105 moments, to 0.6 with
    30). Where it is most of that, as in smooth clouds, it is kept below a twentieth of
    `J' S^-1 J` instead (with 105 moments beta came out at 0.12 +- 0.01 where it is 0.3; with 30, at
    0.29 +- 0.05).
    """
    full, z = model.moments, np.zeros(model.size)
    sigma, derivative = covariance(model, None), model.jacobian(z)
    sizes = [k for k in _SIZES if k <= full.size] or [full.size]
    second = None
    stride = max(1, min(len(x) for x in model.clouds) // _SCATTERED)
    few = replace(model, clouds=tuple(x[::stride] for x in model.clouds))
    for size in sizes:
        keep = _smoothest(model, size)
        small = replace(few, moments=full.first(size))
        inverse = Whitening.of(sigma[np.ix_(keep, keep)]).inverse()
        noise = small.score_noise(z, inverse)[1] / stride
        every, of_beta = _shares(derivative[keep], inverse, noise, model.beta is None)
        if model.beta is None and of_beta < _MOST_NOISE and every < _MOST_NOISE:
            return full.first(size)
        if every < _LITTLE_NOISE and second is None:
            second = size
    return full.first(second or sizes[-1])


def _smoothest(model: PushModel, count: int) -> Index:
    """Rows of the `count` smoothest moments of each interval."""
    first = model.moments.size * np.arange(len(model.clouds) - 1)
    return np.asarray((first[:, None] + np.arange(count)).ravel())


def _tested(model: PushModel) -> int:
    """Number of moments per interval in tests: few, which keep their covariance honest."""
    smallest = min(len(x) for x in model.clouds)
    return int(np.clip(smallest // 20, 2, min(_TESTED, model.moments.size)))


def scatter(fit: PushFit) -> float:
    """The mean share of the information `J' S^-1 J` that is scatter of `J`."""
    inverse = fit.white.inverse()
    noise = fit.model.score_noise(fit.z, inverse)[1]
    return _shares(fit.model.jacobian(fit.z), inverse, noise, fit.model.beta is None)[0]


def _shares(m: Array, inverse: Array, noise: Array, free: bool) -> tuple[float, float]:
    """Scatter as a share of all information, and of what is known of the noise."""
    information = m.T @ inverse @ m
    lift = 1e-9 * np.trace(information) * np.eye(m.shape[1])
    spread = np.linalg.inv(information + lift)
    part = spread @ noise
    of_beta = float((part @ spread)[-1, -1] / spread[-1, -1]) if free else 0.0
    return float(np.trace(part) / m.shape[1]), of_beta


def weak_start(model: PushModel, white: Whitening) -> Start:
    """The linear weak form."""
    rows, right = model.weak()
    m, y, prior = white(rows), white(right), Prior.of(model)
    side = m.T @ y
    scales, evidence = best_scales(m.T @ m, side, float(y @ y), prior)
    return Start(solution(m, side, prior.precision(scales), prior.free_beta), scales, evidence)


def fit_push(
    model: PushModel, white: Whitening, z: Array, scales: Scales, iterations: int = _ITERATIONS
) -> PushFit:
    """Gauss-Newton with damping; the prior follows the evidence in the first iterations."""
    prior = Prior.of(model)

    def best() -> tuple[Scales, float]:
        """The scales with the largest evidence in the linearised problem."""
        y = m @ z - r
        return best_scales(m.T @ m, m.T @ y, float(y @ y), prior)

    r, m = white(model.residual(z)), white(model.jacobian(z))
    damping, status = 1e-3, Status.MAX_ITERATIONS
    for step in range(iterations):
        if step < _FREE_SCALES:
            scales, _ = best()
        found = _damped_step(model, white, (z, r, m), prior.precision(scales), damping)
        if found is None:
            status = Status.CONVERGED if damping <= 1e-3 else Status.STALLED
            break
        z, r, gain, damping = found
        m = white(model.jacobian(z))
        if gain < _GAIN and step >= min(_FREE_SCALES, iterations - 1):
            status = Status.CONVERGED
            break
    return PushFit(model, white, z, scales, r, m, best()[1], status)


def average(fit: PushFit) -> AveragedFit:
    """The same fit without the bias of shared individuals, over all scales of the prior.

    Each scale has its evidence as weight. The problem is linear about the fit; if the result is too
    far for that, only part of the way is gone.
    """
    model, white, prior = fit.model, fit.white, Prior.of(fit.model)
    rows, side, square, noise = _corrected(fit)
    goal, spread = averaged(rows, side, square, prior)
    _, evidence = best_scales(rows.T @ rows, side, square, prior)
    more = spread @ noise @ spread
    least, z, r = float(fit.residual @ fit.residual), fit.z, fit.residual
    for share in _WAYS:
        there = fit.z + share * (goal - fit.z)
        left = white(model.residual(there))
        if float(left @ left) < _ALIKE * least:
            z, r = there, left
            break
    m = white(model.jacobian(z))
    return AveragedFit(
        model, white, z, fit.scales, r, m, evidence, fit.status, spread + more, spread - more
    )


def _damped_step(
    model: PushModel, white: Whitening, at: tuple[Array, Array, Array], d: Array, damping: float
) -> tuple[Array, Array, float, float] | None:
    """The first damped step that lowers the objective, with its gain; `None` if none does."""
    (z, r, m), free_beta = at, model.beta is None
    now = float(r @ r + d @ z**2)
    normal, slope = m.T @ m + np.diag(d), m.T @ r + d * z
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
        r_new = white(model.residual(new))
        after = float(r_new @ r_new + d @ new**2)
        if np.isfinite(after) and after < now:
            return new, r_new, now - after, max(damping / 8, 1e-8)
        damping *= 8
    return None


def goodness(fit: AveragedFit) -> GoodnessOfFit:
    """Chi-square of the smoothest moments, less the directions that the parameters absorb.

    What is left over has covariance `S - M C M'`, `C` the posterior of the parameters. The inverse
    of the estimated covariance is too large by about `n / (n - q - 1)`, which is divided out.
    """
    model, z, q = fit.model, fit.z, _tested(fit.model)
    smallest, keep = min(len(x) for x in model.clouds), _smoothest(model, q)
    changing = "a potential that changes smoothly in time"
    claim = f"{changing if model.order else 'one potential'} moves all points"
    white = Whitening.of(covariance(model, z)[np.ix_(keep, keep)])
    r, m = white(model.residual(z)[keep]), white(model.jacobian(z)[keep])
    values, vectors = eigh(np.eye(len(r)) - m @ fit.taken @ m.T)
    free = values > _ABSORBED
    chi_square = float((((vectors.T @ r)[free]) ** 2 / values[free]).sum())
    honest = max(smallest - q - 1, 1) / smallest
    return GoodnessOfFit(chi_square * honest, int(free.sum()), claim)


def at_rest(model: PushModel) -> bool:
    """Whether the clouds could all be samples of one distribution, by their smoothest moments.

    Then nothing shows how fast individuals move, and any potential at rest would fit.
    """
    residual, sigma = model.residual(np.zeros(model.size)), covariance(model, None)
    for q in {min(_FIRST, model.moments.size), _tested(model)}:
        keep = _smoothest(model, q)
        r = Whitening.of(sigma[np.ix_(keep, keep)])(residual[keep])
        if chi2.sf(float(r @ r), keep.size) < _STILL / 2:
            return False
    return True
