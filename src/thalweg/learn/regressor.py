"""`FreeEnergyRegressor`: fit a landscape to snapshots, in the manner of scikit-learn."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from thalweg import _checks
from thalweg._door import check_kinds, checked
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy, InternalEnergy, as_internal
from thalweg.errors import InputError
from thalweg.flow import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.learn import storage
from thalweg.learn.answer import (
    Fitted,
    Method,
    Observation,
    Settings,
    check_match,
    diagnose,
    fit_snapshots,
)
from thalweg.learn.forecast import (
    Forecast,
    Start,
    band_of,
    bands,
    flow_of,
    from_start,
    in_scale,
    mixed_flow,
)
from thalweg.learn.growth import Growth, GrowthFound
from thalweg.learn.inputs import as_problem
from thalweg.learn.limits import as_progress
from thalweg.learn.questions import Questions
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.verdict import BetaVerdict
from thalweg.learn.weak.options import Ridge
from thalweg.learn.weak.terms import Quadrature, Weighting
from thalweg.mobility import Mobility, as_mobility
from thalweg.snapshots import Smoother, Snapshots, TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

    from thalweg.learn.refits import Bootstrap


_log = logging.getLogger(__name__)


class FreeEnergyRegressor(Questions, BaseEstimator):  # type: ignore[misc]
    """Learns the free energy `V + beta log rho` that drives a population over a graph.

    If the data are few, the likelihood is averaged over betas and priors: the potential is a mean,
    its errors include the spread between them, and forecasts are means of their flows.

    Parameters
    ----------
    method : {"likelihood", "weak", "neural"}
        The likelihood of the counts under the flow; the weak form, fast; or the paper's network
        (with `features`, a network of them).
    observation : {"independent", "overdispersed", "tracked"} or CountModel
        Independent snapshots of new individuals (with replicates, error bars come from how these
        differ); individuals in clumps, as in a census or correlated frames (`Overdispersed`); or
        one tracked population.
    discretization : {"continuous", "frozen"}
        The continuous flow, or rates held over each interval, as in the paper.
    environment : {"mean-field", "empirical"}
        The density that sets the rates of a tracked population: that of the infinite one, or its
        own.
    mobility : Mobility, optional
        By default the logarithmic mean.
    internal : InternalEnergy, optional
        By default the entropy.
    beta : float, optional
        The noise, if known.
    potential : array, optional
        The potential, if known.
    initial : array, optional
        The distribution at the first time, if known.
    features : array, optional
        The potential is linear in them, shape `(N, d)`; a network of them for `"neural"`.
    interactions : sequence of matrices
        Symmetric matrices whose strengths are learned.
    time_basis : TimeBasis, optional
        For a potential that varies in time.
    growth : "states", array or Growth, optional
        Births and deaths beside transport: one learned rate per state, known rates, or a `Growth`,
        which may also hold features and the totals at each time.
    prior : float or "evidence"
        Strength of the smoothness prior of the likelihood; by default chosen by evidence.
    use_coordinates : bool
        With many states, whether the prior is smooth in the kernel's coordinates, up to three.
    smoother : Smoother, optional
        From counts to probabilities, for the weak form and the networks.
    quadrature, weighting, ridge
        Options of the weak form; see `fit_weak`.
    epochs : int
        Passes over the samples, for the networks.
    device : str, optional
        The torch device, for the networks.
    seed : int
        Seed of every random number generator used.
    max_seconds : float, optional
        Bound on the time of a fit; the best result so far then has the status `TIME_LIMIT`.
    max_iterations : int, optional
        Bound on the iterations of all optimisers; the status is then `MAX_ITERATIONS`.
    progress : callable or bool, optional
        Called as `progress(what, done, total)`; `True` prints the time left to stderr.

    Attributes
    ----------
    kernel_ : MarkovKernel
        The graph of the fit.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
    >>> seen = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], counts)
    >>> model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    >>> model.status_.name, model.potential_.shape
    ('CONVERGED', (3,))
    >>> model.predict([0.2, 0.3, 0.5], [0.0, 1.0]).probabilities.shape
    (2, 3)
    """

    def __init__(
        self,
        *,
        method: Method = "likelihood",
        observation: Observation = "independent",
        discretization: Literal["continuous", "frozen"] = "continuous",
        environment: Literal["mean-field", "empirical"] = "mean-field",
        mobility: Mobility | None = None,
        internal: InternalEnergy | None = None,
        beta: float | None = None,
        potential: ArrayLike | None = None,
        initial: ArrayLike | None = None,
        features: ArrayLike | None = None,
        interactions: Sequence[ArrayLike] = (),
        time_basis: TimeBasis | None = None,
        growth: Growth | Literal["states"] | ArrayLike | None = None,
        prior: float | Literal["evidence"] = "evidence",
        use_coordinates: bool = True,
        smoother: Smoother | None = None,
        quadrature: Quadrature = "trapezoid",
        weighting: Weighting = "metric",
        ridge: Ridge = "auto",
        epochs: int = 2,
        device: str | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        max_iterations: int | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        given = locals()
        for name in self._get_param_names():  # scikit-learn's: the parameters of this signature
            setattr(self, name, given[name])

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        kernel: Any,
        snapshots: Any,
        *,
        time: str | None = None,
        state: str | None = None,
        count: str | None = None,
    ) -> FreeEnergyRegressor:
        """Learn the free energy from snapshots of the population on the states of a graph.

        Parameters
        ----------
        kernel : MarkovKernel, networkx graph, or matrix
            The graph; a matrix (dense or sparse, or a data frame) holds the edges' weights.
        snapshots : Snapshots or data frame
            The population: long (one row per individual, or per count of them) or wide (one row per
            time, one column per state).
        time, state, count : str, optional
            Columns of a data frame; by default detected by name (`time`, `day`, `state`, `n`, ...).
        """
        graph, seen = as_problem(kernel, snapshots, time=time, state=state, count=count)
        _log.info(
            "fitting %d states, %d edges, %d snapshots by %s",
            graph.n_states, graph.n_edges, seen.n_times, self.method,
        )  # fmt: skip
        begun = process_time()
        fitted = fit_snapshots(graph, seen, self._settings())
        _log.info("fitted in %.1f CPU s: %s", process_time() - begun, fitted.status.name)
        return self._adopt(graph, replace(fitted, scale=seen.scale))

    def _settings(self) -> Settings:
        names = [name for name in Settings.__dataclass_fields__ if name != "refit"]
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options["mobility"] = self._mobility
        options["internal"] = as_internal(self.internal)
        check_kinds(FreeEnergyRegressor.__init__, options)
        return Settings(**options)

    @property
    def _mobility(self) -> Mobility:
        return as_mobility(self.mobility)

    def _adopt(self, kernel: MarkovKernel, fitted: Fitted) -> FreeEnergyRegressor:
        self.kernel_ = kernel
        self.fitted_ = fitted
        self._diagnostics: dict[str, Any] | None = None
        return self

    @property
    def _fit(self) -> Fitted:
        try:
            return self.fitted_
        except AttributeError:
            raise InputError("this regressor is not fitted yet; call fit first.") from None

    # ---------------------------------------------------------------- what was learned

    @property
    def energy_(self) -> FreeEnergy:
        """The fitted free energy (with the time average of a potential that varies in time)."""
        return self._fit.energy

    @property
    def potential_(self) -> Array:
        """The potential, centred: `sum_x pi_x V_x = 0`."""
        return self._fit.energy.potential

    @property
    def beta_(self) -> float:
        """The noise."""
        return self._fit.energy.beta

    @property
    def potential_stderr_(self) -> Array:
        """Standard error of the centred potential; NaN if only `bootstrap` gives one."""
        return self._fit.potential_stderr

    @property
    def beta_stderr_(self) -> float:
        """Standard error of beta; infinite if the data do not determine it."""
        return self._fit.beta_stderr

    @property
    def beta_verdict_(self) -> BetaVerdict:
        """Whether the data determine beta, between which bounds, and why not."""
        return self._fit.beta_verdict

    @property
    def determined_(self) -> dict[str, bool]:
        """Whether the data determine `beta`, and `potential` at every state.

        The potential counts as determined if two standard errors are below its span.
        """
        stderr, span = self.potential_stderr_, float(np.ptp(self.potential_))
        known = bool(np.all(2.0 * stderr <= span))
        return {"beta": self.beta_verdict_.determined, "potential": known}

    @property
    def growth_(self) -> GrowthFound | None:
        """Rates of growth, their errors, and whether they were needed; `None` if not requested."""
        return self._fit.growth

    @property
    def initial_(self) -> Array:
        """The distribution at the first time."""
        return self._fit.initial

    @property
    def times_(self) -> Array:
        """The times of the snapshots, as numbers."""
        return self._fit.times

    @property
    def time_scale_(self) -> TimeScale:
        """The unit of times, and the date of time 0 if the data had dates."""
        return self._fit.scale

    @property
    def status_(self) -> Status:
        """The status of the fit."""
        return self._fit.status

    @property
    def diagnostics_(self) -> dict[str, Any]:
        """Plain values: how the fit ended, what the data leave open, whether the model fits."""
        fit = self._fit
        if self._diagnostics is None:
            self._diagnostics = diagnose(self.kernel_, fit, seed=self._settings().seed)
        return self._diagnostics

    def predict_potential(self, features: ArrayLike) -> Array:
        """The potential of states with these features, on this or any other graph."""
        return self._fit.predict_potential(features)

    # ---------------------------------------------------------------- what follows from it

    def _when(self, times: ArrayLike) -> Array:
        """Increasing times as numbers of the data's scale."""
        return _checks.as_times(self.time_scale_.numbers(times))

    def predict(self, p0: ArrayLike | None, times: ArrayLike) -> Trajectory:
        """The flow of the learned energy from `p0` at `times[0]`.

        Parameters
        ----------
        p0 : array or None
            Probabilities at `times[0]`; `None` is the fitted distribution at the first snapshot.
        times : array
            Increasing times; dates or labels if the data had them.
        """
        grid, shift = from_start(self._when(times), self.times_[0], p0)
        members = self._fit.members
        if members is not None:
            flow = mixed_flow(
                self.kernel_, self.energy_, members, p0, grid, mobility=self._mobility
            )
            return in_scale(flow, self.time_scale_, shift)
        flow = flow_of(
            self.kernel_, self.energy_, self.initial_ if p0 is None else p0, grid,
            mobility=self._mobility,
            discretization=self.discretization,
            varying=None if self.time_basis is None else (self.time_basis, self._fit.potentials),
            rates=None if self._fit.growth is None else self._fit.growth.rates,
        )  # fmt: skip
        return in_scale(flow, self.time_scale_, shift)

    @checked
    def forecast(
        self,
        times: ArrayLike,
        *,
        p0: ArrayLike | None = None,
        p0_size: float | None = None,
        level: float = 0.95,
        n_draws: int = 32,
    ) -> Forecast:
        """The flow at `times`, with pointwise bands in [0, 1] by the delta method.

        Parameters
        ----------
        times : array
            Increasing times; dates or labels if the data had them.
        p0 : array, optional
            Probabilities at `times[0]`; by default the fitted distribution at the first snapshot.
        p0_size : float, optional
            Number of individuals behind `p0`, whose sampling noise the band then includes; by
            default `p0` is exact.
        level : float
            Level of the bands.
        n_draws : int
            Posterior draws along which the flow is differenced above a few hundred states; below,
            its sensitivities are exact.
        """
        fit = self._fit
        if self.time_basis is not None or self.discretization == "frozen":
            raise InputError(
                "bands are drawn for the continuous flow of a fixed potential; use predict."
            )
        when, shift = from_start(self._when(times), self.times_[0], p0)
        begin = Start(p0, None if p0_size is None else _checks.positive(p0_size, "p0_size"))
        if fit.growth is not None and fit.joint_covariance is not None:
            found = band_of(fit.source, when, begin, level)
            return in_scale(found, self.time_scale_, shift)
        found = bands(
            self.kernel_, fit, when, begin=begin, mobility=self._mobility, level=level,
            n_draws=n_draws, progress=as_progress(self.progress),
        )  # fmt: skip
        return in_scale(found, self.time_scale_, shift)

    def score(self, snapshots: Snapshots) -> float:
        """The mean log-likelihood of an individual of these snapshots; higher is better."""
        check_match(self.kernel_, snapshots)
        path = self.predict(None, snapshots.on(self.time_scale_).times)
        logs = np.log(np.maximum(path.probabilities, 1e-300))
        return float((snapshots.counts * logs).sum()) / float(snapshots.sizes.sum())

    @checked
    def sample(
        self,
        times: ArrayLike,
        n_samples: int,
        *,
        p0: ArrayLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> Snapshots:
        """Draw snapshots from the learned energy.

        Independent ones are drawn anew at each time; a tracked population is simulated, in the
        rates of its `environment`.

        Parameters
        ----------
        times : array
            Increasing times; dates or labels if the data had them.
        n_samples : int
            Number of individuals per snapshot.
        p0 : array, optional
            Probabilities at `times[0]`; by default the fitted distribution at the first snapshot.
        rng : numpy.random.Generator, optional
            Source of random numbers; by default with the regressor's seed.
        """
        from thalweg.learn.refits import sample

        _ = self._fit
        return sample(self, times, n_samples, p0=p0, rng=rng)

    @checked
    def bootstrap(
        self,
        snapshots: Snapshots,
        n_refits: int = 100,
        *,
        rng: np.random.Generator | None = None,
        jobs: int | None = None,
    ) -> Bootstrap:
        """Errors by refitting, for any method, without a formula or a normal approximation.

        Parameters
        ----------
        snapshots : Snapshots
            Their times and sizes are those of the drawn data.
        n_refits : int
            Number of data sets that are drawn from the learned energy and fitted.
        rng : numpy.random.Generator, optional
            Source of random numbers; by default with the regressor's seed.
        jobs : int, optional
            Number of worker processes; by default that of joblib's `parallel_config`.

        >>> from thalweg import make_graph
        >>> graph = make_graph("complete", 5, rng=np.random.default_rng(0))
        >>> counts = [[500, 300, 100, 50, 50], [300, 300, 200, 100, 100]]
        >>> seen = Snapshots.from_counts([0.0, 1.0], counts)
        >>> model = FreeEnergyRegressor(method="weak").fit(graph, seen)
        >>> draws = model.bootstrap(seen, 20)
        >>> draws.potentials.shape, bool(draws.beta_stderr > 0)
        ((20, 5), True)
        """
        from thalweg.learn.refits import bootstrap

        _ = self._fit
        return bootstrap(self, snapshots, n_refits, rng=rng, jobs=jobs)

    def to_frame(self) -> pd.DataFrame:
        """One row per state: name, potential, its error, equilibrium, and visits."""
        return self._fit.to_frame(self.kernel_)

    # ---------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write kernel, energy, errors and settings to a plain file; read it with `load`."""
        fit = replace(self._fit, verdict=self.diagnostics_)
        storage.save(path, self.kernel_, fit, self.get_params(deep=False))


def load(path: str | os.PathLike[str]) -> FreeEnergyRegressor:
    """Read a fitted regressor that `FreeEnergyRegressor.save` wrote."""
    kernel, fitted, settings = storage.load(path)
    try:
        regressor = FreeEnergyRegressor(**settings)
    except TypeError as error:
        raise InputError(f"{path} holds settings that this thalweg lacks ({error}).") from None
    return regressor._adopt(kernel, fitted)
