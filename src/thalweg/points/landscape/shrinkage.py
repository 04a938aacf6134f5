"""Priors that shrink the parameters to no movement, chosen and averaged over by evidence.

Smooth functions (to the second power) and all others each have their own precision, on a grid that
ends where nothing moves; the noise has one wide prior, as the smallest of several scales would be
overconfident (measured: 0.03 +- 0.07 where it is 0.3). Snapshots that hardly move then shrink the
potential to rest, instead of fitting their sampling errors; and since all precisions are averaged
over with their evidence as weights, the error bars include what one of them would hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr, solve_triangular
from scipy.special import log_ndtr

from thalweg._types import Array
from thalweg.errors import ConvergenceError
from thalweg.points.landscape.model import PushModel

Scales = tuple[float, float]
"""Precisions of smooth functions and of all others, in units of the prior."""

_GLOBAL = 10.0 ** np.arange(-1.0, 6.1, 1.0)
"""Precisions of smooth functions: drifts of 3 to 0.001 extents of the cloud in all."""
_LOCAL = 10.0 ** np.arange(0.0, 7.1, 0.5)
"""Precisions of all other functions."""
_NOISE = 1e-3
"""Precision of the noise: a variance of 30 times the cloud's may be added."""
_TIME_DAMPING = 3.0
"""Factor on the precision per degree in time."""
_WEIGHTLESS = 1e-3
"""Evidence, relative to the best, below which scales are left out."""


@dataclass(frozen=True, eq=False)
class Prior:
    """Groups of `z` with one precision each, in units of a drift across the cloud in all the time.

    Functions of a higher degree in time are shrunk more.
    """

    local: NDArray[np.bool_]
    """Per parameter: whether its function is local."""
    unit: Array
    """Per parameter: the precision that `Scales` multiply."""
    free_beta: bool

    @classmethod
    def of(cls, model: PushModel) -> Prior:
        spread = np.sqrt(np.concatenate(model.clouds).var(axis=0).sum())
        velocity = float(spread / (model.times[-1] - model.times[0])) or 1.0
        powers = np.repeat(_TIME_DAMPING ** np.arange(model.order + 1.0), model.basis.size)
        local, unit = np.tile(model.basis.local, model.order + 1), powers / velocity**2
        if model.beta is None:
            local, unit = np.append(local, False), np.append(unit, 1.0)
        return cls(local, unit, model.beta is None)

    def precision(self, scales: Scales) -> Array:
        out = np.where(self.local, scales[1], scales[0]) * self.unit
        if self.free_beta:
            out[-1] = _NOISE
        return out

    def grid(self) -> tuple[Array, Array]:
        """Precisions to try; a single one if there are no such functions."""
        return _GLOBAL, _LOCAL if self.local.any() else np.ones(1)


def best_scales(normal: Array, side: Array, square: float, prior: Prior) -> tuple[Scales, float]:
    """The precisions with the largest evidence for `z normal z - 2 side z + square`, and it."""
    found = _evidences(normal, side, square, prior)
    i, j = np.unravel_index(int(np.argmax(found)), found.shape)
    smooth, other = prior.grid()
    return (float(smooth[i]), float(other[j])), float(found[i, j])


def averaged(rows: Array, side: Array, square: float, prior: Prior) -> tuple[Array, Array]:
    """Mean and covariance of `z` over all precisions, weighted by their evidence.

    `rows` are those of the linear problem: its normal matrix is `rows^T rows`.
    """
    found = _evidences(rows.T @ rows, side, square, prior)
    if not np.isfinite(found.max()):
        raise ConvergenceError(
            "every potential that was tried expels points from the cloud; use fewer functions "
            "(n_centers=0), or snapshots closer in time."
        )
    weights = np.exp(found - found.max())
    weights[weights <= _WEIGHTLESS] = 0.0
    weights /= weights.sum()
    (smooth, other), root = prior.grid(), qr(rows, mode="r")[0][: side.size]
    mean, second = np.zeros(side.size), np.zeros((side.size, side.size))
    for i, j in np.argwhere(weights):
        d, w = prior.precision((smooth[i], other[j])), weights[i, j]
        z = solution(root, side, d, prior.free_beta)
        half = solve_triangular(_factor(root, d), np.eye(z.size))
        mean += w * z
        second += w * (half @ half.T + np.outer(z, z))
    return mean, second - np.outer(mean, mean)


