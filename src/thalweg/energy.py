"""Free energies on the simplex: value, first variation, equilibrium.

`F(p) = sum_x V_x p_x + 1/2 sum_xy W_xy p_x p_y + beta sum_x pi_x U(rho_x)`, `rho = p / pi`.

The first variation is `f = V + W p + beta U'(rho)`, up to a constant without effect. For
the entropy `U(s) = s log s` that is `V + W p + beta log rho`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from thalweg import _checks
from thalweg._door import checked
from thalweg._sparse import as_sparse
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean, Mobility, PorousMediumMean, PowerHeatMean

__all__ = [
    "Entropy",
    "FreeEnergy",
    "InternalEnergy",
    "PowerEnergy",
    "centred",
    "edge_interaction",
]

_DENSE = 1000
"""Number of states up to which an equilibrium with an interaction is found with dense factors."""
Interaction: TypeAlias = Any
"""A symmetric matrix, dense or a scipy CSR array."""


class InternalEnergy(ABC):
    """A convex function `U` of the density, summed over the states with weight `pi`."""

    @abstractmethod
    def value(self, rho: Array) -> Array:
        """`U(rho)`, elementwise."""

    @abstractmethod
    def derivative(self, log_rho: Array) -> Array:
        """`U'(rho)` up to a constant, from `log rho`: finite also where `rho` underflows."""

    @abstractmethod
    def log_slope(self, log_rho: Array) -> Array:
        """`d U'(rho) / d log rho = rho U''(rho)`."""

    @abstractmethod
    def inverse(self, slope: Array) -> Array:
        """`log rho` with `U'(rho) = slope`; minus infinity if there is none."""

    @property
    @abstractmethod
    def heat_mobility(self) -> Mobility:
        """The mean for which the gradient flow of this energy is the linear heat flow."""


@dataclass(frozen=True)
class Entropy(InternalEnergy):
    """`U(s) = s log s`: the relative entropy with respect to `pi`."""

    def value(self, rho: Array) -> Array:
        return np.where(rho > 0, rho * np.log(np.where(rho > 0, rho, 1.0)), 0.0)

    def derivative(self, log_rho: Array) -> Array:
        return log_rho

    def log_slope(self, log_rho: Array) -> Array:
        return np.ones_like(log_rho)

    def inverse(self, slope: Array) -> Array:
        return slope

    @property
    def heat_mobility(self) -> Mobility:
        return LogMean()


def as_internal(internal: InternalEnergy | None) -> InternalEnergy:
    """The internal energy itself, or the entropy for None; anything else is rejected."""
    if internal is None:
        return Entropy()
    if not isinstance(internal, InternalEnergy):
        shown = internal.__name__ if isinstance(internal, type) else repr(internal)
        raise InputError(f"internal is {shown[:60]}; give Entropy() or PowerEnergy(q).")
    return internal


@dataclass(frozen=True)
class PowerEnergy(InternalEnergy):
    """`U(s) = s^q / (q - 1)`, of Renyi and Tsallis; the entropy in the limit `q = 1`.

    Its gradient flow is the heat flow under `heat_mobility`, and the porous-medium equation
    `rho' = (K - I) rho^q` under `porous_mobility`.
    """

    q: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.q) and self.q > 0 and self.q != 1):
            raise InputError(
                f"q is {self.q:g}; the order of a power energy must be positive and not 1 "
                "(use Entropy() for q = 1)."
            )

    def value(self, rho: Array) -> Array:
        return np.asarray(rho**self.q / (self.q - 1))

    def derivative(self, log_rho: Array) -> Array:
        # Shifted by q / (q - 1), so that the limit q -> 1 is log rho.
        return np.asarray(self.q * np.expm1((self.q - 1) * log_rho) / (self.q - 1))

    def log_slope(self, log_rho: Array) -> Array:
        return np.asarray(self.q * np.exp((self.q - 1) * log_rho))

    def inverse(self, slope: Array) -> Array:
        inside = (self.q - 1) / self.q * slope
        with np.errstate(divide="ignore"):
            return np.log1p(np.maximum(inside, -1.0)) / (self.q - 1)

    @property
    def heat_mobility(self) -> Mobility:
        return PowerHeatMean(self.q)

    @property
    def porous_mobility(self) -> Mobility:
        return PorousMediumMean(self.q)


@dataclass(frozen=True, eq=False)
class FreeEnergy:
    """`F = V + interaction + beta * internal`, a function of a kernel and a probability.

    Parameters
    ----------
    potential : array
        `V`, one number per state.
    beta : float
        Weight of the internal energy, zero or positive: the noise.
    interaction : array or sparse matrix, optional
        The symmetric matrix `W` of the term `1/2 p^T W p`.
    internal : InternalEnergy, optional
        `Entropy()` (the default) or `PowerEnergy(q)`.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> energy = FreeEnergy([0.0, 1.0], beta=0.5)
    >>> energy(kernel, [0.5, 0.5])
    0.5
    >>> energy.equilibrium(kernel).round(4)
    array([0.8808, 0.1192])
    """

    potential: Array
    beta: float
    interaction: Interaction | None = None
    internal: InternalEnergy = field(default_factory=Entropy)

    def __init__(
        self,
        potential: ArrayLike,
        beta: float,
        interaction: ArrayLike | sparse.sparray | None = None,
        internal: InternalEnergy | None = None,
    ) -> None:
        values = _checks.as_array(potential, "potential")
        if values.ndim != 1:
            raise InputError(f"potential has shape {values.shape}; give one number per state.")
        object.__setattr__(self, "potential", values)
        object.__setattr__(self, "beta", _checks.positive(beta, "beta", zero=True))
        if interaction is not None:
            interaction = as_interaction(interaction, values.size, "interaction")
        object.__setattr__(self, "interaction", interaction)
        object.__setattr__(self, "internal", as_internal(internal))

    @property
    def n_states(self) -> int:
        return int(self.potential.size)

    @checked
    def __call__(self, kernel: MarkovKernel, p: ArrayLike) -> float:
        """`F(p)`."""
        self._check(kernel)
        p = _checks.as_probability(p, kernel.n_states)
        value = self.potential @ p
        if self.interaction is not None:
            value += 0.5 * p @ (self.interaction @ p)
        if self.beta > 0:
            value += self.beta * kernel.stationary @ self.internal.value(p / kernel.stationary)
        return float(value)

    @checked
    def first_variation(self, kernel: MarkovKernel, p: ArrayLike) -> Array:
        """`f = V + W p + beta U'(rho)`, up to a constant; needs `p > 0` where `beta > 0`."""
        self._check(kernel)
        p = _checks.as_probability(p, kernel.n_states)
        if self.beta > 0 and p.min() <= 0:
            state = int(np.argmin(p))
            raise InputError(
                f"p is zero at state {state}, where the entropy has no derivative; smooth p, for "
                "instance with (p + 1e-6) / (p + 1e-6).sum()."
            )
        f = self.external(p)
        if self.beta > 0:
            f = f + self.beta * self.internal.derivative(np.log(p / kernel.stationary))
        return f

    def external(self, p: Array) -> Array:
        """`V + W p`: the part of the first variation without the internal energy."""
        if self.interaction is None:
            return self.potential
        return np.asarray(self.potential + self.interaction @ p)

    @checked
    def equilibrium(self, kernel: MarkovKernel, *, tolerance: float = 1e-13) -> Array:
        """The minimiser: `pi exp(-V / beta)` normalised, for the entropy without interaction.

        With an interaction, a critical point with less free energy than that, by Newton's method
        where `F` is convex; if `F` is convex everywhere, it is the minimiser. For `beta = 0`, all
        mass lies on the states of least potential, or moves from there by projected gradients if
        there is an interaction.
        """
        self._check(kernel)
        if self.beta == 0:
            lowest = np.isclose(self.potential, self.potential.min(), rtol=0, atol=1e-14)
            p = np.where(lowest, kernel.stationary, 0.0) / kernel.stationary[lowest].sum()
            return p if self.interaction is None else self._descend(p, tolerance)
        p = self._equilibrium_in(kernel, self.potential)
        if self.interaction is None:
            return p
        for _ in range(1000):
            target = self._equilibrium_in(kernel, self.external(p))
            if abs(target - p).max() < tolerance:
                return target
            # `F` falls towards the equilibrium of the present interaction held fixed.
            move, step = self._newton_step(kernel, p, target > 0), 1.0
            if move is None:
                move = target - p
            value = self(kernel, p)
            slack = 1e-14 * max(1.0, abs(value))
            while self(kernel, p + step * move) > value + slack and step > 1e-12:
                step *= 0.5
            p = p + step * move
        return p

    def _descend(self, p: Array, tolerance: float) -> Array:
        """A critical point without noise, of less energy than `p`, by projected gradients."""
        matrix: Any = self.interaction
        steepest = float(abs(matrix).sum(axis=1).max())
        for _ in range(10_000 if steepest > 0 else 0):
            f = self.external(p)
            q = p - (f - f.min()) / steepest
            # The nearest point of the simplex: what exceeds a level that leaves mass one.
            falling = np.sort(q)[::-1]
            levels = (np.cumsum(falling) - 1.0) / np.arange(1, q.size + 1)
            q = np.maximum(q - levels[np.flatnonzero(falling > levels)[-1]], 0.0)
            moved = abs(q - p).max()
            p = q
            if moved < tolerance:
                break
        return p

    def _newton_step(self, kernel: MarkovKernel, p: Array, held: NDArray[np.bool_]) -> Array | None:
        """Newton's step of the states `held`; `None` if `F` is not convex or a state empties."""
        if p.size > _DENSE or p[held].min() <= 0 or p[~held].any():
            return None
        log_rho = np.log(p[held] / kernel.stationary[held])
        matrix: Any = self.interaction  # Asked for only where there is one.
        hessian = np.asarray((matrix @ np.eye(p.size))[np.ix_(held, held)])
        hessian = hessian + np.diag(self.beta * self.internal.log_slope(log_rho) / p[held])
        hessian += abs(hessian).max()  # Mass is conserved: curvature along constants is free.
        f = self.external(p)[held] + self.beta * self.internal.derivative(log_rho)
        try:
            factor = cho_factor(hessian)
        except np.linalg.LinAlgError:
            return None
        change, ones = cho_solve(factor, np.stack([-f, np.ones(f.size)], axis=1)).T
        move = np.zeros(p.size)
        move[held] = change - ones * (change.sum() / ones.sum())
        return None if (p + move)[held].min() <= 0 else move

    def _equilibrium_in(self, kernel: MarkovKernel, external: Array) -> Array:
        """The `p` with `external + beta U'(rho)` constant and mass one: one scalar unknown."""
        pi = kernel.stationary
        scaled = -external / self.beta
        if isinstance(self.internal, Entropy):
            weights = pi * np.exp(scaled - scaled.max())
            return np.asarray(weights / weights.sum())
        from scipy.optimize import brentq

        def excess(level: float) -> float:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                rho = np.exp(self.internal.inverse(scaled + level))
            return float(np.nan_to_num(pi @ np.minimum(rho, 1e300), nan=1e300)) - 1.0

        low, high, width = -scaled.max(), -scaled.min(), 1.0
        while excess(low) > 0:
            low, width = low - width, 2 * width
        width = 1.0
        while excess(high) < 0:
            high, width = high + width, 2 * width
        level = brentq(excess, low, high, xtol=1e-15, rtol=1e-15)
        with np.errstate(divide="ignore"):
            p = pi * np.exp(self.internal.inverse(scaled + level))
        return np.asarray(p / p.sum())

    def _check(self, kernel: MarkovKernel) -> None:
        if not isinstance(kernel, MarkovKernel):
            raise InputError(f"kernel is a {type(kernel).__name__}; give a MarkovKernel.")
        if self.n_states != kernel.n_states:
            raise InputError(
                f"the potential has {self.n_states} entries, but the kernel has "
                f"{kernel.n_states} states: give one number per state."
            )


