"""The Cramer-Rao limit of a forecast: how well any unbiased method can do from the snapshots.

With `C` the inverse of the Fisher information of the snapshots and `S` the derivatives of `log p`
in the energy's parameters, from a known start, no unbiased estimate has a time-averaged squared
Hellinger distance below `1/8 sum_x p_x (S C S^T)_xx`, averaged over the times. The limit given is
its root.

For one tracked population whose rates are frozen over each interval the information is
`sum_k dmu_k^T Sigma_k^-1 dmu_k`, with `mu_k = x_k P_k(p_k)` the mean of the next counts,
`Sigma_k = sum_x x_k(x) (diag P_x - P_x P_x^T)` their covariance and `x_k = n p_k`, and `S` are the
slopes of that same chain. In the mean-field reading `p_k` follows the parameters along the chain;
in the empirical reading it is the density that was seen, whatever the parameters.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.frozen import frozen_chain, frozen_intervals
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.snapshots import hellinger
from thalweg_bench.accuracy_cases import Problem

__all__ = ["Limit", "Reading", "chain_limit", "hellinger_limit"]

Array = NDArray[np.float64]
Reading = Literal["empirical", "mean-field"]

_FLOOR = 1e-3
"""Variance of a count that nothing reaches: keeps the covariances of empty states invertible."""
_CHAOTIC = 1e4
"""Slopes of `log p` beyond which the chain is not linear over a standard error of any parameter."""
_DRAWS = 60


class Limit(NamedTuple):
    """A root mean square error, and whether it stands on draws instead of slopes."""

    value: float
    chaotic: bool
    """The chain's slopes are so large that the linear limit means nothing; the value is the root
    mean square error of draws from the efficient normal law."""


@single_threaded
def hellinger_limit(
    kernel: MarkovKernel, energy: FreeEnergy, p0: Array, times: Array, n: int
) -> float:
    """The limit for independent snapshots of `n` individuals of the continuous flow.

    NaN where the flow could not be differentiated. The initial distribution is learned too.
    """
    model = FlowModel(kernel, times)
    theta = np.concatenate(
        [energy.potential, [np.log(energy.beta)], np.log(p0 / kernel.stationary)]
    )
    mesh = Mesh(np.clip(np.ceil(np.diff(times) / 0.015), 1, 500).astype(np.int64))
    found = model.sensitivities(theta, mesh)
    if found is None:
        return float("nan")
    problem = Problem(kernel, energy, model, theta, mesh, np.exp(found[0]))
    return float(np.sqrt(problem.limit(n)))


@single_threaded
def chain_limit(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: Array,
    times: Array,
    n: int,
    *,
    reading: Reading,
    known_start: bool = True,
) -> Limit:
    """The limit for one tracked population of `n` individuals whose rates are frozen.

    Parameters
    ----------
    kernel : The graph.
    energy : The true energy.
    p0 : The true initial distribution, from which forecasts start.
    times : When the population is seen, and when forecasts are scored.
    n : Individuals.
    reading : Whose density sets the rates: the infinite population's, or the one that was seen.
    known_start : Whether `p0` is known to the fit. The empirical reading does not ask.
    """
    learned = reading == "mean-field" and not known_start
    model = FlowModel(kernel, times, fixed_initial=None if learned else p0)
    theta = np.concatenate([energy.potential, [np.log(energy.beta)]])
    if learned:
        theta = np.concatenate([theta, np.log(p0 / kernel.stationary)])
    chain = frozen_chain(model, theta)
    if chain is None:
        return Limit(float("nan"), True)
    p = chain.probabilities
    if reading == "mean-field":
        moved = frozen_chain(model, theta, shares=p[:-1])
        assert moved is not None
        slopes = moved.moved_slopes
    else:
        still = np.zeros((times.size - 1, model.n_states, theta.size))
        u = np.log(p[:-1] / kernel.stationary)
        slopes = frozen_intervals(model, theta, u, still, (p[:-1], still))[1]
    weighted = n * p[:-1, :, None] * chain.matrices
    covariance = -chain.matrices.transpose(0, 2, 1) @ weighted
    np.einsum("kxx->kx", covariance)[:] += weighted.sum(axis=1) + _FLOOR
    information = np.einsum("kxi,kxj->ij", n * slopes, np.linalg.solve(covariance, n * slopes))
    if learned:
        first = chain.log_slopes[0]
        information += first.T @ (n * p[0][:, None] * first)
    root = _root_of_inverse(information)[: model.n_energy]
    along = chain.log_slopes[:, :, : model.n_energy]
    if float(np.abs(along[p > 1e-12]).max(initial=0.0)) < _CHAOTIC:
        variance = np.sum((along @ root) ** 2, axis=2)
        return Limit(float(np.sqrt(np.mean(np.sum(p * variance, axis=1)) / 8.0)), False)
    return Limit(_by_draws(FlowModel(kernel, times, fixed_initial=p0), theta, root, p), True)


def _root_of_inverse(information: Array) -> Array:
    """A matrix whose square is the pseudo-inverse, the constant of `V` left out."""
    scale = np.sqrt(np.maximum(np.diag(information), 1e-12))
    values, axes = np.linalg.eigh(information / np.outer(scale, scale))
    kept = values > 1e-11
    return np.asarray(axes[:, kept] / np.sqrt(values[kept]) / scale[:, None])


def _by_draws(model: FlowModel, theta: Array, root: Array, truth: Array) -> float:
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(_DRAWS):
        drawn = theta[: model.n_energy] + root @ rng.normal(size=root.shape[1])
        chain = frozen_chain(model, drawn, slopes=False)
        if chain is not None:
            squares.append(np.mean(hellinger(truth, chain.probabilities) ** 2))
    return float(np.sqrt(np.mean(squares))) if squares else float("nan")
