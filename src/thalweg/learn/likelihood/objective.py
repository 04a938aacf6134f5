"""Minus the log likelihood of independent snapshots, with its gradient and information.

A model of counts gives the terms of each snapshot in `log p`. With `S = d log p / d theta` (columns
centred under `p`) and multinomial counts

    gradient    = -sum_k S_k^T (C_k - n_k p_k)
    information =  sum_k S_k^T diag(n_k p_k) S_k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from thalweg._types import Array
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.observation import CountModel, Multinomial


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
    """The interface that optimisers need."""

    @property
    def model(self) -> FlowModel:
        """The flow as a function of the parameters."""

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        """Value, gradient and curvatures; `None` if the flow could not be computed."""


@runtime_checkable
class KinkedObjective(Objective, Protocol):
    """An objective that may have kinks, and can be valued without its derivatives."""

    @property
    def kinked(self) -> bool:
        """Whether it has kinks; a value alone then costs a fraction of an evaluation."""

    def value(self, theta: Array, mesh: Mesh) -> float:
        """The value alone; infinite if there is none."""


@dataclass(frozen=True, eq=False)
class IndependentObjective:
    """Minus the log likelihood plus that of a free distribution at every time: half the deviance.

    Parameters
    ----------
    model : FlowModel
        The flow as a function of the parameters.
    counts : array
        Individuals seen, shape (times, N).
    noise : CountModel
        How they scatter around the flow.
    totals : array, optional
        The whole population at each time, where it is known and growth is learned.
    """

    model: FlowModel
    counts: Array
    noise: CountModel = field(default_factory=Multinomial)
    totals: Array | None = None

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        size = self.model.n_parameters
        gradient = np.zeros(size)
        curvature, information = np.zeros((size, size)), np.zeros((size, size))
        value, error = 0.0, 0.0
        masses = [np.zeros((1, 1 + size))]
        for chunk in self.model.trajectory(theta, mesh):
            if chunk is None:
                return None
            c = self.counts[chunk.start : chunk.start + chunk.log_p.shape[0]]
            if chunk.mass.size:
                masses.append(chunk.mass)
            with np.errstate(over="ignore", invalid="ignore"):
                terms = self.noise.terms(c, chunk.log_p)
                gap = np.clip(chunk.log_p - chunk.log_p_coarse, -50.0, 50.0)
                value += terms.value
                error += float(np.vdot(terms.information, gap * gap))
                slopes = chunk.sensitivities.reshape(-1, size)
                gradient -= slopes.T @ terms.pull.ravel()
                scaled = slopes * np.sqrt(terms.information).ravel()[:, None]
                information += scaled.T @ scaled
                excess = (terms.curvature - terms.information).ravel()
                rows = np.flatnonzero(excess > 0.0)
                part = slopes[rows] * np.sqrt(excess[rows])[:, None]
                curvature += part.T @ part
        if self.totals is not None:
            known = self.totals * self.noise.effective(self.counts).sum(1) / self.counts.sum(1)
            gap, slopes, weight = _growth_of_totals(self.totals, known, np.concatenate(masses))
            value += 0.5 * float(weight @ gap**2)
            gradient -= slopes.T @ (weight * gap)
            information += slopes.T @ (weight[:, None] * slopes)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        if not np.isfinite(information).all():
            return None
        value += self.noise.saturated(self.counts)
        return Evaluation(value, gradient, information + curvature, information, error)


def _growth_of_totals(totals: Array, known: Array, masses: Array) -> tuple[Array, Array, Array]:
    """Observed minus predicted growth of the whole per interval, its slopes, and its weight.

    A total is as well known as a count of `known` independent individuals: its logarithm has the
    variance `1 / known`.
    """
    predicted = np.diff(masses, axis=0)
    gap = np.diff(np.log(totals)) - predicted[:, 0]
    return gap, predicted[:, 1:], 1.0 / (1.0 / known[1:] + 1.0 / known[:-1])


def saturated(counts: Array) -> float:
    """`sum C log(C / n)`: the log likelihood of a free distribution at every time."""
    return Multinomial().saturated(counts)
