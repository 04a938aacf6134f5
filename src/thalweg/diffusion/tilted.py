"""Tilted diffusion: noise that descends `F = V + beta H` and ends in `pi exp(-V / beta)`.

Two forward processes have this free energy and this equilibrium; they differ in the metric.

*The flow in `W_K`* (`tilted_path`): `p_dot = -M(rho) (V + beta log rho)`. Its mobility depends on
the law itself, so it is not a Markov semigroup: an individual jumps at rates set by the whole
population (`tilted_rates`). With the flux written as

    J(x, y) = K(x, y) pi(x) [(beta + b) rho(x) - (beta - b) rho(y)],
    b = (V(x) - V(y)) m(rho(x), rho(y)) / (rho(x) + rho(y)),

the rates are `K (beta + b)` forth and `K (beta - b)` back while `|b| <= beta`, and one-sided
beyond. For `V = 0` they are `beta K`, the usual noise. The law of `x_t` given `x_0` solves the
linear Kolmogorov equation with these rates. On sequences, with an additive potential, a *product*
law stays a product and each position follows its own token flow, because the logarithmic mean is
homogeneous. A law that is not a product couples the positions, and then only enumeration is exact.

*The heat-bath chain* (`tilted_kernel`, `tilted_tokens`): a linear, reversible chain with the rates
`2 K(x, y) e(y) / (e(x) + e(y))`, `e = exp(-V / beta)`. It is the gradient flow of the *same* `F`
(up to the factor `beta`, `F` is the entropy relative to the equilibrium) in the metric of the
tilted kernel instead of `W_K`; and the flow in `W_K` turns into it at the equilibrium, where its
rates are exactly these. For an additive potential it factorises for every law: this is what scales.
`MarginalFlowTokens` is between the two: each position follows the exact `W_K` flow of its marginal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.integrate import solve_ivp

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.diffusion.reversal import EdgeRates, NoisingPath, law_change
from thalweg.diffusion.scores import quotient
from thalweg.diffusion.token_process import TableTokens, TokenProcess
from thalweg.diffusion.tokens import AbsorbingTokens, DenseTokens, RefreshTokens
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.rates import edge_generator
from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean
from thalweg.status import Status

# -------------------------------------------------------------------- the flow in W_K


def tilted_rates(kernel: MarkovKernel, energy: FreeEnergy, p: ArrayLike) -> sparse.csr_array:
    """The rates `Q` of one individual of the population `p` in the flow of `energy`: `p Q = p_dot`.

    Unlike `thalweg.jump_rates`, which only ever jumps down the first variation, these are the rates
    of noise: without a potential they are `beta (K - I)`, whatever `p` is.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> tilted_rates(kernel, FreeEnergy([0.0, 0.0], beta=1.0), [0.25, 0.75]).toarray()
    array([[-1.,  1.],
           [ 1., -1.]])
    """
    energy._check(kernel)
    p = _checks.as_probability(p, kernel.n_states)
    return edge_generator(kernel, *edge_rates(kernel, energy, p))


def edge_rates(kernel: MarkovKernel, energy: FreeEnergy, p: Array) -> EdgeRates:
    """The rates of `tilted_rates` along `kernel.edges`: source to target, target to source."""
    source, target, conductance = kernel.edges
    rho = p / kernel.stationary
    external = energy.external(p)
    forth, back = _split(rho[source], rho[target], external[source] - external[target], energy.beta)
    pi = kernel.stationary
    return conductance / pi[source] * forth, conductance / pi[target] * back


def _split(here: Array, there: Array, drop: Array, beta: float) -> EdgeRates:
    """`beta + b` and `beta - b`; beyond `|b| = beta` the whole flux goes one way."""
    total = here + there
    mean = LogMean()(here, there)
    b = drop * quotient(mean, total)
    surplus, deficit = np.maximum(b - beta, 0.0), np.maximum(-b - beta, 0.0)
    forth = np.maximum(beta + b, 0.0) + surplus * quotient(there, here)
    back = np.maximum(beta - b, 0.0) + deficit * quotient(here, there)
    return forth, back


@single_threaded
def tilted_path(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    total: float,
    *,
    rtol: float = 1e-11,
) -> NoisingPath:
    """The gradient flow of `energy` in `W_K` from `p0`, as a noising process.

    The law at any clock is read from the integrator's interpolation (seventh order); feed the path
    to `time_reversal`, which needs nothing else.
    """
    energy._check(kernel)
    p0 = _checks.as_probability(p0, kernel.n_states, "p0")
    total = _checks.positive(total, "total")

    def slope(_: float, law: Array) -> Array:
        law = np.maximum(law, 0.0)
        return law_change(kernel, law, edge_rates(kernel, energy, law))

    run = solve_ivp(
        slope, (0.0, total), p0, method="DOP853", rtol=rtol, atol=1e-3 * rtol, dense_output=True
    )
    if not run.success:
        Status.STEP_TOO_SMALL.check()

    def probability(clock: float) -> Array:
        p = np.maximum(run.sol(min(max(clock, 0.0), total)), 0.0)
        return np.asarray(p / p.sum())

    return NoisingPath(
        kernel, total, probability, lambda clock: edge_rates(kernel, energy, probability(clock))
    )


@single_threaded
def conditional_law(path: NoisingPath, state: int, clock: float, *, rtol: float = 1e-10) -> Array:
    """The law of `x_t` given `x_0 = state`: the linear equation with the rates of the path.

    Averaged over `state ~ p_0` it is the law of the path.
    """
    n = path.kernel.n_states
    if not 0 <= state < n:
        raise InputError(f"state is {state}; the kernel has the states 0 .. {n - 1}.")
    if not 0 < clock <= path.total * (1 + 1e-12):
        raise InputError(f"clock is {clock:g}; the path runs from 0 to {path.total:g}.")

    def slope(moment: float, law: Array) -> Array:
        return law_change(path.kernel, law, path.edge_rates(moment))

    start = np.zeros(n)
    start[state] = 1.0
    run = solve_ivp(slope, (0.0, clock), start, method="DOP853", rtol=rtol, atol=1e-3 * rtol)
    law = np.maximum(run.y[:, -1], 0.0)
    return np.asarray(law / law.sum())


# -------------------------------------------------------------------- the heat-bath chain


def tilted_kernel(kernel: MarkovKernel, potential: ArrayLike, beta: float = 1.0) -> MarkovKernel:
    """The heat-bath tilt: a reversible kernel with stationary distribution `pi exp(-V / beta)`.

    `K_V(x, y) = K(x, y) e(y) / (e(x) + e(y))`, `e = exp(-V / beta)`. Run it at twice the clock, so
    that `V = 0` is the kernel itself: its rates then are those of `tilted_rates` at equilibrium.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> tilted_kernel(kernel, [0.0, np.log(3)]).stationary.round(6)
    array([0.75, 0.25])
    """
    v = _checks.as_vector(potential, kernel.n_states, "potential") / _checks.positive(beta, "beta")
    source, target, conductance = kernel.edges
    v = v - v.min()
    weights = kernel.stationary * np.exp(-v)
    # c e_x e_y / (e_x + e_y), without underflow of the product.
    flow = conductance / (np.exp(v[source]) + np.exp(v[target]))
    n = kernel.n_states
    stay = weights - np.bincount(source, flow, n) - np.bincount(target, flow, n)
    upper = sparse.coo_array((flow, (source, target)), shape=(n, n))
    return MarkovKernel.from_weights(
        upper + upper.T + sparse.diags_array(np.maximum(stay, 0.0)), names=kernel.names
    )


def tilted_tokens(
    tokens: TokenProcess, potential: ArrayLike, beta: float = 1.0
) -> RefreshTokens | AbsorbingTokens | DenseTokens:
    """The token process tilted by a potential: one row for all positions, or one per position.

    The stationary distribution becomes `pi exp(-V / beta)`. A refresh stays a refresh and masking
    stays masking (the tokens that come back are tilted; a potential for the mask is rejected), both
    with their closed forms; any other chain gets its heat-bath tilt, `tilted_kernel` at twice the
    clock.

    >>> from thalweg.diffusion.tokens import uniform_tokens
    >>> tilted_tokens(uniform_tokens(2), [0.0, np.log(3)]).stationary.round(6)
    array([0.75, 0.25])
    """
    v = _checks.as_array(potential, "potential") / _checks.positive(beta, "beta")
    n = tokens.n_tokens - (1 if isinstance(tokens, AbsorbingTokens) else 0)
    if v.ndim not in (1, 2) or v.shape[-1] != n:
        raise InputError(
            f"potential has shape {v.shape}; give {n} numbers, one per "
            f"{'data token' if n < tokens.n_tokens else 'token'}, or one such row per position."
        )
    boltzmann = np.exp(-(v - v.min(axis=-1, keepdims=True)))
    if isinstance(tokens, RefreshTokens):
        base = tokens.base * boltzmann
        base = base / base.sum(axis=-1, keepdims=True)
        return RefreshTokens(base, rate=min(tokens.rate, 1 / (1 - float(base.min()))))
    if isinstance(tokens, AbsorbingTokens):
        returns = tokens.returns * boltzmann
        return AbsorbingTokens(returns / returns.sum(axis=-1, keepdims=True), tokens.backward)
    if not isinstance(tokens, DenseTokens):
        raise InputError(f"cannot tilt {type(tokens).__name__}; start from a token kernel.")
    rows = np.atleast_2d(v)
    count = max(rows.shape[0], len(tokens.kernels))
    kernels = tuple(
        tilted_kernel(tokens.kernels[i % len(tokens.kernels)], rows[i % rows.shape[0]])
        for i in range(count)
    )
    return DenseTokens(kernels, scale=2 * tokens.scale, base=tokens.base)


# -------------------------------------------------------------------- marginals in W_K


@dataclass(frozen=True, eq=False)
class MarginalFlowTokens(TableTokens):
    """Tokens that follow the `W_K` gradient flow of their own marginal: exact for product laws.

    The rates depend on time, through the marginals. For data that is not a product, every marginal
    still follows its own flow, and the process is still a product of chains, but it is not the flow
    of the joint law in `W_K`.

    Parameters
    ----------
    kernel : MarkovKernel
        The token kernel.
    potential : array
        `V_i`, shape `(length, n_tokens)`.
    marginals : array
        The law of the data at each position, shape `(length, n_tokens)`.
    total : float
        The largest token time that will be needed.
    beta : float
        The noise.
    """

    kernel: MarkovKernel
    potential: Array
    marginals: Array
    total: float
    beta: float = 1.0

    def __post_init__(self) -> None:
        n = self.kernel.n_states
        marginals = _checks.as_probabilities(self.marginals, n, "marginals")
        potential = _checks.as_array(self.potential, "potential")
        if potential.shape != marginals.shape:
            raise InputError(
                f"potential has shape {potential.shape} and marginals {marginals.shape}; give both "
                f"per position, (length, {n})."
            )
        _checks.positive(self.total, "total")
        _checks.positive(self.beta, "beta")
        object.__setattr__(self, "potential", potential)
        object.__setattr__(self, "marginals", marginals)

    @property
    def homogeneous(self) -> bool:
        return False

    @cached_property
    def stationary(self) -> Array:
        scaled = -self.potential / self.beta
        out = self.kernel.stationary * np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return np.asarray(out / out.sum(axis=1, keepdims=True))

    def _generators(self, marginals: Array) -> Array:
        """The rate matrix at each position, `(length, n, n)`, when the marginals are these."""
        source, target, conductance = self.kernel.edges
        pi, v = self.kernel.stationary, self.potential
        rho = marginals / pi
        drop = v[:, source] - v[:, target]
        forth, back = _split(rho[:, source], rho[:, target], drop, self.beta)
        out = np.zeros((*marginals.shape, marginals.shape[1]))
        out[:, source, target] = conductance / pi[source] * forth
        out[:, target, source] = conductance / pi[target] * back
        index = np.arange(marginals.shape[1])
        out[:, index, index] = -out.sum(axis=-1)
        return out

    def _flow(
        self, law: Callable[[float, Array], Array], start: float, stop: float, rtol: float
    ) -> Any:
        """The transition matrices from `start` on, with the rates at `law(time, matrices)`."""
        shape = (*self.marginals.shape, self.n_tokens)

        def slope(moment: float, flat: Array) -> Array:
            p = flat.reshape(shape)
            return np.asarray((p @ self._generators(law(moment, p))).ravel())

        identity = np.broadcast_to(np.eye(self.n_tokens), shape).ravel()
        run = solve_ivp(
            slope, (start, stop), identity, method="DOP853", rtol=rtol, atol=1e-4 * rtol,
            dense_output=True,
        )  # fmt: skip
        if not run.success:
            Status.STEP_TOO_SMALL.check()
        return run.sol

    @cached_property
    def _table(self) -> Any:
        """The transition matrices from time 0, as an interpolant."""

        def law(_: float, p: Array) -> Array:
            return np.maximum(np.einsum("ia,iay->iy", self.marginals, p), 0.0)

        return self._flow(law, 0.0, self.total, 1e-10)

    def transitions(self, time: Array) -> Array:
        """`P_(0, t)` for each time: `(batch, length, n_tokens, n_tokens)`."""
        moments = np.asarray(time, dtype=np.float64)
        if moments.size and moments.max() > self.total * (1 + 1e-9):
            raise InputError(
                f"the token time {moments.max():.6g} is beyond total = {self.total:g}; build the "
                "process with a larger total."
            )
        distinct, back = np.unique(moments, return_inverse=True)
        flat = np.maximum(self._table(np.clip(distinct, 0.0, self.total)).T, 0.0)
        out = flat.reshape((-1, *self.marginals.shape, self.n_tokens))
        out = out / out.sum(axis=-1, keepdims=True)
        return np.asarray(out[back])

    def law(self, time: Array) -> Array:
        """The marginals at each time: `(batch, length, n_tokens)`."""
        return np.einsum("ia,biay->biy", self.marginals, self.transitions(time))

    def _between(self, start: float, stop: float) -> Array:
        """`P_(start, stop)`, from the linear equation with the rates between."""
        if start == 0:
            return np.asarray(self.transitions(np.array([stop]))[0])
        flow = self._flow(lambda moment, _: self.law(np.array([moment]))[0], start, stop, 1e-8)
        p = np.maximum(flow(stop).reshape(*self.marginals.shape, self.n_tokens), 0.0)
        return np.asarray(p / p.sum(axis=-1, keepdims=True))

    def _moves(self, start: Array, stop: Array) -> Array:
        if not np.any(start):
            return self.transitions(stop)
        pairs, back = np.unique(np.column_stack([start, stop]), axis=0, return_inverse=True)
        return np.stack([self._between(float(a), float(b)) for a, b in pairs])[back.ravel()]

    def _generators_at(self, time: Array) -> Array:
        distinct, back = np.unique(np.asarray(time, dtype=np.float64), return_inverse=True)
        return np.stack([self._generators(law) for law in self.law(distinct)])[back]

    def fastest(self, time: float) -> Array:
        generators = self._generators(self.law(np.array([time]))[0])
        return np.asarray(-np.diagonal(generators, axis1=-2, axis2=-1).min(axis=-1))

    def token_kernel(self, position: int = 0) -> MarkovKernel:
        """The kernel whose metric the flow descends in; the rates also depend on the marginal."""
        return self.kernel
