"""Populations that multiply or die: what is known about growth before a fit, and learned by it.

    dp_x / dt = -(M(rho) f)_x + (g_x - <g>) p_x,    <g> = sum_x g_x p_x,

is how the shares of the states change if state `x` multiplies at the rate `g_x`; the total grows at
the rate `<g>`. Shares alone leave a constant in `g` open; totals determine it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh
from scipy.stats import chi2

from thalweg import _checks
from thalweg._types import Array
from thalweg._words import p_text
from thalweg.errors import InputError
from thalweg.learn.inputs import feature_table
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.learn.likelihood.result import LikelihoodFit


_SEPARABLE = 0.95
"""Correlation of the errors of growth and potential above which the data do not separate them."""


@dataclass(frozen=True, eq=False)
class Growth:
    """Births and deaths beside transport: per state, linear in features, or known.

    Parameters
    ----------
    features : array, optional
        The rate is linear in them, shape (N, n); by default there is one rate per state.
    rates : array, optional
        Known rates, one per state; nothing is then learned about growth.
    totals : array, optional
        The whole population at each time, if known.

    >>> Growth().columns(3).shape, Growth(rates=[0.1, 0.0, 0.0]).columns(3) is None
    ((3, 3), True)
    """

    features: ArrayLike | None = None
    rates: ArrayLike | None = None
    totals: ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.features is not None and self.rates is not None:
            raise InputError("growth has features and known rates; give one of them.")

    def known(self, n_states: int) -> Array | None:
        """The rates that need not be learned."""
        if self.rates is None:
            return None
        return _checks.as_vector(self.rates, n_states, "growth rates")

    def columns(self, n_states: int) -> Array | None:
        """Columns in which learned rates are linear; `None` if rates are known."""
        if self.rates is not None:
            return None
        if self.features is None:
            return np.eye(n_states)
        return feature_table(self.features, n_states, "growth features")

    def whole(self, n_times: int) -> Array | None:
        """The totals, checked."""
        if self.totals is None or self.rates is not None:
            return None
        totals = _checks.as_array(self.totals, "totals")
        if totals.shape != (n_times,) or totals.min() <= 0:
            raise InputError(
                f"totals must be one positive number per time, shape ({n_times},), not "
                f"{totals.tolist() if totals.size < 10 else totals.shape}."
            )
        return totals


def as_growth(value: Growth | Literal["states"] | ArrayLike | None) -> Growth | None:
    """The estimator's `growth` as a `Growth`, or `None`."""
    if value is None or isinstance(value, Growth):
        return value
    if isinstance(value, str):
        if value == "states":
            return Growth()
        raise InputError(f"growth is {value!r}; choose 'states', known rates, or a Growth.")
    return Growth(rates=value)


@dataclass(frozen=True, eq=False)
class GrowthFound:
    """Rates of growth, their errors, and whether they were needed.

    Parameters
    ----------
    rates : array
        One per state; if totals are unknown, their mean over the data is zero.
    stderr : array
        Standard errors of the rates; zero if they were given, infinite if the search did not
        converge.
    anchored : bool
        Whether totals determine the mean rate.
    determined : float
        Share of the learned directions that the data, not the prior, determine.
    confounded : float
        Largest correlation, over states, of the errors of rate and potential.
    gain : float
        Drop of the deviance by growth, against transport alone; NaN if growth was given or the
        search did not converge.
    p_value : float
        P-value of the hypothesis that nothing grows.
    """

    rates: Array
    stderr: Array
    anchored: bool
    determined: float
    confounded: float
    gain: float
    p_value: float

    def __str__(self) -> str:
        if not self.stderr.any():
            return "Rates of growth were given."
        if np.isnan(self.gain):
            return "The search did not converge: whether growth is needed is not known."
        text = f"Growth lowers the deviance by {self.gain:.1f} ({p_text(self.p_value)}): "
        text += "it is needed." if self.p_value < 0.05 else "transport alone would do."
        if self.confounded > _SEPARABLE:
            text += (
                f" Growth and potential are hard to separate (errors correlated by "
                f"{self.confounded:.2f}): read their sum, not either."
            )
        if self.determined < 0.5:
            text += f" The data determine only {100 * self.determined:.0f} % of the rates."
        if not self.anchored:
            text += " Rates are relative to the mean: totals would determine it."
        return text


def growth_of(fit: LikelihoodFit) -> GrowthFound:
    """The result of a fit about growth, compared with the same fit without it.

    The test is that under a weak prior, also where the rates were shrunk.
    """
    if fit.unshrunk is not None:
        test = growth_of(fit.unshrunk)
        shrunk = growth_of(replace(fit, unshrunk=None))
        return replace(test, rates=shrunk.rates, stderr=shrunk.stderr)
    model, n = fit.model, fit.model.n_states
    anchored = model.growth is not None or fit.totals is not None
    weight = fit.counts.sum(axis=0) / fit.counts.sum()
    centring = np.eye(n) if anchored else np.eye(n) - weight
    rates = centring @ model.rates(fit.theta)
    if model.growth_features is None:
        return GrowthFound(rates, np.zeros(n), anchored, 1.0, 0.0, np.nan, np.nan)
    linear = np.zeros((2 * n, model.n_parameters))
    linear[:n, model.growth_slice] = centring @ model.growth_features
    linear[n:, model.potential_slice] = fit._centring
    covariance = linear @ fit.covariance @ linear.T
    errors = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    across = np.diag(covariance[:n, n:]) / (errors[:n] * errors[n:])
    g = model.growth_slice
    held = eigvalsh(fit.covariance[g, g] / fit.noise.inflation, np.linalg.inv(fit.prior.base[g, g]))
    free = model.n_growth - (0 if anchored else int(_has_constant(model.growth_features)))
    used = np.clip(1.0 - held, 0.0, 1.0)
    share = float(np.clip(used.sum() / max(free, 1), 0.0, 1.0))
    assert fit.transport is not None
    gain = fit.noise.deviance(fit.counts, fit.transport) - fit.noise.deviance(
        fit.counts, fit.probabilities
    )
    # A direction that the data determine to a share `f` gains `f (2 - f)` times a chi-squared
    # variable where nothing grows: their sum has the moments of a multiple of one with fewer.
    weights = used * (2.0 - used)
    scale = float(weights @ weights / weights.sum()) if weights.any() else 1.0
    p_value = float(chi2.sf(max(gain, 0.0) / scale, max(weights.sum() / scale, 1e-3)))
    confounded = float(np.abs(across).max()) if model.n_potential else 0.0
    if fit.status is not Status.CONVERGED:
        # On time steps that are too coarse the deviance may be that of another flow.
        errors[:n], gain, p_value = np.inf, np.nan, np.nan
    return GrowthFound(rates, errors[:n], anchored, share, confounded, gain, p_value)


def _has_constant(features: Array) -> bool:
    """Whether some combination of the features is the same everywhere."""
    ones = np.ones(features.shape[0])
    left = ones - features @ np.linalg.lstsq(features, ones, rcond=None)[0]
    return bool(np.abs(left).max() < 1e-8)
