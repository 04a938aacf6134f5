"""Few individuals on many states: whether other betas describe the snapshots as well.

The fit of many states finds beta from the curvature of its posterior. With a handful of individuals
per state that curvature can be sure of a wrong beta: on 1000 states with one individual each at
four times it gave 0.68 to 1.94 for 0.2. So the fit is repeated with beta given, far below and far
above what was found. A side on which the likelihood does not fall is open; where it falls, the
size of the fall bounds the interval from inside. The potential's error reaches to the landscape
found there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from thalweg.learn.few.choose import few_per_state
from thalweg.learn.fields.options import LargeFit
from thalweg.learn.limits import exhausted
from thalweg.status import Status

_FAR = 5.0
"""Factor between the betas that are tried and the one that was found."""
_WIDER = 2.0
"""Factor on the potential's errors where a side is open: its size then depends on the prior; on
1000 and 400 states with one individual each it was covered in 0.72 to 0.98 without the factor."""
_DROP = 3.32
"""Fall of the log likelihood that excludes a beta, as for few states."""
_BLUR = 0.02
"""Part of a fall, per determined coefficient, that may be that neither fit has ended exactly: each
ends where a Newton step would gain less than half of this."""
ROUNDS = 15
"""Rounds of a fit with beta given: only its likelihood is wanted."""


def try_ends(fit: LargeFit, refit: Callable[[float], LargeFit]) -> tuple[LargeFit, float, float]:
    """The fit with errors that reach other betas, and the betas between which it lies at least.

    Both are the fit's own beta where there are so many individuals that nothing was tried; 0 and
    infinity where a side is open. Between a beta that was tried and the fit's own, the root of the
    fall of the likelihood is taken to be linear in `log beta`, as a normal law has it.

    Parameters
    ----------
    fit : LargeFit
        A finished fit whose beta was learned.
    refit : callable
        Repeats the fit with a given beta.
    """
    few = few_per_state(fit.counts)
    if not few or fit.status is not Status.CONVERGED or not len(fit.potential_samples):
        return fit, fit.beta, fit.beta
    shares, missing = [], np.zeros(fit.kernel.n_states)
    samples = fit.potential_samples
    rng = np.random.default_rng(0)
    for factor in (1.0 / _FAR, _FAR):
        other = None if exhausted() else refit(factor * fit.beta)
        if other is None:
            shares.append(1.0)
            continue
        fall = fit.log_likelihood - other.log_likelihood - _BLUR * fit.determined
        shares.append(float(np.sqrt(_DROP / max(fall, _DROP))))
        # An end is two standard errors away.
        away = 0.5 * shares[-1] * (other.potential - fit.potential)
        missing += away**2
        samples = samples + np.outer(rng.standard_normal(len(samples)), away)
    is_open = [share == 1.0 for share in shares]
    wider = _WIDER if any(is_open) else 1.0
    fit = replace(
        fit,
        potential_stderr=wider * np.sqrt(fit.potential_stderr**2 + missing),
        potential_samples=fit.potential + wider * (samples - fit.potential),
    )
    below, above = (1.0 if any(is_open) else share for share in shares)
    return (
        fit,
        0.0 if is_open[0] else fit.beta / _FAR**below,
        np.inf if is_open[1] else fit.beta * _FAR**above,
    )