def solution(rows: Array, side: Array, d: Array, free_beta: bool) -> Array:
    """The minimum under precisions `d`, with the last parameter at least 0 if it is the noise."""
    z = _solved(rows, side, d)
    if free_beta and z[-1] < 0:
        z[:-1] = _solved(rows[:, :-1], side[:-1], d[:-1])
        z[-1] = 0.0
    return z


def _factor(rows: Array, d: Array) -> Array:
    """The upper triangle `U` of `U^T U = rows^T rows + diag(d)`, without that product.

    Clouds that hardly scatter determine some parameters so well that the precision of the others
    is lost in the digits of the product, which is then positive by luck.
    """
    return np.asarray(qr(np.concatenate([rows, np.diag(np.sqrt(d))]), mode="r")[0][: d.size])


def _solved(rows: Array, side: Array, d: Array) -> Array:
    upper = _factor(rows, d)
    z = np.zeros(d.size)
    for _ in range(2):  # the second time refines
        left = side - rows.T @ (rows @ z) - d * z
        z = z + solve_triangular(upper, solve_triangular(upper, left, trans=1))
    return z


def _evidences(normal: Array, side: Array, square: float, prior: Prior) -> Array:
    """Log evidence for every pair of precisions; minus infinity where it cannot be computed.

    A potential that expels points has derivatives whose squares overflow.
    """
    if not all(np.isfinite(part).all() for part in (normal, side, square)):
        return np.full([axis.size for axis in prior.grid()], -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        found = _finite_evidences(normal, side, square, prior)
    return np.where(np.isfinite(found), found, -np.inf)


def _finite_evidences(normal: Array, side: Array, square: float, prior: Prior) -> Array:
    """First the local functions, then the global ones are rotated to their principal axes and
    eliminated, so that all precisions of a group cost one decomposition.
    """
    half = 1 / np.sqrt(prior.unit)
    normal, side = normal * half[:, None] * half[None, :], side * half
    near, rest = np.flatnonzero(prior.local), np.flatnonzero(~prior.local)
    n = rest.size - prior.free_beta
    smooth, other = prior.grid()
    values, vectors = _axes(normal[np.ix_(near, near)])
    mixed, pulled = vectors.T @ normal[np.ix_(near, rest)], vectors.T @ side[near]
    out = np.zeros((smooth.size, other.size))
    for j, ridge in enumerate(other):
        w = 1 / (values + ridge)
        matrix = normal[np.ix_(rest, rest)] - mixed.T @ (w[:, None] * mixed)
        t = side[rest] - mixed.T @ (w * pulled)
        e, q = _axes(matrix[:n, :n])
        v = 1 / (e[None] + smooth[:, None])
        p = q.T @ t[:n]
        gain = float(w @ pulled**2) + v @ p**2
        bits = -np.log(w * ridge).sum() - np.log(v * smooth[:, None]).sum(axis=1)
        if prior.free_beta:
            c = q.T @ matrix[:n, -1]
            m = np.maximum(matrix[-1, -1] - v @ c**2, 0.0) + _NOISE
            pull = t[-1] - v @ (c * p)
            gain, bits = gain + pull**2 / m, bits + np.log(m / _NOISE)
            # Half a Gaussian before, what is left of one above 0 afterwards.
            out[:, j] = log_ndtr(pull / np.sqrt(m)) + np.log(2.0)
        out[:, j] -= 0.5 * (square - gain + bits)
    return out


def _axes(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, none below 0, and eigenvectors."""
    if not matrix.size:
        return np.zeros(0), np.zeros((0, 0))
    values, vectors = eigh(matrix)
    return np.maximum(values, 0.0), vectors