@checked
def centred(potential: ArrayLike, kernel: MarkovKernel) -> Array:
    """The potential minus its mean under `pi`: how potentials are compared and reported."""
    v = _checks.as_vector(potential, kernel.n_states, "potential")
    return np.asarray(v - kernel.stationary @ v)


@checked
def edge_interaction(
    kernel: MarkovKernel, function: Callable[[NDArray[np.int32], NDArray[np.int32]], ArrayLike]
) -> sparse.csr_array:
    """The interaction that couples neighbours only: `W_xy = function(x, y)` on the edges.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    function : callable
        Takes two arrays of states and returns one number per pair.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> edge_interaction(kernel, lambda x, y: x + y).toarray()
    array([[0., 1., 0.],
           [1., 0., 3.],
           [0., 3., 0.]])
    """
    source, target, _ = kernel.edges
    values = _checks.as_array(function(source, target), "the interaction")
    values = np.broadcast_to(values, source.shape)
    upper = sparse.coo_array(
        (values, (source, target)), shape=(kernel.n_states, kernel.n_states)
    ).tocsr()
    return sparse.csr_array(upper + upper.T)


def as_interaction(matrix: ArrayLike | sparse.sparray, n: int, name: str) -> Interaction:
    """`matrix` as a symmetric interaction of `n` states.

    >>> as_interaction([[0, 1], [0, 0]], 2, "interaction")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: interaction must be symmetric, but differs from its transpose by 1;
    use (W + W.T) / 2.
    """
    w = as_sparse(matrix, name) if sparse.issparse(matrix) else _checks.as_array(matrix, name)
    if w.shape != (n, n):
        raise InputError(f"{name} has shape {w.shape}; it must be ({n}, {n}).")
    gap = abs(w - w.T).max()
    if gap > 1e-10 * (1 + abs(w).max()):
        raise InputError(
            f"{name} must be symmetric, but differs from its transpose by {gap:.3g}; use "
            "(W + W.T) / 2."
        )
    return w
