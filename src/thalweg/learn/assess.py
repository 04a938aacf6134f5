"""From a likelihood fit to an answer: averaged if data are few, with a verdict on beta."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from thalweg._types import Array, Progress
from thalweg.learn.answer import Fitted, degrees
from thalweg.learn.few.choose import applies, is_few
from thalweg.learn.few.fit import FewFit, fit_few, open_above, reaching
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.limits import exhausted
from thalweg.learn.profile import Profile, walk_profile
from thalweg.learn.verdict import BetaVerdict, Kind, movement_p_value
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.learn.fields import LargeFit

_AT_REST = (
    "No movement was seen: the snapshots could all be samples of one distribution, and a "
    "population at rest shows neither beta nor the height of its landscape."
)
_TWO_TIMES = "Two snapshots can be joined at any beta; add a third time."
_UNFINISHED = "The search was stopped before it had converged: give it more time or iterations."
_STOPPED = (Status.TIME_LIMIT, Status.MAX_ITERATIONS)
_FEWER_DRAWS = 99
"""Number of drawn tables that test for movement on many states."""
_STILL = 0.05
"""P-value above which the snapshots could all be samples of one distribution."""
_HARDLY_MOVED = 0.01
"""The same where the counts do not bound beta from above either: by chance one in twenty
populations at rest has a p-value below `_STILL`, and its average misses the potential's size."""
_WIDE = 0.5
"""Standard error of `log beta` above which a normal interval gives no lower bound."""
_NORMAL = 1.96
_SURE = 0.05
"""Standard error of `log beta` up to which its interval is normal and no profile is computed."""
_DROP = 3.32
"""Fall of the log likelihood that excludes a beta if data are not plentiful.

Of 95 fits to 30 states, held out when it was chosen, 88 intervals held beta; a fall of 1.92, right
if parameters are few, held it in 0.73 to 0.86 of them.
"""


def assess(
    fitted: Fitted,
    fit: LikelihoodFit,
    *,
    seed: int,
    progress: Progress | None = None,
) -> Fitted:
    """The answer with what the data leave open: averaged if they are few, and a verdict on beta.

    Parameters
    ----------
    fitted : Fitted
        The ordinary answer.
    fit : LikelihoodFit
        The likelihood fit behind it.
    seed : int
        Seed of the draws that test whether anything moved.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    """
    if fit.status is Status.INTERRUPTED:  # half a fit is not assessed
        return replace(fitted, beta_verdict=ordinary_verdict(fit))
    fresh = fit.settings.observation == "independent"
    p_rest = _rest_p_value(fit, seed) if fresh else 0.0
    still = p_rest > _STILL
    verdict = ordinary_verdict(fit)
    status: Status = fit.status
    averaged = applies(fit) and (still or is_few(fit)) and not exhausted()
    if averaged:
        few = fit_few(fit, progress=progress)
        fitted, verdict, status = _averaged(fitted, few), few.verdict, few.status
        still = still or (not np.isfinite(verdict.upper) and p_rest > _HARDLY_MOVED)
    elif status in _STOPPED:
        fitted, verdict = _unfinished(fitted, verdict)
    elif status is Status.CONVERGED and applies(fit):
        fitted, verdict = _widened(fitted, fit), _of_profile(fit, _profile(fit))
    elif status in (Status.CONVERGED, Status.STALLED) and not still:
        fitted, verdict = _along_profile(fitted, fit)
    model = fit.model
    scaled = model.learns_beta and model.n_potential > 0 and model.fixed_potential is None
    if scaled and still:
        verdict = BetaVerdict("undetermined", reason=_AT_REST)
    elif scaled and model.features is None and fit.times.size == 2:
        verdict = BetaVerdict("undetermined", reason=_TWO_TIMES)
    if verdict.vacuous and (still or status is Status.CONVERGED):
        status = Status.UNDETERMINED
    if verdict.kind == "undetermined":
        fitted = replace(fitted, beta_stderr=np.inf)
    if scaled and verdict.vacuous and status not in _STOPPED and (still or not averaged):
        # An average still knows where a population at rest stays.
        fitted = _of_any_size(fitted, fitted.joint_covariance if averaged else None)
    fitted = replace(fitted, beta_verdict=verdict, status=status, still=still)
    last = fitted.source
    if not last.rejected or last.noise.absorbs_misfit:
        return fitted
    return _with_misfit(fitted, last.deviance_per_degree)


