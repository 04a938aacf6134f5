"""The Cramer-Rao limit of a forecast: how well any unbiased method can do from the snapshots.

With `C` the inverse of the Fisher information of the snapshots and `S` the derivatives of `log p`
in the energy's parameters, from a known start, no unbiased estimate has a time-averaged squared
Hellinger distance below `1/8 sum_x p_x (S C S^T)_xx`, averaged over the times. The limit given is
its root.

For one tracked population whose rates are frozen over each interval the information is
`sum_k dmu_k^T Sigma_k^-1 dmu_k`, with `mu_k = x_k P_k(p_k)` the mean of the next counts,
`Sigma_k = sum_x x_k(x) (diag P_x - P_x P_x^T)` their covariance, and `S` are the slopes of that
same chain. In the mean-field reading `p_k` follows the parameters along the chain, `x_k = n p_k`;
in the empirical reading `x_k` are the counts seen and `p_k` is their density, whatever the
parameters.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.frozen import frozen_chain
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.snapshots import hellinger
from thalweg_bench.accuracy_cases import Problem

__all__ = ["Limit", "Reading", "chain_limit", "hellinger_limit"]

Reading = Literal["empirical", "mean-field"]

_FLOOR = 1e-3
"""Variance of a count that nothing reaches: keeps the covariances of empty states invertible."""
_STEEPEST = 1e8
"""Slope of `log p` beyond which a standard error, of that inverse size, is a fiction."""
_AGREES = 0.7
"""Linear theory and draws agree where they are within this factor."""
_NARROW = 0.5
"""Standard error of log beta up to which draws of it are normal without further checks."""
_DRAWS = 200
"""Draws from the efficient normal law: their root mean square has an error of 5 % or more."""
_FEWEST_DRAWS = 10
"""Of chains of more than 500 intervals, whose length makes up for it in time."""


class Limit(NamedTuple):
    """A root mean square error, and whether linear theory misses it."""

    value: float
    chaotic: bool
    """Nearly empty states make slopes above 1e8, or draws disagree with linear theory."""


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
    counts: Array | None = None,
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
    counts : In the empirical reading: the population that was seen, whose density sets the rates;
        `None` is the mean-field reading.
    known_start : Whether `p0` is known to the fit. The empirical reading does not ask.
    """
    learned = counts is None and not known_start
    model = FlowModel(kernel, times, fixed_initial=None if learned else p0)
    theta = np.concatenate([energy.potential, [np.log(energy.beta)]])
    if learned:
        theta = np.concatenate([theta, np.log(p0 / kernel.stationary)])
    chain = frozen_chain(model, theta)
    if chain is None:
        return Limit(float("nan"), True)
    p = chain.probabilities
    seen = n * p if counts is None else np.asarray(counts, dtype=np.float64)
    mesh = Mesh(np.ones(times.size - 1, dtype=np.int64))
    objective = TrackedObjective(model, seen, True, counts is not None, floor=_FLOOR)
    weighted = objective.reweighted(theta, mesh)
    found = None if weighted is None else weighted.evaluate(theta, mesh)
    if found is None:
        return Limit(float("nan"), True)
    root = _root_of_inverse(found.information)[: model.n_energy]
    along = chain.log_slopes[:, :, : model.n_energy] @ root
    linear = float(np.sqrt(np.mean(np.sum(p[:, :, None] * along**2, axis=(1, 2))) / 8.0))
    drawn = _by_draws(FlowModel(kernel, times, fixed_initial=p0), theta, root, p)
    steepest = float(np.abs(chain.log_slopes[:, :, : model.n_energy]).max())
    # Under empirical rates the snapshots do not depend on the forecast's chain, so that the
    # efficient estimate has the error of the draws, unless a normal law is too wide to draw from
    # (a beta near zero). In the other reading snapshots reject draws whose chain goes elsewhere.
    narrow = float(np.linalg.norm(root[model.n_energy - 1])) < _NARROW
    if counts is not None and narrow:
        return Limit(drawn, not _AGREES < drawn / linear < 1.0 / _AGREES)
    if steepest > _STEEPEST or drawn < _AGREES * linear:
        return Limit(drawn, True)
    return Limit(min(linear, drawn), False)


def _root_of_inverse(information: Array) -> Array:
    """A matrix whose square is the pseudo-inverse, the constant of `V` left out.

    The symmetric root of the scaled one: draws by it do not depend on the signs of eigenvectors.
    """
    scale = np.sqrt(np.maximum(np.diag(information), 1e-12))
    values, axes = np.linalg.eigh(information / np.outer(scale, scale))
    kept = values > 1e-11
    axes = axes[:, kept]
    return np.asarray((axes / np.sqrt(values[kept])) @ axes.T / scale[:, None])


def _by_draws(model: FlowModel, theta: Array, root: Array, truth: Array) -> float:
    """Root mean square of the errors of draws from the efficient normal law."""
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(max(_FEWEST_DRAWS, min(_DRAWS, _DRAWS * 100 // model.times.size))):
        drawn = theta[: model.n_energy] + root @ rng.normal(size=root.shape[1])
        chain = frozen_chain(model, drawn, slopes=False)
        if chain is not None:
            squares.append(np.mean(hellinger(truth, chain.probabilities) ** 2))
    return float(np.sqrt(np.mean(squares))) if squares else float("nan")
