"""The answer where states are many: a fit without matrices, and what other priors and betas say."""

from __future__ import annotations

import numpy as np

from thalweg._sparse import dense
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import (
    DENSE_STATES,
    Fitted,
    Settings,
    answer_of,
    beyond_plain,
    two_times,
)
from thalweg.learn.assess import assess_many, is_still
from thalweg.learn.fields import LargeFit, fit_likelihood_large
from thalweg.learn.fields.ends import ROUNDS, try_ends
from thalweg.learn.fields.options import LargeOptions
from thalweg.learn.verdict import BetaVerdict, Kind, unassessed
from thalweg.snapshots import Snapshots
from thalweg.status import Status


def many_states_answer(kernel: MarkovKernel, snapshots: Snapshots, s: Settings) -> Fitted:
    """The answer of the matrix-free likelihood: independent snapshots of the plain model."""
    two_times(snapshots)
    asked = beyond_plain(s)
    if asked:
        other = "" if s.growth is not None else ", or use method='weak'"
        raise InputError(
            f"the likelihood of {kernel.n_states} states does not take {', '.join(asked)} (it does "
            f"up to {DENSE_STATES} states); leave that out, join states into groups{other}."
        )
    counts = dense(snapshots.counts)
    places = kernel.coordinates if s.use_coordinates else None

    def fit_with(beta: float | None, options: LargeOptions | None = None) -> LargeFit:
        return fit_likelihood_large(
            kernel,
            snapshots.times,
            counts,
            coordinates=places,
            beta=beta,
            options=options,
            progress=s.progress,
            rng=np.random.default_rng(s.seed),
        )

    fit = fit_with(s.beta)
    places = places if fit.in_space else None
    lower = upper = fit.beta
    still = fit.status is not Status.INTERRUPTED and is_still(fit.counts, seed=s.seed)
    if s.beta is None and not still:  # at rest any beta fits
        quick = LargeOptions(max_rounds=ROUNDS, fall_back=False)
        fit, lower, upper = try_ends(fit, lambda b: fit_with(b, quick))
    fitted = answer_of(
        snapshots,
        fit,
        initial=fit.initial,
        draws=np.column_stack([fit.potential_samples, fit.beta_samples]),
        beta_verdict=_verdict(fit, s.beta, lower, upper),
        summary={
            "log_likelihood": fit.log_likelihood,
            "deviance": fit.deviance,
            "n_iterations": fit.n_iterations,
            "determined": fit.determined,
        },
    )
    return assess_many(fitted, fit, still=still)


def _verdict(fit: LargeFit, known: float | None, lower: float, upper: float) -> BetaVerdict:
    """The verdict from the interval of beta, which holds `lower` and `upper` at least."""
    if known is not None:
        return BetaVerdict("given", fit.beta, fit.beta)
    low, high = fit.beta_interval
    if not np.isfinite(high):
        return unassessed()
    low, high = min(low, lower), max(high, upper)
    kind: Kind = "determined" if low > 0.0 and high < np.inf else "undetermined"
    verdict = BetaVerdict(kind, low, high)
    return verdict.widened(fit.beta, 1.0)  # a bound far beyond the estimate is none
