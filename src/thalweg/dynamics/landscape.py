"""`Landscape`: a kernel, an energy and its uncertainty, on which this package works.

Every quantity here is a function of `(V, beta)`. Its standard error comes from the fit's posterior
by the delta method: with `directions` the rows `d` of a square root of the covariance,

    Var q = sum_d (dq . d)^2,

where `dq . d` is the exact derivative along `d`. On small graphs the rows are those of the matrix
root; on large ones they are posterior draws about their centre, divided by `sqrt(n_draws)`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from thalweg import _checks
from thalweg._optional import data_frame
from thalweg._types import Array, Index
from thalweg.energy import Entropy, FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.mobility import LogMean, Mobility
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


Scale = Literal["probability", "positive", "plain"]

_NEGLIGIBLE = 1e-12
"""Share of the largest eigenvalue of the covariance below which a direction is left out."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """A kernel with a free energy, and the uncertainty of `(V, beta)`.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> Landscape(kernel, FreeEnergy([0.0, 1.0, 0.0], beta=0.5)).equilibrium.round(3)
    array([0.44 , 0.119, 0.44 ])
    """

    kernel: MarkovKernel
    energy: FreeEnergy
    mobility: Mobility = field(default_factory=LogMean)
    directions: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """`(n, N + 1)`: rows whose outer products add up to the covariance of `(V, beta)`."""

    @property
    def has_errors(self) -> bool:
        return self.directions.size > 0

    @cached_property
    def equilibrium(self) -> Array:
        """The population at rest."""
        if not isinstance(self.energy.internal, Entropy):
            raise InputError(
                f"the internal energy is {self.energy.internal}; the walk of one individual is "
                "defined for the entropy: fit with internal=Entropy()."
            )
        if self.energy.beta == 0:
            raise InputError(
                "beta is 0: without noise an individual at rest stays where it is; ask for the "
                "rates along the flow, or give a positive beta."
            )
        p = self.energy.equilibrium(self.kernel)
        if p.min() < 1e-250:
            x = int(np.argmin(p))
            raise InputError(
                f"the population at rest has {p[x]:.3g} at state {x}, below what floating point "
                f"resolves (beta = {self.energy.beta:.3g}); remove the state, or fit a larger beta."
            )
        return p

    def moved(self, row: Array, step: float = 1.0) -> FreeEnergy:
        """The energy moved along a direction; `beta` moves on its logarithm."""
        beta, n = self.energy.beta, self.kernel.n_states
        if beta > 0:
            beta = float(beta * np.exp(step * row[n] / beta))
        return replace(self.energy, potential=self.energy.potential + step * row[:n], beta=beta)

    def log_density_tangents(self) -> Array:
        """Derivatives of the log density at rest along each direction, `(n, N)`."""
        energy, n = self.energy, self.kernel.n_states
        p, rows = self.equilibrium, self.directions
        if energy.interaction is not None:
            return differences(
                self, lambda other: np.log(other.equilibrium(self.kernel)), most=len(rows)
            )
        slopes = -rows[:, :n] / energy.beta
        slopes += np.outer(rows[:, n] / energy.beta**2, energy.potential)
        return np.asarray(slopes - (slopes @ p)[:, None])


@dataclass(frozen=True, eq=False)
class Estimate:
    """Numbers with standard errors and an interval.

    `stderr`, `lower` and `upper` are NaN if the fit has no covariance (see `as_landscape`).
    """

    value: Array
    stderr: Array
    lower: Array
    upper: Array
    level: float
    status: Status

    @property
    def undetermined(self) -> NDArray[np.bool_]:
        """Whether each interval is uninformative: over 0.9 wide, or over a factor of 100."""
        with np.errstate(invalid="ignore"):
            factor = self.upper > 100.0 * np.maximum(self.lower, 1e-300)
            return np.asarray((self.upper - self.lower > 0.9) & (factor | (self.value <= 1.0)))

    def to_frame(self, names: Iterable[Any] | None = None) -> pd.DataFrame:
        """One row per number: value, stderr, lower, upper."""
        flat = {
            key: np.atleast_1d(getattr(self, key)).ravel()
            for key in ("value", "stderr", "lower", "upper")
        }
        return data_frame(flat if names is None else {"name": list(names), **flat})


def estimate(
    value: Array, tangents: Array | None, *, scale: Scale, level: float, status: Status
) -> Estimate:
    """The interval of a quantity from its derivatives along the directions (first axis).

    Intervals are symmetric on the scale where the errors are: logits of probabilities, logarithms
    of times and rates.
    """
    level = _checks.share(level, "level")
    value = np.asarray(value, dtype=np.float64)
    if tangents is None:
        nothing = np.full_like(value, np.nan)
        return Estimate(value, nothing, nothing, nothing, level, status)
    error = np.sqrt(np.sum(tangents**2, axis=0))
    z = float(ndtri(0.5 + 0.5 * level))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if scale == "probability":
            inside = (value > 0) & (value < 1) & (error > 0)
            width = z * error / (value * (1.0 - value))
            lower = np.where(inside, expit(logit(value) - width), value)
            upper = np.where(inside, expit(logit(value) + width), value)
        elif scale == "positive":
            width = np.minimum(np.where(value > 0, z * error / value, 0.0), 600.0)
            lower, upper = value * np.exp(-width), value * np.exp(width)
        else:
            lower, upper = value - z * error, value + z * error
    return Estimate(value, error, lower, upper, level, status)


def as_landscape(model: FreeEnergyRegressor | Landscape) -> Landscape:
    """The landscape of a fitted regressor, with its posterior.

    There are error bars for the likelihood of a fixed potential; interactions that were learned
    have an uncertainty that the covariance leaves out, so such a fit has none here.
    """
    if isinstance(model, Landscape):
        return model
    if not isinstance(model, FreeEnergyRegressor):
        raise InputError(
            f"expected a fitted FreeEnergyRegressor or a Landscape, not {type(model).__name__}."
        )
    fit, n = model._fit, model.kernel_.n_states
    rows = np.zeros((0, n + 1))
    sized = not np.isinf(fit.potential_stderr).any()
    if sized and not len(model.interactions) and model.time_basis is None:
        if fit.joint_covariance is not None:
            rows = _root(fit.joint_covariance[: n + 1, : n + 1])
        elif fit.draws is not None and len(fit.draws) > 1:
            centre = np.append(fit.energy.potential, fit.energy.beta)
            rows = (fit.draws[:, : n + 1] - centre) / np.sqrt(len(fit.draws))
    return Landscape(model.kernel_, fit.energy, model._mobility, rows)


def _root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    keep = values > _NEGLIGIBLE * max(float(values[-1]), 1e-300)
    return np.asarray((vectors[:, keep] * np.sqrt(values[keep])).T)


def as_states(kernel: MarkovKernel, states: Any, name: str) -> Index:
    """States by number or by name, one or several, as sorted numbers.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]], names=["a", "b"])
    >>> as_states(kernel, "b", "targets"), as_states(kernel, [1, 0], "targets")
    (array([1]), array([0, 1]))
    """
    given = [states] if is_one(states) else list(states)
    if given and all(isinstance(s, (bool, np.bool_)) for s in given):
        if len(given) != kernel.n_states:
            raise InputError(
                f"{name} is a mask of {len(given)} entries for {kernel.n_states} states; give "
                "one entry per state, or the numbers of the states."
            )
        given = np.flatnonzero(given).tolist()
    if not given:
        raise InputError(f"{name} is empty; name at least one state.")
    names = kernel.names or ()
    place: dict[Hashable, int] = {str(label): x for x, label in enumerate(names)}
    place |= {label: x for x, label in enumerate(names)}
    out = []
    for state in given:
        if isinstance(state, Hashable) and state in place:
            out.append(place[state])
        elif _is_number(state) and 0 <= int(state) < kernel.n_states:
            out.append(int(state))
        else:
            known = ", ".join(map(str, names[:5])) or f"0 .. {kernel.n_states - 1}"
            known += ", ..." if len(names) > 5 else ""
            raise InputError(
                f"{name} has the state {state!r}, which is not in the graph ({known})."
            )
    return np.unique(np.array(out, dtype=np.int64))


def is_one(states: Any) -> bool:
    """Whether this names one state, and not several."""
    return isinstance(states, (str, bytes)) or not np.iterable(states)


def _is_number(state: Any) -> bool:
    return isinstance(state, (int, np.integer)) or (isinstance(state, str) and state.isdigit())


def differences(
    landscape: Landscape, function: Callable[[FreeEnergy], Array], *, most: int = 64
) -> Array:
    """Derivatives along the directions by central differences, if there is no short formula.

    At most `most` directions are differenced; if there are more, random combinations of them, whose
    squares add up to the variance in expectation.
    """
    rows = landscape.directions
    if len(rows) > most:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((most, len(rows))) @ rows / np.sqrt(most)
    size = float(np.abs(rows).max())
    step = min(1e-3 / max(size, 1e-12) * max(landscape.energy.beta, 1e-3), 0.05)
    out = []
    for row in rows:
        up, down = function(landscape.moved(row, step)), function(landscape.moved(row, -step))
        out.append((up - down) / (2 * step))
    return np.array(out)
