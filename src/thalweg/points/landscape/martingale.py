"""The same individuals at every time: moments whose noise is that of the individuals' own steps.

Given where individuals are, the mean of a function `g` over them at the next time differs from
`E g(F(x) + noise)` by their noise alone: no sampling error enters, and individuals need not be
matched. The differences are a martingale's, independent from one interval to the next, with
covariance `2 beta tau E[grad g grad g'] / n`. With the functions that span the potential as `g`,
this has the information of a regression on the true pairs. Optimal couplings do not: under noise
they join the wrong individuals, which hides some of the noise (0.1 looks like 0.077 if steps are
half of the distance between neighbours) and biases the potential.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular
from scipy.special import softmax

from thalweg._types import Array
from thalweg.points.landscape.features import Moments
from thalweg.points.landscape.field import Field, in_chunks
from thalweg.points.landscape.model import PushModel
from thalweg.status import Status

_ITERATIONS = 5
"""Largest number of Gauss-Newton steps."""
_LEAST_SHARE = 1e-5
"""Least share of the gradients' variance; rougher functions feel second-order noise."""
_RIDGES = 10.0 ** np.arange(-4.0, 5.1, 0.5)
"""Prior precisions tried, in squares of a velocity."""
_NOISES = 10.0 ** np.arange(-8.0, 1.1, 0.125)
"""Noises tried, in units of the model's scale of beta."""
_DEVIATIONS = np.arange(-4.0, 4.01, 0.1)
"""Second grid, in standard deviations about the first one's mean."""
_LEAST_DEVIATION = 0.06
"""Least standard deviation of the logarithm: a fifth of the first grid's spacing."""
_STILL = 0.05
"""Squared step, in units of its noise, below which iterations end,"""
_ROUNDING = 1e-8
"""and in units of the movement itself."""
_SYSTEMATIC = 0.1
"""Relative error of the noise: it was 10 % high in the mean over potentials, 700 points."""


@dataclass(frozen=True, eq=False)
class Followed:
    """Weights of the functions with their covariance, and the noise with its standard error."""

    weights: Array
    covariance: Array
    noise: float
    """Half the variance of the individuals' steps per unit of time: beta if it is free; otherwise
    used in the error bars alone."""
    noise_stderr: float
    status: Status


def fit_moments(model: PushModel, start: tuple[Array, float]) -> Followed:
    """Gauss-Newton from `start` (weights, noise); ridge and noise by evidence on a grid."""
    free, tiled = model.beta is None, np.tile(model.scale, model.order + 1)
    w, noise = start[0] * tiled, max(start[1], 0.0)
    extent = float(np.concatenate(model.clouds).var(axis=0).sum())
    velocity = extent / float(model.times[-1] - model.times[0]) ** 2
    status, spread, stderr = Status.MAX_ITERATIONS, np.zeros((w.size, w.size)), 0.0
    for _ in range(_ITERATIONS):
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                h, side, y = _linear(model, w, noise)
        except (LinAlgError, ValueError):  # a flow that throws points out: these were not followed
            status = Status.STALLED
            break
        values, vectors = eigh(h.T @ h)
        values = np.maximum(values, 0.0)
        pulls = (vectors.T @ (h.T @ y), vectors.T @ (h.T @ side))
        offset = noise if free else None
        coarse = model.beta_scale * _NOISES
        logs = _evidence((values, y, side), pulls, coarse, velocity, offset)[1]
        middle, deviation = _moments_of(np.log(coarse), logs)
        nus = np.exp(middle + max(deviation, _LEAST_DEVIATION) * _DEVIATIONS)
        ridges, logs = _evidence((values, y, side), pulls, nus, velocity, offset)
        new_noise, stderr = _moments_of(nus, logs)
        ridge = float(ridges[int(np.argmax(logs))]) * new_noise
        pull = pulls[0] + (pulls[1] * (new_noise - noise) if free else 0.0)
        new = vectors @ (-pull / (values + ridge))
        if not np.isfinite(new).all():
            status = Status.STALLED
            break
        spread = (vectors / (values + ridge)) @ vectors.T * new_noise
        moved, size = float(((h @ (new - w)) ** 2).sum()), float(((h @ new) ** 2).sum())
        w, noise = new, new_noise
        if moved < max(_STILL * noise, _ROUNDING * size):
            status = Status.CONVERGED
            break
    stderr = float(np.hypot(stderr, _SYSTEMATIC * noise))
    return Followed(w / tiled, spread / tiled[:, None] / tiled[None], noise, stderr, status)


