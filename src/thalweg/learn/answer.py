"""`Fitted`: the result of every method of learning, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._optional import data_frame
from thalweg._sparse import dense
from thalweg._types import Array, Progress
from thalweg._words import p_text
from thalweg.energy import Entropy, FreeEnergy, InternalEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.few.mixture import Mixture
from thalweg.learn.growth import Growth, GrowthFound, as_growth, growth_of
from thalweg.learn.inputs import feature_table
from thalweg.learn.limits import as_progress, reporting, work_limit
from thalweg.learn.network.features import FeatureNetwork, WeakLoss, fit_feature_network
from thalweg.learn.network.paper import Training, fit_neural
from thalweg.learn.observation import CountModel, Multinomial, Overdispersed, Replicated
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.verdict import BetaVerdict, unassessed
from thalweg.learn.weak.options import Ridge
from thalweg.learn.weak.terms import Quadrature, Weighting
from thalweg.mobility import LogMean, Mobility
from thalweg.snapshots import Dirichlet, Smoother, Snapshots, TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

    from thalweg.learn.likelihood.result import LikelihoodFit


_REJECTED = 1e-3
"""p-value below which the advice says that the model fails."""
Method = Literal["likelihood", "weak", "neural"]
Observation = Literal["independent", "overdispersed", "tracked"] | CountModel

SMALL_STATES = 300
"""States up to which the likelihood keeps all sensitivities; above, it is matrix-free."""

DENSE_STATES = 400
"""States up to which it may keep them if the matrix-free likelihood lacks a requested feature."""

FEW_STATES = 600
"""States up to which it keeps them where individuals are few: an average over priors then knows
what the data leave open, in 5 to 25 CPU seconds."""

SMALL_COVARIANCE = 1000
"""States up to which the covariance is kept with the model."""


@dataclass(frozen=True)
class Settings:
    """The settings of a fit: the estimator's parameters, resolved."""

    method: Method = "likelihood"
    observation: Observation = "independent"
    discretization: Literal["continuous", "frozen"] = "continuous"
    environment: Literal["mean-field", "empirical"] = "mean-field"
    mobility: Mobility = field(default_factory=LogMean)
    internal: InternalEnergy = field(default_factory=Entropy)
    beta: float | None = None
    potential: ArrayLike | None = None
    initial: ArrayLike | None = None
    features: ArrayLike | None = None
    interactions: Sequence[Any] = ()
    time_basis: TimeBasis | None = None
    growth: Growth | Literal["states"] | ArrayLike | None = None
    prior: float | Literal["evidence"] = "evidence"
    use_coordinates: bool = True
    smoother: Smoother | None = None
    quadrature: Quadrature = "trapezoid"
    weighting: Weighting = "metric"
    ridge: Ridge = "auto"
    epochs: int = 2
    device: str | None = None
    seed: int = 0
    max_seconds: float | None = None
    max_iterations: int | None = None
    progress: Progress | None = None
    refit: bool = False
    """Whether this is a refit of a bootstrap, which needs no errors of its own."""

    def __post_init__(self) -> None:
        _checks.whole(self.seed, "seed")
        _checks.whole(self.epochs, "epochs", 1)
        for name, kind in (("smoother", Smoother), ("time_basis", TimeBasis)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InputError(f"{name} is {value!r}; give a {kind.__name__}, or leave it out.")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A free energy, its initial distribution, and their uncertainty."""

    energy: FreeEnergy
    initial: Array
    times: Array
    status: Status
    potential_stderr: Array
    """NaN if the method gives none."""
    beta_stderr: float
    visits: Array
    """Number of individuals seen in each state, over all times."""
    potentials: Array
    """`(blocks, N)`: one row per function of the time basis."""
    joint_covariance: Array | None = None
    """Covariance of (centred potential, beta, log initial distribution), if known and small."""
    draws: Array | None = None
    """Otherwise draws of (centred potential, beta) from the posterior, one row each."""
    members: Mixture | None = None
    """Landscapes to average forecasts over, if the data do not single one out."""
    beta_verdict: BetaVerdict = field(default_factory=unassessed)
    """What the data say about beta."""
    scale: TimeScale = field(default_factory=TimeScale)
    """What the times mean."""
    still: bool = False
    """Whether the snapshots could all be samples of one distribution."""
    coefficients: Array | None = None
    """Weights of the features, if the potential is linear in them."""
    network: FeatureNetwork | None = None
    noise: CountModel = field(default_factory=Multinomial)
    """How the counts scatter around the flow."""
    growth: GrowthFound | None = None
    """Births and deaths beside transport, if requested."""
    summary: dict[str, float | int | str] = field(default_factory=dict)
    """Plain numbers about the fit, by name."""
    source: Any = None
    """The method's own result; not saved."""
    verdict: dict[str, Any] | None = None
    """Diagnostics that came with a saved model."""

    def predict_potential(self, features: ArrayLike) -> Array:
        """The potential of states with these features, on any graph."""
        if self.network is not None:
            return self.network.predict_potential(features)
        if self.coefficients is None:
            raise InputError(
                "the potential was not learned as a function of features; give features to the "
                "regressor before fitting."
            )
        table = feature_table(features)
        if table.shape[1] != self.coefficients.shape[1]:
            raise InputError(
                f"features have {table.shape[1]} columns, but {self.coefficients.shape[1]} were "
                "learned."
            )
        return np.asarray(table @ self.coefficients.mean(axis=0))

    def to_frame(self, kernel: MarkovKernel) -> pd.DataFrame:
        """One row per state: name, potential, its error, equilibrium, and visits."""
        return data_frame(
            {
                "state": np.arange(kernel.n_states),
                "name": list(kernel.labels),
                "potential": self.energy.potential,
                "stderr": self.potential_stderr,
                "equilibrium": self.energy.equilibrium(kernel),
                "visits": self.visits,
                "visited": self.visits > 0,
            }
        )


def fit_snapshots(kernel: MarkovKernel, snapshots: Snapshots, settings: Settings) -> Fitted:
    """Fit by the method and within the limits of the settings."""
    if settings.max_seconds is not None:
        _checks.positive(settings.max_seconds, "max_seconds")
    if settings.max_iterations is not None:
        _checks.positive(settings.max_iterations, "max_iterations")
    settings = replace(settings, progress=as_progress(settings.progress))
    with work_limit(settings.max_seconds, settings.max_iterations):
        return _fit_within(kernel, snapshots, settings)


def _fit_within(kernel: MarkovKernel, snapshots: Snapshots, settings: Settings) -> Fitted:
    check_match(kernel, snapshots)
    if settings.growth is not None and settings.method != "likelihood":
        raise InputError(
            f"method={settings.method!r} does not learn growth; use method='likelihood'."
        )
    if settings.method == "weak":
        from thalweg.learn.closed_form import weak_answer

        return weak_answer(kernel, snapshots, settings)
    if settings.method == "neural":
        return _neural(kernel, snapshots, settings)
    if settings.method != "likelihood":
        raise InputError(f"method is {settings.method!r}; choose 'likelihood', 'weak' or 'neural'.")
    if kernel.n_states <= small_states(snapshots, settings):
        return _likelihood(kernel, snapshots, settings)
    from thalweg.learn.many_states import many_states_answer

    return many_states_answer(kernel, snapshots, settings)


def small_states(snapshots: Snapshots, settings: Settings | None = None) -> int:
    """States up to which the likelihood of these snapshots keeps all sensitivities."""
    if settings is not None and beyond_plain(settings):
        return DENSE_STATES
    from thalweg.learn.few.choose import few_per_state

    return FEW_STATES if few_per_state(snapshots.counts) else SMALL_STATES


def check_match(kernel: MarkovKernel, snapshots: Snapshots) -> None:
    """Check that the snapshots have the kernel's states."""
    if not isinstance(snapshots, Snapshots):
        raise InputError(f"snapshots are a {type(snapshots).__name__}; give Snapshots.")
    if snapshots.n_states != kernel.n_states:
        raise InputError(
            f"the snapshots have {snapshots.n_states} states, but the kernel has "
            f"{kernel.n_states}; count over all the kernel's states, seen or not."
        )
    if kernel.names is not None and snapshots.names is not None and kernel.names != snapshots.names:
        k = next(i for i in range(kernel.n_states) if kernel.names[i] != snapshots.names[i])
        raise InputError(
            f"state {k} is {snapshots.names[k]!r} in the snapshots but {kernel.names[k]!r} in the "
            "kernel; count in the kernel's order, with Snapshots.from_frame(..., states=kernel)."
        )


def answer_of(snapshots: Snapshots, source: Any, **parts: Any) -> Fitted:
    """The answer around a method's own result: energy, status and possibly errors."""
    energy: FreeEnergy = source.energy
    usual = {
        "energy": energy,
        "times": snapshots.times,
        "status": source.status,
        "potential_stderr": getattr(source, "potential_stderr", np.full(energy.n_states, np.nan)),
        "beta_stderr": getattr(source, "beta_stderr", np.nan),
        "visits": np.asarray(snapshots.counts.sum(axis=0), dtype=np.float64).ravel(),
        "potentials": energy.potential[None],
        "source": source,
    }
    return Fitted(**(usual | parts))


def two_times(snapshots: Snapshots) -> None:
    if snapshots.n_times < 2:
        raise InputError(
            f"there is one snapshot, at time {snapshots.times[0]:g}; a flow shows only between "
            "two times or more: add snapshots."
        )


def probabilities(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Array:
    smoother = Dirichlet() if s.smoother is None else s.smoother
    p = smoother.smooth(kernel, snapshots)[0]
    if s.initial is not None:
        p[0] = _checks.as_probability(s.initial, kernel.n_states, "initial")
    return p


def _neural(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    two_times(snapshots)
    if s.potential is not None or len(s.interactions) or s.time_basis is not None:
        raise InputError(
            "method='neural' learns a fixed potential only; use method='weak' or 'likelihood' for "
            "known potentials, interactions and potentials varying in time."
        )
    p = probabilities(kernel, snapshots, s)
    network = None
    summary: dict[str, float | int | str]
    source: Any
    if s.features is not None:
        loss = WeakLoss(
            kernel, snapshots.times, p, beta=s.beta, quadrature=s.quadrature, mobility=s.mobility
        )
        source = fit_feature_network(
            loss, s.features, seed=s.seed, device=s.device, progress=s.progress
        )
        network, summary = source.network, {"loss": source.loss, "n_steps": source.n_steps}
    else:
        if s.beta is not None:
            raise InputError(
                "the paper's network learns beta itself; leave beta out, or give features."
            )
        source = fit_neural(
            kernel, snapshots.times, dense(snapshots.counts), p, seed=s.seed, mobility=s.mobility,
            training=Training(epochs=s.epochs, device=s.device), progress=s.progress,
        )  # fmt: skip
        summary = {"loss": float(source.losses[-1]), "n_steps": source.n_steps}
    return answer_of(snapshots, source, initial=p[0], network=network, summary=summary)


def _likelihood(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    from thalweg.learn.assess import assess, ordinary_verdict
    from thalweg.learn.few.choose import applies_to
    from thalweg.learn.likelihood.fit import fit_likelihood
    from thalweg.learn.likelihood.options import LikelihoodOptions

    two_times(snapshots)
    options = LikelihoodOptions(
        observation="tracked" if s.observation == "tracked" else "independent",
        noise=count_model(s.observation, snapshots),
        discretization=s.discretization,
        environment=s.environment,
        prior_strength=s.prior,
        beta=s.beta,
        potential=s.potential,
        initial=s.initial,
        features=s.features,
        time_basis=s.time_basis,
        interactions=s.interactions,
        mobility=s.mobility,
        internal=s.internal,
        growth=as_growth(s.growth),
    )
    # If an average over priors is available, a hard optimum is not worth the search.
    if applies_to(options.model(kernel, snapshots.times), options):
        options = replace(options, hurried=True)
    with reporting(s.progress, "likelihood"):
        fit = fit_likelihood(kernel, snapshots.times, dense(snapshots.counts), options=options)
    fitted = answer_of(
        snapshots,
        fit,
        initial=fit.initial,
        potentials=fit.potential_parts if s.time_basis is not None else fit.potential[None],
        joint_covariance=fit.joint_covariance,
        coefficients=fit.feature_weights if s.features is not None else None,
        summary={
            "log_likelihood": fit.log_likelihood,
            "deviance": fit.deviance,
            **degrees(fit),
            "n_iterations": fit.n_iterations,
            "n_intervals_fitted": fit.n_intervals or fit.times.size - 1,
            **fit.noise.summary(),
        },
        noise=fit.noise,
        growth=growth_of(fit) if fit.model.grows else None,
    )
    try:
        with reporting(s.progress, "error bars"):
            return assess(fitted, fit, seed=s.seed, progress=s.progress)
    except KeyboardInterrupt:
        return replace(fitted, status=Status.INTERRUPTED, beta_verdict=ordinary_verdict(fit))


def count_model(observation: Observation, snapshots: Snapshots) -> CountModel:
    """The model of counts: as requested, or by the replicates if there are some."""
    if isinstance(observation, CountModel):
        return observation
    if observation == "overdispersed":
        return Overdispersed()
    if observation == "independent" and snapshots.replicates is not None:
        return Replicated(snapshots.replicates)
    if observation not in ("independent", "tracked"):
        raise InputError(
            f"observation is {observation!r}; choose 'independent', 'overdispersed' or 'tracked', "
            "or give a CountModel."
        )
    return Multinomial()


def degrees(fit: LikelihoodFit) -> dict[str, float]:
    """Deviance per degree of freedom, if the deviance is a test."""
    value = fit.deviance_per_degree
    return {"deviance_per_degree": value} if np.isfinite(value) else {}


def beyond_plain(s: Settings) -> list[str]:
    """The options in use that go beyond independent snapshots of the plain model."""
    plain = {
        "potential": s.potential is None,
        "initial": s.initial is None,
        "features": s.features is None,
        "interactions": not len(s.interactions),
        "time_basis": s.time_basis is None,
        "growth": s.growth is None,
        f"observation={s.observation!r}": s.observation == "independent",
        "discretization='frozen'": s.discretization == "continuous",
        "mobility": isinstance(s.mobility, LogMean),
        "internal": isinstance(s.internal, Entropy),
    }
    return [name for name, absent in plain.items() if not absent]


def diagnose(kernel: MarkovKernel, fit: Fitted, *, seed: int) -> dict[str, Any]:
    """Diagnose a fit: how it ended, what the data leave open, whether its form is right.

    A likelihood fit of few states is tested against draws from itself, which takes a moment.
    """
    if fit.verdict is not None:
        return fit.verdict
    out: dict[str, Any] = {
        "status": fit.status.name,
        "advice": fit.status.value,
        "n_states": kernel.n_states,
        "n_times": int(fit.times.size),
        "n_samples": float(fit.visits.sum()),
        "never_visited": np.flatnonzero(fit.visits == 0).tolist(),
        **fit.summary,
        "beta_verdict": fit.beta_verdict.kind,
        "beta_lower": fit.beta_verdict.lower,
        "beta_upper": fit.beta_verdict.upper if np.isfinite(fit.beta_verdict.upper) else None,
        "beta_says": str(fit.beta_verdict),
        **({} if fit.growth is None else {"growth_says": str(fit.growth)}),
        "beta_undetermined": fit.beta_verdict.kind == "undetermined",
    }
    from thalweg.learn.fields.options import LargeFit
    from thalweg.learn.likelihood.result import LikelihoodFit

    p_value = float(fit.summary.get("p_value", 1.0))
    if not isinstance(fit.source, LikelihoodFit) and p_value < _REJECTED:
        other = "weak" if isinstance(fit.source, LargeFit) else "likelihood"
        out["advice"] += (
            f" But one landscape does not describe these snapshots ({p_text(p_value)}): its "
            f"potential may mean nothing; compare with method={other!r}."
        )
    if isinstance(fit.source, LikelihoodFit) and fit.status is not Status.INTERRUPTED:
        from thalweg.learn.diagnostics import goodness_of_fit, undetermined

        if fit.source.rejected:
            factor = fit.summary.get("errors_widened_by", 1.0)
            out["advice"] += (
                f" But the model does not describe these snapshots: their deviance is "
                f"{fit.source.deviance_per_degree:.3g} per degree of freedom, where 1 is expected. "
                f"Error bars are {factor:.3g} times as wide for it; another observation, "
                "environment or discretization may fit."
            )
        unknown = undetermined(fit.source)
        out["undetermined"] = [str(contrast) for contrast in unknown.contrasts]
        if fit.still:  # any frozen flow fits: there is nothing to test
            return out
        verdict = goodness_of_fit(fit.source, rng=np.random.default_rng(seed))
        out["expected_deviance"] = verdict.expected
        out["p_value"] = verdict.p_value
        out["goodness_of_fit"] = str(verdict)
    return out