def _rest_p_value(fit: LikelihoodFit, seed: int) -> float:
    return movement_p_value(fit.noise.effective(fit.counts), rng=np.random.default_rng(seed))


def is_still(counts: Array, *, seed: int) -> bool:
    """Whether the counts of many states could all be samples of one distribution."""
    rng = np.random.default_rng(seed)
    return movement_p_value(counts, rng=rng, n_draws=_FEWER_DRAWS) > _STILL


def assess_many(fitted: Fitted, fit: LargeFit, *, still: bool) -> Fitted:
    """The same for many states: whether anything moved (`still`), whether the flow fits."""
    if fit.status is Status.INTERRUPTED:
        return fitted
    if still:
        if fitted.beta_verdict.kind != "given":
            verdict = BetaVerdict("undetermined", reason=_AT_REST)
            fitted = _of_any_size(replace(fitted, beta_verdict=verdict))
        return replace(fitted, status=Status.UNDETERMINED, still=True)
    found = fit.goodness
    per_degree = fit.deviance / found.expected
    summary = {
        **fitted.summary,
        "deviance_per_degree": per_degree,
        "expected_deviance": found.expected,
        "p_value": found.p_value,
        "goodness_of_fit": str(found),
    }
    fitted = replace(fitted, summary=summary)
    if fit.status in _STOPPED:
        fitted, verdict = _unfinished(fitted, fitted.beta_verdict)
        return replace(fitted, beta_verdict=verdict, beta_stderr=np.inf)
    vacuous = fitted.beta_verdict.vacuous
    if fit.rejected:
        fitted = _with_misfit(fitted, per_degree)
    return replace(_of_any_size(fitted), status=Status.UNDETERMINED) if vacuous else fitted


def ordinary_verdict(fit: LikelihoodFit) -> BetaVerdict:
    """The verdict from the standard error of `log beta` alone."""
    if not fit.model.learns_beta:
        return BetaVerdict("given", fit.beta, fit.beta)
    i, error = fit.model.beta_index, fit.log_beta_stderr
    if not np.isfinite(error) or error > 1.0 or fit.information[i, i] < 1.0:
        return BetaVerdict("undetermined")
    upper = fit.beta * float(np.exp(_NORMAL * error))
    if error > _WIDE:
        return BetaVerdict("undetermined", 0.0, upper)
    return BetaVerdict("determined", fit.beta * float(np.exp(-_NORMAL * error)), upper)


def _profile(fit: LikelihoodFit) -> Profile | None:
    """The profile of beta; `None` if a normal interval will do."""
    if not fit.model.learns_beta or fit.log_beta_stderr <= _SURE:
        return None
    return walk_profile(fit, drop=_DROP)


def _of_profile(fit: LikelihoodFit, profile: Profile | None) -> BetaVerdict:
    if profile is None:
        return ordinary_verdict(fit)
    lower, upper = profile.interval(_DROP)
    both = lower > 0.0 and np.isfinite(upper)
    return BetaVerdict("determined" if both else "undetermined", lower, upper)


def _hull(one: BetaVerdict, other: BetaVerdict) -> BetaVerdict:
    """The verdict that leaves open what either does."""
    lower, upper = min(one.lower, other.lower), max(one.upper, other.upper)
    kind: Kind = "determined" if lower > 0.0 and np.isfinite(upper) else "undetermined"
    return replace(one, kind=kind, lower=lower, upper=upper)


