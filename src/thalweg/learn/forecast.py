"""Forecasts of a fitted model: its flow from any start, and bands from its covariance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import expm

from thalweg import _checks
from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import Trajectory, gradient_flow, jump_rates
from thalweg.kernel import MarkovKernel
from thalweg.learn.weak import TimeBasis
from thalweg.mobility import Mobility
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Forecast", "bands", "flow_of"]

Array = NDArray[np.float64]

_PIECES = 32
"""A potential that varies smoothly is held over this many pieces of each interval."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """Probabilities at times, with pointwise bands from the uncertainty of the fit."""

    times: Array
    probabilities: Array
    lower: Array
    upper: Array
    level: float
    status: Status

    def to_frame(self) -> pd.DataFrame:
        """One row per time and state: probability, lower, upper."""
        import pandas as pd

        times, n = self.times, self.probabilities.shape[1]
        return pd.DataFrame(
            {
                "time": np.repeat(times, n),
                "state": np.tile(np.arange(n), times.size),
                "probability": self.probabilities.ravel(),
                "lower": self.lower.ravel(),
                "upper": self.upper.ravel(),
            }
        )


@single_threaded
def flow_of(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    times: ArrayLike,
    *,
    mobility: Mobility,
    discretization: Literal["continuous", "frozen"] = "continuous",
    time_basis: TimeBasis | None = None,
    potentials: Array | None = None,
) -> Trajectory:
    """The flow from `p0` at `times[0]`; `"frozen"` holds the jump rates over each interval."""
    when = _checks.as_times(times)
    if time_basis is None and discretization == "continuous":
        return gradient_flow(kernel, energy, p0, when, mobility=mobility)
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    out, status, n_steps = [p], Status.CONVERGED, 0
    for start, end in zip(when[:-1], when[1:], strict=True):
        for left, right in _pieces(float(start), float(end), time_basis, discretization):
            here = energy
            if time_basis is not None and potentials is not None:
                v = time_basis(0.5 * (left + right)) @ potentials
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
    return Trajectory(when, np.array(out), status, n_steps=n_steps, method=discretization)


def _pieces(
    start: float, end: float, basis: TimeBasis | None, discretization: str
) -> list[tuple[float, float]]:
    if basis is None or discretization == "frozen":
        return [(start, end)]
    if basis.breaks is None:
        marks = np.linspace(start, end, _PIECES + 1)
    else:
        marks = np.array([start, *(b for b in basis.breaks if start < b < end), end])
    return [(float(a), float(b)) for a, b in zip(marks[:-1], marks[1:], strict=True)]


@single_threaded
def bands(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    initial: Array,
    covariance: Array | None,
    draws: Array | None,
    times: ArrayLike,
    *,
    p0: ArrayLike | None,
    mobility: Mobility,
    level: float,
    n_draws: int,
    rng: np.random.Generator,
) -> Forecast:
    """Quantiles of the flows of energies drawn from the fit's Gaussian approximation.

    `covariance` is that of (potential, beta, log initial distribution); beta is drawn on its
    logarithm. With `p0` given the start is certain. `draws` of (potential, beta) take its place
    where there is none, and then the start counts as certain too.
    """
    if covariance is None and draws is None:
        raise InputError(
            "this fit has no covariance to draw a band from; fit with method='likelihood', or call "
            "predict for the forecast alone."
        )
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}; it must lie strictly between 0 and 1.")
    n = kernel.n_states
    start = initial if p0 is None else _checks.as_probability(p0, n, "p0")
    best = gradient_flow(kernel, energy, start, times, mobility=mobility)
    paths = []
    for v, beta, begin in _draws(energy, initial, covariance, draws, n_draws, rng):
        drawn = FreeEnergy(v, beta, energy.interaction, energy.internal)
        begin = start if p0 is not None else begin
        path = gradient_flow(kernel, drawn, begin, times, mobility=mobility, rtol=1e-5)
        if path.status:
            paths.append(path.probabilities)
    if not paths:
        return Forecast(
            best.times, best.probabilities, best.probabilities, best.probabilities, level,
            Status.NOT_FINITE,
        )  # fmt: skip
    tail = 0.5 * (1 - level)
    lower, upper = np.quantile(np.array(paths), [tail, 1 - tail], axis=0)
    return Forecast(
        best.times,
        best.probabilities,
        np.minimum(lower, best.probabilities),
        np.maximum(upper, best.probabilities),
        level,
        best.status,
    )


def _draws(
    energy: FreeEnergy,
    initial: Array,
    covariance: Array | None,
    draws: Array | None,
    n_draws: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Array, float, Array]]:
    """Potential, beta and start, again and again."""
    n = initial.size
    if covariance is None:
        assert draws is not None
        for row in draws[:n_draws]:
            yield row[:n], float(row[n]), initial
        return
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    for _ in range(n_draws):
        z = root @ rng.standard_normal(values.size)
        beta = energy.beta
        if beta > 0:
            beta = float(beta * np.exp(np.clip(z[n] / beta, -5.0, 5.0)))
        logs = np.log(np.maximum(initial, 1e-300)) + z[n + 1 :]
        begin = np.exp(logs - logs.max())
        yield energy.potential + z[:n], beta, begin / begin.sum()
