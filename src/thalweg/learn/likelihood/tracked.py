"""One population followed in time: what the counts at one time say about the next.

Individuals move by the rates of the density around them. Given the counts `x_k`, the next ones have

    mean       n p_{k+1} + P^T (x_k - n p_k)
    covariance sum_x x_k(x) (diag P_x - P_x P_x^T)

with `P` the transition matrix of one individual over the interval. The density is that of the
infinite population (`"mean-field"`, individuals are independent), or of the population itself
(`"empirical"`: then `p_k` is `x_k / n` up to a pseudo-count, intervals decouple, and no initial
distribution is estimated). Only these two moments are used: a quasi-likelihood, the efficient
estimating function for martingale increments, so states with few individuals do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.learn.likelihood.frozen import FrozenObjective, frozen_intervals
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, saturated

__all__ = ["PSEUDO_COUNT", "TrackedObjective"]

Array = NDArray[np.float64]

PSEUDO_COUNT = 0.5
"""Individuals added to every state where the population's own density sets the rates."""
_FLOOR = 0.1  # variance of a count that nothing predicts: rare single jumps must not decide


class _Increments(NamedTuple):
    mean: Array
    slopes: Array
    matrices: Array
    first: Array
    first_slopes: Array


@dataclass(frozen=True, eq=False)
class TrackedObjective:
    """`1/2 sum_k r_k^T W_k r_k` with increments `r` and weights `W` held at a reference fit."""

    model: FlowModel
    counts: Array
    frozen: bool
    empirical: bool
    weights: Array | None = None
    """Inverse covariances of the increments, (intervals, N, N)."""
    pieces: int = 1
    """Rates are renewed this often within an interval, for the chain of frozen rates."""

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        assert self.weights is not None
        with np.errstate(all="ignore"):
            predicted = self.predictions(theta, mesh)
            if predicted is None:
                return None
            residual = self.counts[1:] - predicted.mean
            pull = np.einsum("kxy,ky->kx", self.weights, residual)
            value = 0.5 * float(np.vdot(residual, pull))
            slopes = predicted.slopes
            gradient = -np.einsum("kxj,kx->j", slopes, pull)
            size = self.model.n_parameters
            weighted = np.matmul(self.weights, slopes).reshape(-1, size)
            information = slopes.reshape(-1, size).T @ weighted
            if self.model.n_initial:
                x, p, d = self.counts[0], predicted.first, predicted.first_slopes
                value += saturated(self.counts[:1]) - float(x @ np.log(p))
                gradient -= d.T @ (x - x.sum() * p)
                information += d.T @ (x.sum() * p[:, None] * d)
        if not (np.isfinite(value) and np.isfinite(information).all()):
            return None
        return Evaluation(value, gradient, information, information, 0.0)

    def predictions(self, theta: Array, mesh: Mesh) -> _Increments | None:
        """Conditional means of the counts after the first, derivatives, transition matrices."""
        model = self.model
        n, size = model.n_states, model.n_parameters
        x, total = self.counts[:-1], self.counts[1:].sum(axis=1)
        share = x / x.sum(axis=1, keepdims=True)
        still = np.zeros((x.shape[0], n, size))
        path = None if self.empirical else self._path(theta, mesh)
        if path is None and not self.empirical:
            return None
        if path is not None:
            log_p, d, log_q, e = path[0][:-1], path[1][:-1], path[0][1:], path[1][1:]
        else:
            dressed = (x + PSEUDO_COUNT) / (x.sum(axis=1, keepdims=True) + n * PSEUDO_COUNT)
            log_p, d = np.log(dressed), still
            if not self.frozen:
                flow = model.sensitivities(theta, mesh, starts=dressed)
                if flow is None:
                    return None
                log_q, e = flow[0][1:], flow[1][1:]
        log_pi = np.log(model.kernel.stationary)
        spans = np.column_stack([model.times[:-1], model.times[1:]])
        if self.frozen:
            moved, d_moved, matrices = frozen_intervals(
                model, theta, spans, log_p - log_pi, d, mesh.substeps, (share, still)
            )
            mean, slopes = moved, d_moved
        else:
            # The rest of the population moves by the rates in the middle of the interval.
            p, q = np.exp(log_p), np.exp(log_q)
            rest = (share - p, -p[:, :, None] * d)
            middle = 0.5 * (log_p + log_q) - log_pi
            moved, d_moved, matrices = frozen_intervals(
                model, theta, spans, middle, 0.5 * (d + e), mesh.substeps, rest
            )
            mean, slopes = q + moved, q[:, :, None] * e + d_moved
        mean, slopes = total[:, None] * mean, total[:, None, None] * slopes
        matrices = matrices.transpose(0, 2, 1)
        if not np.isfinite(mean).all():
            return None
        if path is None:
            return _Increments(mean, slopes, matrices, self.counts[0], still[0])
        return _Increments(mean, slopes, matrices, np.exp(path[0][0]), path[1][0])

    def reweighted(self, theta: Array, mesh: Mesh) -> TrackedObjective | None:
        """The same increments, weighted by the covariances at `theta`."""
        predicted = self.predictions(theta, mesh)
        if predicted is None:
            return None
        p, x = np.clip(predicted.matrices, 0.0, 1.0), self.counts[:-1, :, None]
        covariance = -p.transpose(0, 2, 1) @ (x * p)
        diagonal = np.einsum("kxx->kx", covariance)
        diagonal += (x * p).sum(axis=1) + _FLOOR
        return replace(self, weights=np.asarray(np.linalg.inv(covariance), np.float64))

    def _path(self, theta: Array, mesh: Mesh) -> tuple[Array, Array] | None:
        """`log p` of the infinite population at the times, and its derivatives."""
        if not self.frozen:
            return self.model.sensitivities(theta, mesh)
        chain = FrozenObjective(self.model, self.counts, self.pieces).trajectory(theta, mesh)
        if chain is None:
            return None
        p, slopes = chain
        return np.log(p), slopes / p[:, :, None]
