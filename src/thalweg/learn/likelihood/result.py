"""`LikelihoodFit`: the answer of a likelihood fit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.priors import Prior
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.learn.observation import CountModel, Multinomial
from thalweg.status import Status

REJECTED = 4.0
"""Standard deviations of the deviance above which a model is rejected."""


@dataclass(frozen=True, eq=False)
class LikelihoodFit:
    """A free energy and an initial distribution that make the counts most likely.

    `covariance` is that of `theta`, the parameters as the optimiser sees them (see
    `thalweg.learn.likelihood.model`); the named properties translate it.
    """

    energy: FreeEnergy
    initial: Array
    """The fitted distribution at the first time."""
    probabilities: Array
    """The fitted distribution at every time, one row each."""
    log_likelihood: float
    """`sum C log p` (tracked: the Gaussian log likelihood of the increments)."""
    deviance: float
    """Twice the log likelihood ratio against a free distribution at every time."""
    expected_deviance: float
    """Mean deviance of a true model: the degrees of freedom, fewer if states are nearly empty; NaN
    if the scatter of the counts is itself estimated."""
    deviance_stderr: float
    """Standard deviation of the deviance of a true model."""
    status: Status
    n_iterations: int
    settings: LikelihoodOptions
    theta: Array
    covariance: Array
    information: Array
    """Expected information of the data about `theta`, the prior left out."""
    counts: Array
    model: FlowModel
    mesh: Mesh
    prior: Prior
    noise: CountModel = field(default_factory=Multinomial)
    """Model of the counts around the flow, with its estimates."""
    totals: Array | None = None
    """The whole population at each time, if growth was learned from it."""
    transport: Array | None = None
    """The fitted probabilities of transport alone, if growth was learned."""
    unshrunk: LikelihoodFit | None = None
    """The fit under a weak prior, if the evidence wants a stronger one on rates or potential."""
    n_intervals: int | None = None
    """Number of leading intervals that were fitted, if the chain could not be followed to its end;
    `None` if all were."""

    @property
    def deviance_per_degree(self) -> float:
        """Deviance per degree of freedom: about one where the model is right."""
        return self.deviance / self.expected_deviance

    @property
    def rejected(self) -> bool:
        """Whether the deviance rejects the model, by four standard deviations."""
        return self.deviance > self.expected_deviance + REJECTED * self.deviance_stderr

    def over(self, n_intervals: int) -> LikelihoodFit:
        """The same fit, of the first intervals only."""
        weak = None if self.unshrunk is None else self.unshrunk.over(n_intervals)
        return replace(self, n_intervals=n_intervals, unshrunk=weak)

    def increments(self, counts: Array) -> TrackedObjective:
        """The increments of a tracked population with these counts, over the horizon fitted."""
        frozen = self.settings.discretization == "frozen"
        empirical = self.settings.environment == "empirical"
        whole = TrackedObjective(self.model, counts, frozen, empirical)
        return whole.shortened(self.n_intervals) if self.n_intervals else whole

    @property
    def kernel(self) -> MarkovKernel:
        return self.model.kernel

    @property
    def times(self) -> Array:
        return self.model.times

    @property
    def potential(self) -> Array:
        """The potential, centred: `sum_x pi_x V_x = 0`."""
        return self.energy.potential

    @property
    def beta(self) -> float:
        return self.energy.beta

    @cached_property
    def _centring(self) -> Array:
        """The matrix from the potential's coefficients to the centred potential."""
        pi = self.kernel.stationary
        linear = self.model.potential_map()
        return np.asarray(linear - pi @ linear)

    def _in_answer(self, rows: Array) -> Array:
        """Rows of the potential's coefficients as rows of the centred potential."""
        plain = self.model.features is None and self.model.time_basis is None
        moved = rows if plain else self.model.potential_map() @ rows
        return np.asarray(moved - self.kernel.stationary @ moved)

    @property
    def potential_covariance(self) -> Array:
        """Covariance of the centred potential, shape (N, N)."""
        k = self.model.n_potential
        return self._in_answer(self._in_answer(self.covariance[:k, :k]).T)

    @property
    def potential_stderr(self) -> Array:
        return np.sqrt(np.maximum(np.diag(self.potential_covariance), 0.0))

    @property
    def log_beta_stderr(self) -> float:
        """Standard error of `log beta`; zero where beta is known."""
        if not self.model.learns_beta:
            return 0.0
        i = self.model.beta_index
        return float(np.sqrt(max(self.covariance[i, i], 0.0)))

    @property
    def beta_stderr(self) -> float:
        return self.beta * self.log_beta_stderr

    @property
    def joint_covariance(self) -> Array:
        """Covariance of (centred potential, beta, log initial distribution)."""

        def in_answer(rows: Array) -> Array:
            model, n = self.model, self.kernel.n_states
            out = np.zeros((2 * n + 1, rows.shape[1]))
            out[:n] = self._in_answer(rows[model.potential_slice])
            if model.learns_beta:
                out[n] = self.beta * rows[model.beta_index]
            if model.n_initial:
                start = rows[model.initial_slice]
                out[n + 1 :] = start - self.initial @ start
            return out

        return in_answer(in_answer(self.covariance).T)

    @property
    def interaction_strengths(self) -> Array:
        """The learned coefficients of the given interaction basis."""
        return self.theta[self.model.interaction_slice]

    @property
    def potential_parts(self) -> Array:
        """One centred potential per basis function in time, one row each."""
        parts = self.model.potentials(self.theta)
        return np.asarray(parts - (parts @ self.kernel.stationary)[:, None])

    @property
    def feature_weights(self) -> Array:
        """The coefficients of the given features (one row per basis function in time)."""
        return self.theta[self.model.potential_slice].reshape(self.model.n_basis, -1)
