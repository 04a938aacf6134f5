"""The interface of a model of counts: terms of the objective, draws, and a deviance.

A model of counts describes how the individuals seen at a time arise from the probabilities of the
flow at that time. The optimiser, the bootstrap and the test of fit use nothing else, so a new one
is one file with one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from thalweg._types import Array


class Terms(NamedTuple):
    """Minus the log likelihood of counts, and its derivatives in `log p`, cell by cell.

    With `S = d log p / d theta` (columns centred under `p`) the gradient is `-S^T pull`, and the
    information and the curvature are `S^T diag(.) S`.
    """

    value: float
    pull: Array
    """Slope of the log likelihood; the rows sum to zero."""
    information: Array
    curvature: Array
    """At least the information: steers the steps where less is predicted than was seen."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """The parts of a fit from which a model of counts estimates its own parameters.

    Parameters
    ----------
    counts : array
        Observed counts, shape (times, N).
    probabilities : array
        Fitted probabilities, shape (times, N).
    used : float
        Number of parameters that the data, not the prior, determine.
    covariance : array
        Covariance of the parameters under the present model of counts.
    sensitivities : callable
        Computes the derivatives of `log p`, shape (times, N, parameters).
    """

    counts: Array
    probabilities: Array
    used: float
    covariance: Array
    sensitivities: Callable[[], Array]


class CountModel(ABC):
    """A model of the scatter of counts around the probabilities of the flow."""

    @abstractmethod
    def terms(self, counts: Array, log_p: Array) -> Terms:
        """Terms of the objective for some of the times, one row each."""

    @abstractmethod
    def saturated(self, counts: Array) -> float:
        """Log likelihood if every time has its own distribution."""

    @abstractmethod
    def draw(self, counts: Array, p: Array, rng: np.random.Generator) -> Array:
        """Counts drawn from the probabilities `p`, as many at each time as in `counts`."""

    def deviance(self, counts: Array, p: Array) -> float:
        """Twice the log likelihood ratio against a free distribution at every time."""
        log_p = np.log(np.maximum(p, 1e-300))
        return 2.0 * (self.saturated(counts) + self.terms(counts, log_p).value)

    def expected_deviance(self, counts: Array, p: Array) -> tuple[float, float] | None:
        """Its mean and variance if `p` is true; `None` if the scatter is itself estimated."""
        return None

    def effective(self, counts: Array) -> Array:
        """Counts of independent individuals that carry the same information."""
        return counts

    def started(self, counts: Array) -> CountModel:
        """The model with first guesses of what is estimated inside the fit."""
        return self

    def refined(self, fit: Residuals) -> CountModel:
        """The model with estimates from the residuals of a fit; itself if it estimates nothing."""
        return self

    def differs(self, other: CountModel) -> bool:
        """Whether the other's estimates are so different that the fit should be repeated."""
        return False

    def settled(self) -> CountModel:
        """The model for data drawn from a fit: with its own estimates, or to be estimated again."""
        return self

    @property
    def inflation(self) -> float:
        """Factor on the variance of every parameter, for the estimated scatter."""
        return 1.0

    @property
    def absorbs_misfit(self) -> bool:
        """Whether a wrong flow would pass for scatter, so that a deviance tests nothing."""
        return False

    def null_deviances(self, draws: Array, rng: np.random.Generator) -> Array:
        """Deviances of draws, widened by the error of the estimated scatter."""
        return draws

    def summary(self) -> dict[str, float]:
        """The estimates, by name."""
        return {}
