"""Few individuals on many states: whether other betas describe the snapshots as well.

The fit of many states finds beta from the curvature of its posterior. With a handful of individuals
per state that curvature can be sure of a wrong beta: on 1000 states with one individual each at
four times it gave 0.68 to 1.94 for 0.2. So the fit is repeated with beta given, far below and far
above what was found. A side on which the likelihood does not fall is open, and the potential's
error reaches to the landscape found there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from thalweg.learn.fields.options import LargeFit
from thalweg.learn.limits import exhausted
from thalweg.status import Status

__all__ = ["FAR", "ROUNDS", "try_ends"]

_FEW = 50.0
"""Individuals per state, over all snapshots, above which the curvature is trusted."""
FAR = 5.0
"""Factor between the betas that are tried and the one that was found."""
_WIDER = 2.0
"""Factor on the potential's errors where a side is open: its size then hangs on the prior, and on
1000 and 400 states with one individual each it was covered in 0.72 to 0.98 without the factor."""
_DROP = 3.32
"""Fall of the log likelihood that excludes a beta, as for few states."""
ROUNDS = 15
"""Rounds of a fit with beta given: only its likelihood is wanted."""


def try_ends(fit: LargeFit, refit: Callable[[float], LargeFit]) -> tuple[LargeFit, bool, bool]:
    """The fit with errors that reach open sides, and whether beta is open below and above.

    Parameters
    ----------
    fit : A finished fit whose beta was learned.
    refit : The same fit with this beta given.
    """
    few = fit.counts.sum() < _FEW * fit.kernel.n_states
    if not few or fit.status is not Status.CONVERGED or not len(fit.potential_samples):
        return fit, False, False
    sides, missing = [], np.zeros(fit.kernel.n_states)
    samples = fit.potential_samples
    rng = np.random.default_rng(0)
    for factor in (1.0 / FAR, FAR):
        other = None if exhausted() else refit(factor * fit.beta)
        is_open = other is None or other.log_likelihood > fit.log_likelihood - _DROP
        sides.append(is_open)
        if is_open and other is not None:
            away = 0.5 * (other.potential - fit.potential)  # an end is two standard errors away
            missing += away**2
            samples = samples + np.outer(rng.standard_normal(len(samples)), away)
    if any(sides):
        stderr = _WIDER * np.sqrt(fit.potential_stderr**2 + missing)
        samples = fit.potential + _WIDER * (samples - fit.potential)
        fit = replace(fit, potential_stderr=stderr, potential_samples=samples)
    return fit, sides[0], sides[1]