def _along_profile(fitted: Fitted, fit: LikelihoodFit) -> tuple[Fitted, BetaVerdict]:
    """The answer of a fit that is not averaged, its beta bounded by its profile.

    The profile is that under a weak prior. If it does not determine beta, the potential's errors
    reach the landscapes at the ends of the interval.
    """
    weak = fit if fit.unshrunk is None else fit.unshrunk
    profile = _profile(weak)
    verdict = _of_profile(weak, profile)
    if profile is not None and fit.settings.observation == "tracked":
        # Its increments are weighted as at the fit, so that far from there it may fall too low.
        normal = ordinary_verdict(weak)
        verdict = verdict if normal.vacuous else _hull(verdict, normal)
    open_ended = verdict.kind == "undetermined" and np.isfinite(verdict.upper)
    if profile is None or fitted.joint_covariance is None or not open_ended:
        return fitted, verdict
    k, n = fit.model.n_potential, fit.model.n_states
    covariance = fitted.joint_covariance.copy()
    for i in np.flatnonzero(profile.falls < _DROP)[[0, -1]]:
        away = fit._centring @ (profile.thetas[i, :k] - fit.theta[:k])
        covariance[:n, :n] += reaching(covariance[:n, :n], away, float(profile.falls[i]))
    return _with_covariance(fitted, covariance), verdict


def _of_any_size(fitted: Fitted, covariance: Array | None = None) -> Fitted:
    """The answer without error bars: beta sets the size of the potential, and any beta fits."""
    nothing = np.full_like(fitted.potential_stderr, np.inf)
    return replace(
        fitted, potential_stderr=nothing, beta_stderr=np.inf, draws=None,
        joint_covariance=covariance,
    )  # fmt: skip


def _unfinished(fitted: Fitted, verdict: BetaVerdict) -> tuple[Fitted, BetaVerdict]:
    """The answer without error bars, since a stopped search is not at an optimum."""
    if verdict.kind != "given":
        verdict = BetaVerdict("undetermined", reason=_UNFINISHED)
    nothing = np.full_like(fitted.potential_stderr, np.nan)
    return replace(fitted, potential_stderr=nothing, joint_covariance=None, draws=None), verdict


def _widened(fitted: Fitted, fit: LikelihoodFit) -> Fitted:
    """The answer with the error of a lower bound for states that empty between two snapshots."""
    rise, n = open_above(fit), fit.model.n_states
    if not rise.any() or fitted.joint_covariance is None:
        return fitted
    covariance = fitted.joint_covariance.copy()
    linear = np.eye(n) - fit.kernel.stationary
    covariance[:n, :n] += (linear * rise**2) @ linear.T
    return _with_covariance(fitted, covariance)


def _with_covariance(fitted: Fitted, covariance: Array) -> Fitted:
    """The answer with another joint covariance, and the potential's errors from it."""
    variances = np.diag(covariance)[: fitted.energy.n_states]
    stderr = np.sqrt(np.maximum(variances, 0.0))
    return replace(fitted, joint_covariance=covariance, potential_stderr=stderr)


def _with_misfit(fitted: Fitted, per_degree: float) -> Fitted:
    """The answer with errors that include the misfit, if the deviance rejects the flow.

    Residuals are then treated as scatter: variances grow by the deviance per degree of freedom, as
    in a quasi-likelihood.
    """
    factor = float(np.sqrt(max(per_degree, 1.0)))
    joint, draws = fitted.joint_covariance, fitted.draws
    if draws is not None:
        draws = np.column_stack(
            [
                fitted.energy.potential + factor * (draws[:, :-1] - fitted.energy.potential),
                fitted.energy.beta * (draws[:, -1] / fitted.energy.beta) ** factor,
            ]
        )
    return replace(
        fitted,
        potential_stderr=factor * fitted.potential_stderr,
        beta_stderr=factor * fitted.beta_stderr,
        joint_covariance=None if joint is None else factor**2 * joint,
        draws=draws,
        beta_verdict=fitted.beta_verdict.widened(fitted.energy.beta, factor),
        summary={**fitted.summary, "errors_widened_by": factor},
    )


def _averaged(fitted: Fitted, few: FewFit) -> Fitted:
    n = few.potential.size
    return replace(
        fitted,
        energy=few.energy,
        initial=few.initial,
        potential_stderr=few.potential_stderr,
        beta_stderr=float(np.sqrt(max(few.joint_covariance[n, n], 0.0))),
        potentials=few.potential[None],
        joint_covariance=few.joint_covariance,
        members=few.mixture,
        summary={
            "log_likelihood": few.best.log_likelihood,
            "deviance": few.best.deviance,
            **degrees(few.best),
            "n_iterations": few.best.n_iterations,
            "n_landscapes_averaged": few.n_cells,
            **few.best.noise.summary(),
        },
        source=few.best,
    )
