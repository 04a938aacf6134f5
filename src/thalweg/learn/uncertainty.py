"""Uncertainty of a likelihood fit: the interval of beta, bands of a forecast, draws like the data.

At small `beta` its likelihood is skewed and bounded by zero, so its interval is that of the profile
likelihood, `{beta : 2 (max log L - max_{rest} log L(beta)) <= quantile}`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, norm

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.particles import simulate
from thalweg.learn.delta import band_around, deviation_along
from thalweg.learn.likelihood.model import FlowModel, Mesh, first_mesh
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.profile import walk_profile


class Interval(NamedTuple):
    """Lower and upper end (numbers, or one per state)."""

    lower: Array | float
    upper: Array | float


class Band(NamedTuple):
    """Probabilities at times, with pointwise bounds."""

    times: Array
    probabilities: Array
    lower: Array
    upper: Array


@single_threaded
def beta_interval(fit: LikelihoodFit, *, level: float = 0.95, method: str = "profile") -> Interval:
    """Interval of `beta`: from its profile likelihood, or (`"log"`) normal on the log scale.

    The lower end is 0 and the upper one infinite if the data do not exclude it.
    """
    if method not in ("profile", "log"):
        raise InputError(f"method is {method!r}; choose 'profile' or 'log'.")
    if not fit.model.learns_beta:
        return Interval(fit.beta, fit.beta)
    width = _quantile(level) * fit.log_beta_stderr
    if method == "log":
        return Interval(fit.beta * float(np.exp(-width)), fit.beta * float(np.exp(width)))
    drop = 0.5 * float(chi2.ppf(level, 1))
    return Interval(*walk_profile(fit, drop=drop).interval(drop))


@single_threaded
def forecast_band(
    fit: LikelihoodFit, times: ArrayLike, *, p0: ArrayLike | None = None, level: float = 0.95
) -> Band:
    """The flow of the fitted energy with pointwise bands in [0, 1], by the delta method.

    It starts from the fitted initial distribution at the first observed time, or from `p0`, which
    is then taken as known and at `times[0]`. Times before the first observed one are rejected.
    """
    grid = _checks.as_times(times)
    model = fit.model
    theta, covariance = fit.theta, fit.covariance
    if p0 is not None:
        known = _checks.as_probability(p0, model.n_states, "p0")
        known = np.maximum(known, 1e-12)
        keep = np.arange(model.n_energy)
        theta, covariance = theta[keep], covariance[np.ix_(keep, keep)]
        model = replace(model, fixed_initial=known / known.sum())
        first = grid[0]
    else:
        first = fit.times[0]
        if grid[0] < first:
            raise InputError(
                f"time {grid[0]:g} lies before the first snapshot ({first:g}); the flow has no "
                "past: ask for later times, or give p0."
            )
    shifted = np.concatenate([[first], grid[grid > first]])
    model = replace(model, times=shifted)
    mesh = _mesh_for(model, fit)
    if shifted.size == 1:
        path = next(
            iter(replace(model, times=np.array([first, first + 1.0])).trajectory(theta, mesh))
        )
        assert path is not None
        log_p, slopes = path.log_p, path.sensitivities
    else:
        result = model.sensitivities(theta, mesh)
        if result is None:
            raise InputError("the flow could not be computed at these times; ask for closer ones.")
        log_p, slopes = result
    if grid[0] > first:
        log_p, slopes = log_p[1:], slopes[1:]
    p = np.exp(log_p)
    deviation = deviation_along(slopes, covariance)
    lower, upper = band_around(p, deviation, float(fit.counts.sum()) / fit.times.size, level)
    return Band(grid, p, lower, upper)


def _mesh_for(model: FlowModel, fit: LikelihoodFit) -> Mesh:
    """A mesh at least as fine as the fit's."""
    mesh = first_mesh(model, fit.prior.scale)
    finest = float(np.median(np.diff(fit.times) / fit.mesh.substeps))
    needed = np.ceil(np.diff(model.times) / max(finest, 1e-12))
    substeps = np.clip(np.maximum(mesh.substeps, needed), 1, 4000)
    return Mesh(substeps.astype(np.int64), 3)


def draw_counts(fit: LikelihoodFit, rng: np.random.Generator) -> Array:
    """Counts drawn from the fit, at its times."""
    options = fit.settings
    if options.observation == "independent":
        return fit.noise.draw(fit.counts, fit.probabilities, rng)
    seen = simulate(
        fit.kernel,
        FreeEnergy(fit.potential, fit.beta, fit.energy.interaction, fit.energy.internal),
        fit.initial / fit.initial.sum(),
        fit.times,
        int(np.rint(fit.counts[0].sum())),
        rng=rng,
        method="frozen" if options.discretization == "frozen" else "tau-leap",
        rates=options.environment,
        mobility=options.mobility,
    )
    return np.asarray(seen.counts, dtype=np.float64)


def _quantile(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level:g}; it must lie between 0 and 1, for instance 0.95.")
    return float(norm.ppf(0.5 + 0.5 * level))
