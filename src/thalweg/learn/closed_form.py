"""From the weak form to an answer, with error bars if it can be tested with modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import norm

from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import (
    Fitted,
    Settings,
    answer_of,
    beyond_plain,
    probabilities,
    two_times,
)
from thalweg.learn.verdict import BetaVerdict, Kind, unassessed
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.moments import MOST_STATES, MomentFit, fit_moments, with_errors
from thalweg.snapshots import Dirichlet, Snapshots
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

_REFIT_STATES = 100
"""States up to which errors are those of refits to drawn data."""
_LINEAR_SHARE = 0.5
"""Size of the errors of the linear equations relative to the true ones: on 16 smooth landscapes of
300 and 1000 states the root mean square of beta's deviations was 1.6 of them, of V's 1.0."""
_SLACK = 1.1
"""Residuals per degree of freedom that the integral along the snapshots may leave: at most 1.07 on
those landscapes, 1.28 and more on rough ones, whose beta came out five times too high."""
_REJECTED = 1e-2
"""p-value below which weak fits give no errors."""
_PSEUDO = 0.5
"""Individuals added to every state where the plain weak form is computed for comparison."""


def _pseudo_count(s: Settings) -> float | None:
    """The pseudo-count of the smoother, if the counts are independent samples."""
    smoother = Dirichlet() if s.smoother is None else s.smoother
    if s.observation != "independent" or not isinstance(smoother, Dirichlet):
        return None
    return smoother.alpha if smoother.base == "uniform" and smoother.alpha > 0 else None


def _moments_apply(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> bool:
    """Whether the weak form can be tested with modes, which gives it error bars."""
    lacking = [name for name in beyond_plain(s) if name != "mobility"]
    chosen = s.smoother is None and s.quadrature == "trapezoid" and s.weighting == "metric"
    plain = not lacking or (s.observation == "overdispersed" and len(lacking) == 1)
    small = 2 < kernel.n_states <= MOST_STATES and snapshots.n_times > 2
    return plain and chosen and s.ridge == "auto" and small and s.beta != 0.0


def _moments(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    """The weak form with error bars, a positive beta and a goodness of fit."""
    counts = dense(snapshots.counts)
    fit = fit_moments(kernel, snapshots.times, counts, mobility=s.mobility, beta=s.beta)
    drawn = kernel.n_states <= _REFIT_STATES
    assessed = not s.refit
    if assessed and drawn:
        fit = with_errors(
            kernel, snapshots.times, counts, fit, mobility=s.mobility, beta=s.beta,
            rng=np.random.default_rng(s.seed),
        )  # fmt: skip
        fit = _with_systematic_errors(kernel, snapshots.times, counts, fit, s)
    elif assessed:
        fit = _linear_errors(fit, s.observation == "overdispersed")
    # Clumped counts: any excess of the residuals over their noise is attributed to clumping.
    clumped = s.observation == "overdispersed"
    factor = max(fit.chi_square / max(fit.freedom, 1.0), 1.0) if clumped else 1.0
    error = float(np.sqrt(factor)) * fit.beta_stderr
    summary: dict[str, float | int | str] = {"residual": fit.chi_square / max(fit.freedom, 1.0)}
    if clumped:
        summary["design_effect"] = factor
    elif assessed:
        summary |= {"deviance": fit.chi_square, "expected_deviance": fit.freedom}
        # Beyond the refits only a rejection is sure: what the slack allows is no p-value.
        if drawn or fit.p_value < _REJECTED:
            summary["p_value"] = fit.p_value
    verdict = BetaVerdict("given", fit.beta, fit.beta)
    if s.beta is None and not assessed:
        verdict = unassessed()
    elif s.beta is None:
        lower, upper = fit.beta_raw - 1.96 * error, max(fit.beta_raw, 0.0) + 1.96 * error
        kind: Kind = "determined" if lower > 0 else "undetermined"
        reason = "" if np.isfinite(error) else "The residuals of the weak form are not noise."
        verdict = BetaVerdict(kind, max(lower, 0.0), upper, reason)
    if not np.isfinite(fit.potential).all():
        raise InputError("the counts are too extreme for the weak form; use the likelihood.")
    return answer_of(
        snapshots,
        fit,
        initial=fit.initial,
        potential_stderr=float(np.sqrt(factor)) * fit.potential_stderr
        if assessed
        else np.full(kernel.n_states, np.nan),
        beta_stderr=(error if verdict.determined else np.inf) if assessed else np.nan,
        beta_verdict=verdict,
        summary=summary,
    )


def _with_systematic_errors(
    kernel: MarkovKernel, times: Array, counts: Array, fit: MomentFit, s: Settings
) -> MomentFit:
    """The fit with errors that reach the plain weak form's answer; none if the flow is rejected.

    Both forms are biased in ways of their own where individuals are few or states run empty, and
    neither's draws show it: with 300 individuals on 8 states 1 of 12 intervals held a beta of 0.05.
    """
    if fit.p_value < _REJECTED and s.observation != "overdispersed":
        nothing = np.full_like(fit.potential, np.inf)
        unknown = np.inf if s.beta is None else 0.0
        return replace(fit, potential_stderr=nothing, beta_stderr=unknown)
    plain = fit_weak(
        kernel, times, smoothed(counts, _PSEUDO), sizes=counts.sum(axis=1), pseudo_count=_PSEUDO,
        mobility=s.mobility, beta=s.beta,
    )  # fmt: skip
    return replace(
        fit,
        potential_stderr=np.hypot(fit.potential_stderr, plain.potential - fit.potential),
        beta_stderr=float(np.hypot(fit.beta_stderr, plain.beta - fit.beta)),
    )


def _linear_errors(fit: MomentFit, clumped: bool) -> MomentFit:
    """The fit with errors of the linear equations, doubled; none if the residuals are not noise."""
    excess = fit.chi_square / max(fit.freedom, 1.0) / _SLACK - 1.0
    p_value = float(norm.sf(excess * np.sqrt(0.5 * max(fit.freedom, 1.0))))
    wider = 1.0 / _LINEAR_SHARE if p_value > _REJECTED or clumped else np.inf
    return replace(
        fit,
        potential_stderr=wider * fit.potential_stderr,
        beta_stderr=wider * fit.beta_stderr if fit.beta_stderr > 0 else 0.0,
        p_value=p_value,
    )


def weak_answer(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    """The weak form: tested with modes if possible, otherwise that of `fit_weak`."""
    two_times(snapshots)
    if _moments_apply(kernel, snapshots, s):
        return _moments(kernel, snapshots, s)
    p = probabilities(kernel, snapshots, s)
    fit = fit_weak(
        kernel,
        snapshots.times,
        p,
        sizes=snapshots.sizes,
        pseudo_count=_pseudo_count(s),
        quadrature=s.quadrature,
        weighting=s.weighting,
        ridge=s.ridge,
        mobility=s.mobility,
        internal=s.internal,
        beta=s.beta,
        potential=s.potential,
        features=s.features,
        interactions=s.interactions,
        time_basis=s.time_basis,
        rng=np.random.default_rng(s.seed),
    )
    verdict = unassessed()
    if fit.beta <= 0.0 and s.beta is None:
        # Noise near empty states can drive beta to zero, where no flow can be computed.
        floor = 1e-2 * max(float(np.ptp(fit.potential)), 1e-6)
        energy = replace(fit.energy, beta=floor)
        fit = replace(fit, energy=energy, status=fit.status and Status.UNDETERMINED)
        verdict = BetaVerdict("undetermined", reason="The weak form found no noise.")
    return answer_of(
        snapshots,
        fit,
        initial=p[0],
        beta_verdict=verdict,
        potentials=fit.potentials,
        coefficients=fit.coefficients,
        summary={"ridge": fit.ridge, "residual": fit.residual},
    )
