"""Forecasts of a fitted model: its flow from any start, and bands from its covariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag, expm

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import Trajectory, gradient_flow, growth_flow, jump_rates
from thalweg.kernel import MarkovKernel
from thalweg.learn.delta import (
    band_around,
    deviation_along,
    deviation_from_covariance,
    deviation_from_draws,
)
from thalweg.learn.few.mixture import Mixture
from thalweg.learn.likelihood.model import FlowModel, Mesh, first_mesh
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import Mobility
from thalweg.snapshots.times import TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

    from thalweg.learn.answer import Fitted
    from thalweg.learn.likelihood.result import LikelihoodFit


_Answer = TypeVar("_Answer", "Forecast", Trajectory)

_PIECES = 32
"""Pieces of each interval over which a smoothly varying potential is held constant."""
_MEMBER_STEPS = 20_000
"""Steps after which one of many flows to be averaged is abandoned."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Forecast(Trajectory):
    """Probabilities at times, with pointwise bands from the uncertainty of the fit."""

    lower: Array
    upper: Array
    level: float

    def after_first(self) -> Forecast:
        """The same forecast without its first time."""
        rows = ("times", "probabilities", "lower", "upper")
        return replace(self, **{name: getattr(self, name)[1:] for name in rows})

    def __repr__(self) -> str:
        inside = super().__repr__().partition("(")[2].removesuffix(f"{self.status.name})")
        return f"Forecast({inside}{self.level:.0%} bands, {self.status.name})"

    def to_frame(self) -> pd.DataFrame:
        """One row per time and state (under its name): probability, lower, upper."""
        times, n = self.scale.column(self.times), self.n_states
        labels = np.arange(n) if self.names is None else np.array(self.names, dtype=object)
        return data_frame(
            {
                "time": np.repeat(times, n),
                "state": np.tile(labels, times.size),
                "probability": self.probabilities.ravel(),
                "lower": self.lower.ravel(),
                "upper": self.upper.ravel(),
            }
        )


class Start(NamedTuple):
    """Where a forecast starts; by default from the fitted distribution at the first snapshot."""

    p0: ArrayLike | None = None
    size: float | None = None
    """Number of individuals behind `p0`; by default it is exact."""


def in_scale(answer: _Answer, scale: TimeScale, shift: bool) -> _Answer:
    """The answer in the times of the data, without the first row that `from_start` added."""
    return replace(answer.after_first() if shift else answer, scale=scale)


def from_start(when: Array, first: float, p0: ArrayLike | None) -> tuple[Array, bool]:
    """Times from that of the start, and whether that time had to be added.

    The fitted start (`p0=None`) belongs to the data's first time, any other to `when[0]`.
    """
    if p0 is None and when[0] < first:
        raise InputError(
            f"times begin with {when[0]:g}, before the first snapshot at {first:g}; the flow runs "
            "forwards only: give p0."
        )
    early = p0 is None and bool(when[0] > first)
    return (np.insert(when, 0, first) if early else when), early


@single_threaded
def flow_of(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    times: ArrayLike,
    *,
    mobility: Mobility,
    discretization: Literal["continuous", "frozen"] = "continuous",
    varying: tuple[TimeBasis, Array] | None = None,
    rates: Array | None = None,
) -> Trajectory:
    """The flow from `p0` at `times[0]`; `"frozen"` holds the jump rates over each interval.

    `varying` holds a time basis and the potential of each of its functions. With `rates` of growth,
    the result is the shares of a population that also multiplies and dies.
    """
    when = _checks.as_times(times)
    if rates is not None:
        if varying is not None:
            raise InputError("growth beside a potential that varies in time cannot be predicted.")
        start = _checks.as_probability(p0, kernel.n_states, "p0")
        masses = growth_flow(kernel, energy, start, when, rates=rates, mobility=mobility)
        shares = masses / masses.sum(axis=1, keepdims=True)
        return Trajectory(
            when, shares, Status.CONVERGED, n_steps=0, method="growth", names=kernel.names
        )
    if varying is None and discretization == "continuous":
        return gradient_flow(kernel, energy, p0, when, mobility=mobility)
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    out, status, n_steps = [p], Status.CONVERGED, 0
    for start, end in zip(when[:-1], when[1:], strict=True):
        for left, right in _pieces(float(start), float(end), varying, discretization):
            here = energy
            if varying is not None:
                v = varying[0](0.5 * (left + right)) @ varying[1]
                here = FreeEnergy(v, energy.beta, energy.interaction, energy.internal)
            if discretization == "frozen":
                rates = jump_rates(kernel, here, p, mobility=mobility).toarray()
                p = np.maximum(p @ expm((right - left) * rates), 0.0)
                p = p / p.sum()
            else:
                step = gradient_flow(kernel, here, p, [left, right], mobility=mobility)
                p, n_steps = step.final, n_steps + step.n_steps
                status = status and step.status
        out.append(p)
    return Trajectory(
        when, np.array(out), status, n_steps, method=discretization, names=kernel.names
    )


