"""Options, rounds and result of a fit of many states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.learn.diagnostics import GoodnessOfFit, goodness_of_many
from thalweg.learn.fields.likelihood import Place
from thalweg.learn.likelihood.result import REJECTED
from thalweg.learn.limits import exhausted, limit_status
from thalweg.learn.observation import Multinomial
from thalweg.status import Status


@dataclass(frozen=True)
class LargeOptions:
    """Effort of a fit; the defaults suit hundreds to tens of thousands of states."""

    n_functions: int = 240
    """Smooth functions of the potential's prior (a third as many for the initial density)."""
    spreads: tuple[int, ...] = (0, 12)
    """Diffusion times, in kernel steps, of the prior's noises."""
    max_rounds: int = 40
    """Rounds of Gauss-Newton steps and evidence updates."""
    n_probes: int = 12
    """Draws of the posterior behind the prior's scales."""
    n_simulations: int = 2
    """Simulated data sets behind beta, if there are no coordinates."""
    n_samples: int = 32
    """Posterior samples behind the error bars of the potential."""
    max_substeps: int = 16
    bias_tolerance: float = 0.02
    """Time steps are halved while they change the fit's log likelihood ratio by more than this
    share of the number of determined coefficients."""
    fall_back: bool = True
    """Fit along the graph where the counts reject a landscape that is smooth in space."""


@dataclass(frozen=True, eq=False)
class LargeFit:
    """A free energy and an initial distribution, most likely given counts and a smoothness prior.

    `potential` is centred, `sum_x pi_x V_x = 0`.
    """

    kernel: MarkovKernel
    times: Array
    counts: Array
    energy: FreeEnergy
    initial: Array
    """The fitted distribution at the first time."""
    probabilities: Array
    """The fitted distribution at every time, one row each."""
    potential_stderr: Array
    """Standard error of the centred potential, from posterior samples."""
    log_beta_stderr: float
    log_likelihood: float
    deviance: float
    """Twice the log likelihood ratio against a free distribution at every time."""
    status: Status
    n_iterations: int
    determined: float
    """Number of coefficients of potential and initial distribution that the data determine."""
    substeps: int
    potential_samples: Array
    """Draws of the centred potential's posterior, one row each."""
    beta_samples: Array
    """Draws of beta that belong to them."""
    in_space: bool = False
    """Whether the prior was smooth in the coordinates, rather than along the graph."""

    @property
    def potential(self) -> Array:
        return self.energy.potential

    @property
    def beta(self) -> float:
        return self.energy.beta

    @cached_property
    def goodness(self) -> GoodnessOfFit:
        """Whether the fitted flow describes the counts."""
        return goodness_of_many(self.deviance, self.counts, self.probabilities, self.determined)

    @property
    def rejected(self) -> bool:
        """Whether the deviance rejects the fit, by four standard deviations."""
        return self.goodness.statistic > REJECTED

    @property
    def beta_stderr(self) -> float:
        return self.beta * self.log_beta_stderr

    @property
    def beta_interval(self) -> tuple[float, float]:
        """95 % interval: the wider of those symmetric in beta and in log beta; may begin at 0.

        The error of beta hardly depends on beta, so its lower end is nearer to that in beta.
        """
        reach = 1.959963984540054 * min(self.log_beta_stderr, 300.0)
        return max(float(self.beta * (1.0 - reach)), 0.0), float(self.beta * np.exp(reach))


class Fitter(ABC):
    """The state of one fit, improved in rounds; the best iterate is always available."""

    def __init__(
        self, options: LargeOptions, progress: Progress | None, rng: np.random.Generator
    ) -> None:
        self.options, self.progress, self.rng = options, progress, rng
        self.damping, self.n_iterations = 0.0, 0
        self.determined = 0.0
        """Number of coefficients that the data determine."""

    @abstractmethod
    def settled(self, round_: int) -> bool:
        """Take one round's steps; return whether the fit has converged."""

    @abstractmethod
    def result(self, status: Status) -> LargeFit:
        """The fit at the present iterate."""

    def run(self) -> LargeFit:
        """Run all rounds, within the limits on work; an interruption returns the last iterate."""
        status = Status.MAX_ITERATIONS
        try:
            for round_ in range(self.options.max_rounds):
                if exhausted():
                    status = limit_status()
                    break
                if self.progress is not None:
                    self.progress("likelihood", round_, self.options.max_rounds)
                if self.settled(round_):
                    status = Status.CONVERGED
                    break
            return self.result(status)
        except KeyboardInterrupt:
            return self.result(Status.INTERRUPTED)

    def refined(self, place: Place) -> Place | None:
        """The place with time steps of half the length, if they change the likelihood."""
        finer = None
        if 2 * place.likelihood.flow.substeps <= self.options.max_substeps:
            finer = place.finer()
        least = self.options.bias_tolerance * max(self.determined, 10.0)
        return None if finer is None or finer.apart(place) < least else finer

    def fit_at(
        self,
        place: Place,
        status: Status,
        samples: Array,
        beta_samples: Array,
        log_beta_stderr: float,
    ) -> LargeFit:
        """The fit at a place; `samples` are deviations of the potential, or none."""
        likelihood = place.likelihood
        pi, counts = likelihood.kernel.stationary, likelihood.counts
        V = place.V - pi @ place.V
        samples = samples - (samples @ pi)[:, None]
        stderr = np.sqrt((samples**2).mean(axis=0)) if len(samples) else np.full(pi.size, np.nan)
        return LargeFit(
            kernel=likelihood.kernel,
            times=likelihood.flow.times,
            counts=counts,
            energy=FreeEnergy(V, place.beta),
            initial=np.exp(place.log_p[0]),
            probabilities=np.exp(place.log_p),
            potential_stderr=stderr,
            log_beta_stderr=log_beta_stderr,
            log_likelihood=place.log_likelihood,
            deviance=2.0 * (Multinomial().saturated(counts) - place.log_likelihood),
            status=status,
            n_iterations=self.n_iterations,
            determined=self.determined,
            substeps=likelihood.flow.substeps,
            potential_samples=V + samples,
            beta_samples=beta_samples,
        )
