"""One population followed in time: what the counts at one time say about the next.

A population whose rates follow its own density is a Markov chain on counts. Given `x_k`, the next
counts have mean `n F(x_k / n)`, with `F` the flow over the interval (or the chain of frozen rates),
and covariance `sum_x x_k(x) (diag P_x - P_x P_x^T)`, with `P` the transition matrix of one
individual. Only these two moments are used (a quasi-likelihood, the efficient estimating function
for martingale increments), so states with few individuals do no harm. Intervals decouple, and no
initial distribution has to be estimated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from thalweg.learn.likelihood.frozen import EMPTY, frozen_interval
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation

__all__ = ["TrackedObjective"]

Array = NDArray[np.float64]

_FLOOR = 0.1  # variance of a count that nothing predicts: rare single jumps must not decide
_ABSENT = 0.01  # individuals where none was seen, for the flow's start


@dataclass(frozen=True, eq=False)
class TrackedObjective:
    """`1/2 sum_k r_k^T W_k r_k` with increments `r` and weights `W` held at a reference fit."""

    model: FlowModel
    counts: Array
    frozen: bool
    weights: Array | None = None
    """Inverse covariances of the increments, (intervals, N, N)."""

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        assert self.weights is not None
        predicted = self.predictions(theta, mesh)
        if predicted is None:
            return None
        mean, slopes, _ = predicted
        residual = self.counts[1:] - mean
        pull = np.einsum("kxy,ky->kx", self.weights, residual)
        value = 0.5 * float(np.vdot(residual, pull))
        gradient = -np.einsum("kxj,kx->j", slopes, pull)
        size = self.model.n_parameters
        weighted = np.matmul(self.weights, slopes).reshape(-1, size)
        information = slopes.reshape(-1, size).T @ weighted
        if not (np.isfinite(value) and np.isfinite(information).all()):
            return None
        return Evaluation(value, gradient, information, information, 0.0)

    def predictions(self, theta: Array, mesh: Mesh) -> tuple[Array, Array, Array] | None:
        """Conditional means (intervals, N), derivatives, and transition matrices."""
        model, n = self.model, self.model.n_states
        size, pi = model.n_parameters, model.kernel.stationary
        count = self.counts.shape[0] - 1
        mean, matrices = np.empty((count, n)), np.empty((count, n, n))
        slopes = np.empty((count, n, size))
        still = np.zeros((n, size))
        for k in range(count):
            x = self.counts[k]
            total = x.sum()
            with np.errstate(divide="ignore"):
                u = np.maximum(np.log(x / (total * pi)), EMPTY)
            p, d, matrix = frozen_interval(model, theta, k, u, still, int(mesh.substeps[k]))
            if not np.isfinite(p).all():
                return None
            scale = self.counts[k + 1].sum()
            matrices[k] = matrix.T
            if self.frozen:
                mean[k], slopes[k] = scale * p, scale * d
                continue
            q = x + _ABSENT
            start = np.log(q / (q.sum() * pi))
            flow = _one_interval(model, theta, k, start, mesh)
            if flow is None:
                return None
            mean[k], slopes[k] = scale * flow[0], scale * flow[1]
        return mean, slopes, matrices

    def reweighted(self, theta: Array, mesh: Mesh) -> TrackedObjective | None:
        """The same increments, weighted by the covariances at `theta`."""
        predicted = self.predictions(theta, mesh)
        if predicted is None:
            return None
        n = self.model.n_states
        weights = np.empty((self.counts.shape[0] - 1, n, n))
        for k, matrix in enumerate(predicted[2]):
            p = np.clip(matrix, 0.0, 1.0)
            x = self.counts[k]
            covariance = np.diag(x @ p) - p.T @ (x[:, None] * p)
            weights[k] = np.linalg.inv(covariance + _FLOOR * np.eye(n))
        return replace(self, weights=weights)


def _one_interval(
    model: FlowModel, theta: Array, k: int, start: Array, mesh: Mesh
) -> tuple[Array, Array] | None:
    """The flow over interval `k` from a known log density: probabilities and derivatives."""
    piece = replace(
        model,
        times=model.times[k : k + 2],
        fixed_initial=model.kernel.stationary * np.exp(start),
    )
    result = piece.sensitivities(theta, Mesh(mesh.substeps[k : k + 1], mesh.n_levels))
    if result is None:
        return None
    log_p, slopes = result
    p = np.exp(log_p[1])
    return p, p[:, None] * slopes[1]