@single_threaded
def mixed_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    members: Mixture,
    p0: ArrayLike | None,
    times: ArrayLike,
    *,
    mobility: Mobility,
) -> Trajectory:
    """The mean of the members' flows: from `p0`, or each from its own start.

    Members whose flow cannot be computed are left out; if none can, it is the flow of `energy`.
    """
    when = _checks.as_times(times)
    paths, weights = _member_paths(kernel, energy, members, p0, when, mobility)
    if not paths:
        start = members.weights @ members.initials if p0 is None else p0
        return gradient_flow(kernel, energy, start, when, mobility=mobility)
    mean = np.tensordot(weights, np.array([path.probabilities for path in paths]), 1)
    return Trajectory(
        when,
        mean,
        Status.CONVERGED,
        sum(path.n_steps for path in paths),
        sum(path.n_evaluations for path in paths),
        "average",
        kernel.names,
    )


def _member_paths(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    members: Mixture,
    p0: ArrayLike | None,
    times: Array,
    mobility: Mobility,
    done: Callable[[int], None] = lambda members: None,
) -> tuple[list[Trajectory], Array]:
    paths, weights = [], []
    for i in range(members.size):
        here = FreeEnergy(
            members.potentials[i], float(members.betas[i]), energy.interaction, energy.internal
        )
        start = members.initials[i] / members.initials[i].sum() if p0 is None else p0
        path = gradient_flow(
            kernel, here, start, times, mobility=mobility, rtol=1e-6, max_steps=_MEMBER_STEPS
        )
        if path.status:
            paths.append(path)
            weights.append(float(members.weights[i]))
        done(i + 1)
    w = np.array(weights)
    return paths, w / max(float(w.sum()), 1e-300)


def _pieces(
    start: float, end: float, varying: tuple[TimeBasis, Array] | None, discretization: str
) -> list[tuple[float, float]]:
    if varying is None or discretization == "frozen":
        return [(start, end)]
    breaks = varying[0].breaks
    if breaks is None:
        marks = np.linspace(start, end, _PIECES + 1)
    else:
        marks = np.array([start, *(b for b in breaks if start < b < end), end])
    return [(float(a), float(b)) for a, b in zip(marks[:-1], marks[1:], strict=True)]


@single_threaded
def band_of(source: Any, times: Array, begin: Start, level: float) -> Forecast:
    """The flow of a likelihood fit with bands from all its parameters, births included.

    It starts at `times[0]` from the fitted initial distribution, or from a given one, which is
    certain or a sample.
    """
    from thalweg.learn.likelihood.result import LikelihoodFit

    if not isinstance(source, LikelihoodFit):
        raise InputError(
            "a model file does not hold the covariance of growth; call predict for the forecast "
            "alone, or fit again for its band."
        )
    model, theta, covariance = source.model, source.theta, source.covariance
    size = float(source.counts.sum()) / source.times.size
    if begin.p0 is not None:
        least = 1e-12 if begin.size is None else 0.5 / begin.size
        known = np.maximum(_checks.as_probability(begin.p0, model.n_states, "p0"), least)
        known, keep = known / known.sum(), slice(model.n_energy)
        theta, covariance = theta[keep], covariance[keep, keep]
        if begin.size is None:
            model = replace(model, fixed_initial=known)
        else:
            model, size = replace(model, fixed_initial=None), min(size, begin.size)
            theta = np.append(theta, np.log(known / model.kernel.stationary))
            counting = np.diag(1.0 / (begin.size * known)) - 1.0 / begin.size
            covariance = block_diag(covariance, counting)
    # A flow needs an interval, also for its start alone.
    model = replace(model, times=times if times.size > 1 else times[0] + np.arange(2.0))
    found = model.sensitivities(theta, _mesh_for(model, source))
    if found is None:
        raise InputError("the flow could not be computed at these times; ask for closer ones.")
    log_p, slopes = (part[: times.size] for part in found)
    p, deviation = np.exp(log_p), deviation_along(slopes, covariance)
    lower, upper = band_around(p, deviation, size, level)
    return Forecast(
        times, p, Status.CONVERGED, names=model.kernel.names, lower=lower, upper=upper, level=level
    )


def _mesh_for(model: FlowModel, fit: LikelihoodFit) -> Mesh:
    """A mesh at least as fine as the fit's."""
    mesh = first_mesh(model, fit.prior.scale)
    finest = float(np.median(np.diff(fit.times) / fit.mesh.substeps))
    needed = np.ceil(np.diff(model.times) / max(finest, 1e-12))
    substeps = np.clip(np.maximum(mesh.substeps, needed), 1, 4000)
    return Mesh(substeps.astype(np.int64), 3)


def _draws(energy: FreeEnergy, covariance: Array, count: int) -> Array:
    """Draws of (potential, beta), lognormal in beta, from the covariance of the fit."""
    n = energy.potential.size
    values, vectors = np.linalg.eigh(covariance[: n + 1, : n + 1])
    noise = np.random.default_rng(0).standard_normal((count, n + 1))
    moved = noise * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    beta = energy.beta * np.exp(np.clip(moved[:, n] / max(energy.beta, 1e-300), -20.0, 20.0))
    return np.column_stack([energy.potential + moved[:, :n], beta])


