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

from thalweg._types import Array
from thalweg.learn.likelihood.frozen import density_doubts, frozen_chain, frozen_intervals
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, saturated
from thalweg.snapshots.density import smoothed

PSEUDO_COUNT = 0.5
"""Individuals added to every state where the population's own density sets the rates."""
FLOOR = 0.1
"""Variance added to every count, so that rare single jumps do not decide."""


class _Increments(NamedTuple):
    mean: Array
    slopes: Array
    matrices: Array
    first: Array
    first_slopes: Array
    probabilities: Array | None = None
    """Of the mean-field chain, at every time."""


class Judgement(NamedTuple):
    """Goodness of fit of the increments, weighted by their own covariances."""

    merit: float
    """Minus the Gaussian log likelihood up to a constant: comparable between parameters."""
    deviance: float
    expected: float
    """The mean of the deviance if these parameters are the true ones."""

    def rejects(self, deviations: float = 3.5) -> bool:
        """Whether the deviance exceeds that of a true model by this many standard deviations."""
        half = 0.5 * self.expected
        return not 0.5 * self.deviance < half + deviations * np.sqrt(half + 1.0) + 2.0


@dataclass(frozen=True, eq=False)
class TrackedObjective:
    """`1/2 sum_k r_k^T W_k r_k` with increments `r` and weights `W` held at a reference fit."""

    model: FlowModel
    counts: Array
    frozen: bool
    empirical: bool
    weights: Array | None = None
    """Inverse covariances of the increments, (intervals, N, N)."""
    gain: float = 0.0
    """How far the mean-field chain is pulled towards the counts after each interval, 0 to 1."""
    floor: float = FLOOR
    """Variance added to every count."""

    @property
    def kinked(self) -> bool:
        return self.frozen

    def shortened(self, n_intervals: int) -> TrackedObjective:
        """The same population, seen over its first intervals only; without weights."""
        model = replace(self.model, times=self.model.times[: n_intervals + 1])
        return replace(self, model=model, counts=self.counts[: n_intervals + 1], weights=None)

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        assert self.weights is not None
        with np.errstate(all="ignore"):
            predicted = self.predictions(theta, mesh)
            if predicted is None:
                return None
            residual = self.counts[1:] - predicted.mean
            pull = np.einsum("kxy,ky->kx", self.weights, residual)
            slopes = predicted.slopes
            value = 0.5 * float(np.vdot(residual, pull)) + self._first(predicted)
            gradient = -np.einsum("kxj,kx->j", slopes, pull)
            size = self.model.n_parameters
            weighted = np.matmul(self.weights, slopes).reshape(-1, size)
            information = slopes.reshape(-1, size).T @ weighted
            if self.model.n_initial:
                x, p, d = self.counts[0], predicted.first, predicted.first_slopes
                gradient -= d.T @ (x - x.sum() * p)
                information += d.T @ (x.sum() * p[:, None] * d)
        if not (np.isfinite(value) and np.isfinite(information).all()):
            return None
        return Evaluation(value, gradient, information, information, 0.0)

    def value(self, theta: Array, mesh: Mesh) -> float:
        """The value of `evaluate` alone; infinite where there is none."""
        assert self.weights is not None
        with np.errstate(all="ignore"):
            predicted = self.predictions(theta, mesh, slopes=False)
            if predicted is None:
                return np.inf
            residual = self.counts[1:] - predicted.mean
            value = 0.5 * float(np.einsum("kx,kxy,ky->", residual, self.weights, residual))
            value += self._first(predicted)
        return value if np.isfinite(value) else np.inf

    def judge(self, theta: Array, mesh: Mesh) -> Judgement:
        """The increments against their own covariances at `theta`; infinite where there are none.

        A true model leaves `sum_k tr(W_k Sigma_k)` on average, which is the number of states seen
        to move, not of all states: one that nothing reaches has no variance.
        """
        hopeless = Judgement(np.inf, np.inf, 0.0)
        with np.errstate(all="ignore"):
            predicted = self.predictions(theta, mesh, slopes=False)
            if predicted is None:
                return hopeless
            covariance = self._covariances(theta, predicted)
            try:
                root = np.linalg.cholesky(covariance + self.floor * np.eye(self.model.n_states))
            except np.linalg.LinAlgError:
                return hopeless
            residual = self.counts[1:] - predicted.mean
            scaled = np.linalg.solve(root, residual[:, :, None])[:, :, 0]
            spread = np.linalg.solve(root, covariance).transpose(0, 2, 1)
            expected = float(np.einsum("kxx->", np.linalg.solve(root, spread)))
            square, first = float(np.vdot(scaled, scaled)), self._first(predicted)
            merit = 0.5 * square + first + float(np.log(np.einsum("kxx->kx", root)).sum())
        if not np.isfinite(merit):
            return hopeless
        if self.model.n_initial:
            expected += self.model.n_states - 1
        return Judgement(merit, square + 2.0 * first, expected)

    def _first(self, predicted: _Increments) -> float:
        """Minus the log likelihood of the first snapshot, where its distribution is learned."""
        if not self.model.n_initial:
            return 0.0
        return saturated(self.counts[:1]) - float(self.counts[0] @ np.log(predicted.first))

    def predictions(self, theta: Array, mesh: Mesh, *, slopes: bool = True) -> _Increments | None:
        """Conditional means of the counts after the first, derivatives, transition matrices."""
        model = self.model
        n, size = model.n_states, model.n_parameters if slopes else 0
        x, total = self.counts[:-1], self.counts[1:].sum(axis=1)
        share = x / x.sum(axis=1, keepdims=True)
        still = np.zeros((x.shape[0], n, size))
        first, first_slopes, p = self.counts[0], still[0], None
        log_pi = np.log(model.kernel.stationary)
        if self.frozen and not self.empirical:
            chain = frozen_chain(
                model, theta, shares=share, slopes=slopes, counts=self.counts, gain=self.gain
            )
            if chain is None:
                return None
            mean, d_mean, matrices = chain.moved, chain.moved_slopes, chain.matrices
            p, first_slopes = chain.probabilities, chain.log_slopes[0]
            first = p[0]
        elif self.frozen:
            u = np.log(self._dressed()) - log_pi
            mean, d_mean, matrices = frozen_intervals(model, theta, u, still, (share, still))
        else:
            flow = model.sensitivities(
                theta, mesh, starts=self._dressed() if self.empirical else None
            )
            if flow is None:
                return None
            log_q, e = flow[0][1:], flow[1][1:, :, :size]
            if self.empirical:
                log_p, d = np.log(self._dressed()), still
            else:
                log_p, d = flow[0][:-1], flow[1][:-1, :, :size]
                first, first_slopes = np.exp(log_p[0]), d[0]
            # The rest of the population moves by the rates in the middle of the interval.
            now, q = np.exp(log_p), np.exp(log_q)
            rest = (share - now, -now[:, :, None] * d)
            middle = 0.5 * (log_p + log_q) - log_pi
            moved, d_moved, matrices = frozen_intervals(model, theta, middle, 0.5 * (d + e), rest)
            mean, d_mean = q + moved, q[:, :, None] * e + d_moved
        if not np.isfinite(mean).all():
            return None
        mean, d_mean = total[:, None] * mean, total[:, None, None] * d_mean
        return _Increments(mean, d_mean, matrices, first, first_slopes, p)

    def reweighted(self, theta: Array, mesh: Mesh) -> TrackedObjective | None:
        """The same increments, weighted by the covariances at `theta` plus a least variance."""
        with np.errstate(all="ignore"):
            predicted = self.predictions(theta, mesh, slopes=False)
            if predicted is None:
                return None
            covariance = self._covariances(theta, predicted)
        if not np.isfinite(covariance).all():
            return None
        covariance += self.floor * np.eye(self.model.n_states)
        return replace(self, weights=np.asarray(np.linalg.inv(covariance), np.float64))

    def _dressed(self) -> Array:
        """The population's own density, a pseudo-count added to every state."""
        return smoothed(self.counts[:-1], PSEUDO_COUNT)

    def _covariances(self, theta: Array, predicted: _Increments) -> Array:
        """`sum_x x_k(x) (diag P_x - P_x P_x^T)` per interval, plus the density's uncertainty."""
        matrices = predicted.matrices
        weighted = self.counts[:-1, :, None] * matrices
        covariance = -matrices.transpose(0, 2, 1) @ weighted
        np.einsum("kxx->kx", covariance)[:] += weighted.sum(axis=1)
        if self.gain > 0.0 and predicted.probabilities is not None:
            x, total = self.counts[:-1], self.counts[1:].sum(axis=1)
            covariance += total[:, None, None] ** 2 * density_doubts(
                self.model, theta, predicted.probabilities, x / x.sum(axis=1, keepdims=True),
                self.counts, self.gain,
            )  # fmt: skip
        return np.asarray(covariance)