def _moments_of(values: Array, logs: Array) -> tuple[float, float]:
    """Mean and standard deviation of a grid of values with these log evidences."""
    share = softmax(logs)
    mean = float(share @ values)
    return mean, float(np.sqrt(share @ (values - mean) ** 2))


def _evidence(
    seen: tuple[Array, Array, Array], pulls: tuple[Array, Array], noises: Array, velocity: float,
    offset: float | None,
) -> tuple[Array, Array]:  # fmt: skip
    """Per noise, the best ridge and the log evidence over all ridges.

    Residuals `y + H w + side (noise - offset)` have variance `noise` each, and weights `1 / ridge`.
    """
    values, y, side = seen
    ridges = _RIDGES / velocity
    logs, best = np.empty(noises.size), np.empty(noises.size)
    for i, nu in enumerate(noises):
        step = 0.0 if offset is None else nu - offset
        r, pull = y + side * step, pulls[0] + pulls[1] * step
        lifted = values[None] + nu * ridges[:, None]
        left = float(r @ r) - (pull**2 / lifted).sum(axis=1)
        bits = np.log(lifted / (nu * ridges[:, None])).sum(axis=1) + y.size * np.log(nu)
        each = -0.5 * (left / nu + bits)
        best[i] = ridges[int(np.argmax(each))]
        logs[i] = np.logaddexp.reduce(each)
    return best, logs


def _linear(model: PushModel, w: Array, noise: float) -> tuple[Array, Array, Array]:
    """Derivative in the weights, in the noise, and residuals at no weights, of variance `noise`."""
    beta = noise if model.beta is None else model.beta
    field = Field(model.basis, w.reshape(model.order + 1, -1) / model.scale, model.times)
    spans = zip(model.times[:-1], model.times[1:], strict=True)
    rows = [
        _felt(field, x, span, model.steps, beta) / model.scale
        for x, span in zip(model.clouds, spans, strict=False)
    ]
    metrics = [g.T @ g / len(x) for g, x in zip(rows, model.clouds, strict=False)]
    values, vectors = eigh(sum(metrics) / len(metrics))
    keep = values > _LEAST_SHARE * values[-1]
    turn = vectors[:, keep] / np.sqrt(values[keep])
    model = model.changed(moments=Moments(model.basis, turn / model.scale[:, None]))
    z = np.append(w, [beta / model.beta_scale] if model.beta is None else [])
    jacobian, residual = model.jacobian(z), model.residual(z)
    parts = []
    for k, tau in enumerate(np.diff(model.times)):
        here = slice(k * turn.shape[1], (k + 1) * turn.shape[1])
        # The floor keeps functions out that vanish in this interval alone.
        metric = turn.T @ metrics[k] @ turn + _LEAST_SHARE * np.eye(turn.shape[1])
        root = cholesky(metric, lower=True) * np.sqrt(2 * tau / len(model.clouds[k]))
        block = np.column_stack([jacobian[here], residual[here]])
        parts.append(solve_triangular(root, block, lower=True))
    white = np.concatenate(parts)
    h, y = white[:, : w.size], white[:, -1]
    side = white[:, w.size] / model.beta_scale if model.beta is None else np.zeros_like(y)
    return h, side, y - h @ w


def _felt(field: Field, x: Array, span: tuple[float, float], steps: int, beta: float) -> Array:
    """The response of the functions at the end of an interval to a unit of noise, as rows.

    Averaging the gradient over half of the noise makes its mean square the variance to the second
    order. Noise that enters early is carried on by the flow, `I - h hessian` in each step.
    """
    basis, tau = field.basis, span[1] - span[0]
    h = tau / steps
    bends = []
    for s in range(steps):
        begin = span[0] + s * h
        if steps > 1:
            theta = field.at(begin + 0.5 * h)
            bends.append(in_chunks(partial(basis.hessian, weights=theta), x))
        x = field.flow(x, (begin, begin + h), 1, euler=steps == 1)
    rows = in_chunks(partial(basis.gradient, spread=beta * tau), x)
    if steps > 1:
        carry = np.broadcast_to(np.eye(x.shape[1]), bends[0].shape)
        felt = np.array(carry)
        for bend in bends[:0:-1]:
            carry = carry - h * carry @ bend
            felt = felt + carry @ carry.transpose(0, 2, 1)
        rows = np.linalg.cholesky(felt / steps).transpose(0, 2, 1) @ rows
    return np.asarray(rows.reshape(-1, basis.size))