def _between(members: Mixture) -> Array:
    """Covariance of (potential, beta, log initial distribution) between the members."""
    initials = np.log(np.maximum(members.initials, 1e-300))
    points = np.column_stack([members.potentials, members.betas, initials])
    apart = points - members.weights @ points
    return np.asarray((members.weights[:, None] * apart).T @ apart)


def _logarithm(p: Array) -> Array:
    return np.log(np.maximum(p, 1e-300))


def _arcsine(p: Array) -> Array:
    return np.arcsin(np.sqrt(np.clip(p, 0.0, 1.0)))


@single_threaded
def bands(
    kernel: MarkovKernel,
    fit: Fitted,
    times: ArrayLike,
    *,
    begin: Start,
    mobility: Mobility,
    level: float,
    n_draws: int = 32,
    progress: Progress | None = None,
) -> Forecast:
    """The flow with pointwise bands in [0, 1], by the delta method (see `thalweg.learn.delta`).

    The errors are the fit's covariance of (potential, beta, log initial distribution). A given
    start is certain, or a sample. Without a covariance, at most
    `n_draws` draws of (potential, beta) replace it, and the start is certain unless it is such a
    sample. If the fit averages over landscapes, the flow is their mean, and their spread is taken
    from their flows, which are too nonlinear for the delta method.
    """
    p0 = begin.p0
    energy, covariance, draws, members = fit.energy, fit.joint_covariance, fit.draws, fit.members
    size = float(fit.visits.sum()) / fit.times.size
    if covariance is None and draws is None:
        raise InputError(
            "this fit has no covariance to draw a band from; fit with method='likelihood', let the "
            "search end, and give beta if the data leave it open, or call predict for the forecast "
            "alone."
        )
    start = fit.initial if p0 is None else _checks.as_probability(p0, kernel.n_states, "p0")
    best = gradient_flow(kernel, energy, start, times, mobility=mobility, rtol=1e-6)
    n = kernel.n_states
    sample = None if p0 is None else begin.size
    if sample is not None:
        start = np.maximum(start, 1e-300)
        size = min(size, sample)
        if covariance is not None:
            covariance = covariance.copy()
            covariance[n + 1 :] = covariance[:, n + 1 :] = 0.0
            covariance[n + 1 :, n + 1 :] = np.diag(1.0 / (sample * start)) - 1.0 / sample
    if covariance is not None and members is not None:
        covariance = covariance - _between(members)
    known = p0 is not None and sample is None
    last = 0 if members is None else members.size

    def report(total: int, before: int = 0) -> Callable[[int], None]:
        """What to call as `done(steps)`: the members' flows are the last steps."""
        if progress is None:
            return lambda done: None
        return lambda done: progress("bands", before + done, total + last)

    deviation: Array | None
    if best.times.size < 2:
        spread = np.zeros(n)
        if covariance is not None and not known:
            spread = np.diag(covariance)[n + 1 :]
        elif sample is not None:
            spread = (1.0 / start - 1.0) / sample
        deviation = np.sqrt(np.maximum(spread, 0.0))[None]
    elif covariance is not None:
        deviation = deviation_from_covariance(
            kernel, energy, start, covariance, best.times, known_start=known, mobility=mobility,
            done=report(best.times.size),
        )  # fmt: skip
    else:
        deviation = None
    if deviation is None:
        if draws is None:  # The flow with all its sensitivities was too hard: a few along draws.
            assert covariance is not None
            draws = _draws(energy, covariance, n_draws)
        deviation = deviation_from_draws(
            kernel, energy, start, draws[:n_draws], best, mobility=mobility, start_size=sample,
            done=report(min(n_draws, len(draws))),
        )  # fmt: skip
    if deviation is None:
        nothing = np.full_like(best.probabilities, np.nan)
        return Forecast(
            best.times, best.probabilities, Status.NOT_FINITE, names=kernel.names,
            lower=nothing, upper=nothing, level=level,
        )  # fmt: skip
    p, apart = best.probabilities, None
    if members is not None:
        paths, weights = _member_paths(
            kernel,
            energy,
            members,
            p0,
            best.times,
            mobility,
            report(best.times.size, best.times.size),
        )
        if paths:
            each = np.array([path.probabilities for path in paths])
            p = np.tensordot(weights, each, 1)
            logs, angles = (
                np.sqrt(np.tensordot(weights, (scale(each) - scale(p)) ** 2, 1))
                for scale in (_logarithm, _arcsine)
            )
            apart = (logs, angles)
    lower, upper = band_around(p, deviation, size, level, apart)
    if p0 is not None and np.isinf(fit.potential_stderr).any():
        lower[1:], upper[1:] = 0.0, 1.0  # the data do not say how fast another population moves
    return Forecast(
        best.times, p, best.status, names=kernel.names, lower=lower, upper=upper, level=level
    )
