"""Minus the log likelihood of independent snapshots, with its gradient and information.

Each snapshot is a multinomial sample of the flow at its time, so with `S = d log p / d theta`
(columns centred under `p`)

    gradient    = -sum_k S_k^T (C_k - n_k p_k)
    information =  sum_k S_k^T diag(n_k p_k) S_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.learn.likelihood.model import FlowModel, Mesh

__all__ = ["Evaluation", "IndependentObjective", "Objective"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A value to be minimised, its gradient, and two curvatures.

    `curvature` is at least the information and steers the steps where the model predicts less than
    was seen; `information` is the expected one. `mesh_error` is the size of the last order of the
    time integration, in units of the likelihood: `sum n p (difference of log p)^2`.
    """

    value: float
    gradient: Array
    curvature: Array
    information: Array
    mesh_error: float


class Objective(Protocol):
    """What the optimiser needs."""

    @property
    def model(self) -> FlowModel:
        """What the parameters mean."""

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        """`None` where the flow could not be computed."""


@dataclass(frozen=True, eq=False)
class IndependentObjective:
    """`-sum C log p + sum C log(C / n)`: half the deviance from the saturated model."""

    model: FlowModel
    counts: Array

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        size = self.model.n_parameters
        gradient = np.zeros(size)
        curvature, information = np.zeros((size, size)), np.zeros((size, size))
        value, error = 0.0, 0.0
        for chunk in self.model.trajectory(theta, mesh):
            if chunk is None:
                return None
            c = self.counts[chunk.start : chunk.start + chunk.log_p.shape[0]]
            expected = c.sum(axis=1, keepdims=True) * np.exp(chunk.log_p)
            with np.errstate(over="ignore", invalid="ignore"):
                gap = np.clip(chunk.log_p - chunk.log_p_coarse, -50.0, 50.0)
                value -= float(np.vdot(c, chunk.log_p))
                error += float(np.vdot(expected, gap * gap))
                slopes = chunk.sensitivities.reshape(-1, size)
                gradient -= slopes.T @ (c - expected).ravel()
                scaled = slopes * np.sqrt(expected).ravel()[:, None]
                information += scaled.T @ scaled
                excess = np.maximum(c - expected, 0.0).ravel()
                rows = np.flatnonzero(excess > 0.05 * expected.ravel())
                part = slopes[rows] * np.sqrt(excess[rows])[:, None]
                curvature += part.T @ part
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        if not np.isfinite(information).all():
            return None
        value += saturated(self.counts)
        return Evaluation(value, gradient, information + curvature, information, error)


def saturated(counts: Array) -> float:
    """`sum C log(C / n)`: the log likelihood of a free distribution at every time."""
    share = counts / counts.sum(axis=1, keepdims=True)
    return float(np.sum(counts * np.log(np.where(share > 0, share, 1.0))))
