"""From the weak form to an answer, with error bars where it is a regression of the counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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
from thalweg.learn.fields.scoring import scored
from thalweg.learn.verdict import BetaVerdict, Kind, unassessed
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.learn.weak.regression import (
    MOST_STATES,
    REJECTED,
    RegressionFit,
    fit_regression,
    with_beta_error,
    with_errors,
    without_errors,
)
from thalweg.mobility import LogMean
from thalweg.snapshots import Dirichlet, Snapshots
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

_PLAIN_STATES = 100
"""States up to which errors reach the plain weak form's answer; on many it is far off itself."""
_PSEUDO = 0.5
"""Individuals added to every state where the plain weak form is computed for comparison."""


def _pseudo_count(s: Settings) -> float | None:
    """The pseudo-count of the smoother, if the counts are independent samples."""
    smoother = Dirichlet() if s.smoother is None else s.smoother
    if s.observation != "independent" or not isinstance(smoother, Dirichlet):
        return None
    return smoother.alpha if smoother.base == "uniform" and smoother.alpha > 0 else None


def _regression_applies(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> bool:
    """Whether the weak form can be solved as a regression of the counts, which gives error bars."""
    lacking = [name for name in beyond_plain(s) if name != "mobility"]
    chosen = s.smoother is None and s.quadrature == "trapezoid" and s.weighting == "metric"
    plain = not lacking or (s.observation == "overdispersed" and len(lacking) == 1)
    small = 2 < kernel.n_states <= MOST_STATES and snapshots.n_times > 2
    return plain and chosen and s.ridge == "auto" and small and s.beta != 0.0


def _regression(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    """The weak form with error bars, a positive beta and a goodness of fit."""
    counts, times = dense(snapshots.counts), snapshots.times
    clumped = s.observation == "overdispersed"
    fit = _assessed(kernel, times, counts, s, clumped)
    assessed = not s.refit
    # Clumped counts: any excess of the residuals over their noise is attributed to clumping.
    factor = max(fit.chi_square / max(fit.freedom, 1.0), 1.0) if clumped else 1.0
    wider = float(np.sqrt(factor))
    summary: dict[str, float | int | str] = {"residual": fit.chi_square / max(fit.freedom, 1.0)}
    if clumped:
        summary["design_effect"] = factor
    elif assessed:
        summary |= {"deviance": fit.chi_square, "expected_deviance": fit.freedom}
        if not np.isnan(fit.p_value):  # a search that did not end tests nothing, unless it rejects
            summary["p_value"] = fit.p_value
    verdict = BetaVerdict("given", fit.beta, fit.beta)
    if s.beta is None and not assessed:
        verdict = unassessed()
    elif s.beta is None:
        reason = "" if np.isfinite(fit.beta_stderr) else _reason(fit)
        kind: Kind = "determined" if fit.beta_interval[0] > 0 else "undetermined"
        verdict = BetaVerdict(kind, *fit.beta_interval, reason).widened(fit.beta, wider)
    if not np.isfinite(fit.potential).all():
        raise InputError("the counts are too extreme for the weak form; use the likelihood.")
    stderr = np.full(kernel.n_states, np.nan)
    if assessed and fit.potential_stderr is not None:
        stderr = wider * fit.potential_stderr
    error = wider * fit.beta_stderr if verdict.determined else np.inf
    return answer_of(
        snapshots,
        fit,
        initial=fit.initial,
        potential_stderr=stderr,
        beta_stderr=error if assessed else np.nan,
        beta_verdict=verdict,
        summary=summary,
    )


def _reason(fit: RegressionFit) -> str:
    """Why a fit has no errors."""
    if not np.isnan(fit.p_value):
        return "The residuals of the weak form are not noise."
    return "Individuals are too few for the weak form; use method='likelihood'."


def _assessed(
    kernel: MarkovKernel, times: Array, counts: Array, s: Settings, clumped: bool
) -> RegressionFit:
    """The regression, scored on many states, with errors unless this is a refit."""
    fit = fit_regression(kernel, times, counts, mobility=s.mobility, beta=s.beta)
    rng = np.random.default_rng(s.seed)
    if isinstance(s.mobility, LogMean):
        better = scored(kernel, times, counts, fit, beta=s.beta, rng=rng, assessed=not s.refit)
        if better is not None:
            rejected = better.p_value < REJECTED and not clumped
            return without_errors(better, s.beta) if rejected else better
    if s.refit:
        return fit
    fit = with_errors(kernel, times, counts, fit, mobility=s.mobility, beta=s.beta, rng=rng)
    if fit.p_value < REJECTED and not clumped:
        return without_errors(fit, s.beta)
    if kernel.n_states > _PLAIN_STATES or fit.potential_stderr is None:
        return fit
    # Both weak forms are biased in ways of their own where individuals are few or states run empty,
    # and neither's draws show it: with 300 individuals on 8 states 1 of 12 intervals held a beta of
    # 0.05.
    plain = fit_weak(
        kernel,
        times,
        smoothed(counts, _PSEUDO),
        sizes=counts.sum(axis=1),
        pseudo_count=_PSEUDO,
        beta=s.beta,
        options=WeakOptions(mobility=s.mobility),
    )
    apart = np.hypot(fit.potential_stderr, plain.potential - fit.potential)
    fit = replace(fit, potential_stderr=apart)
    if s.beta is not None:
        return fit
    return with_beta_error(fit, float(np.hypot(fit.beta_stderr, plain.beta - fit.beta)))


def weak_answer(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    """The weak form: a regression of the counts if possible, otherwise that of `fit_weak`."""
    two_times(snapshots)
    if _regression_applies(kernel, snapshots, s):
        return _regression(kernel, snapshots, s)
    p = probabilities(kernel, snapshots, s)
    fit = fit_weak(
        kernel,
        snapshots.times,
        p,
        sizes=snapshots.sizes,
        pseudo_count=_pseudo_count(s),
        beta=s.beta,
        potential=s.potential,
        rng=np.random.default_rng(s.seed),
        options=WeakOptions(
            quadrature=s.quadrature,
            weighting=s.weighting,
            ridge=s.ridge,
            mobility=s.mobility,
            internal=s.internal,
            features=s.features,
            interactions=s.interactions,
            time_basis=s.time_basis,
        ),
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
