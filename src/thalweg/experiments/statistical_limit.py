"""The Cramer-Rao limit of a forecast: how well any unbiased method can do from the snapshots.

With `C` the inverse of the Fisher information of the snapshots and `S` the derivatives of `log p`
in the energy's parameters, from a known start, no unbiased estimate has a time-averaged squared
Hellinger distance below `1/8 sum_x p_x (S C S^T)_xx`, averaged over the times. The limit given is
its root. Parameters are `V`, `log beta` and the initial distribution, which the snapshots have to
tell as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.experiments.accuracy_cases import Problem
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.frozen import FrozenObjective
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.tracked import TrackedObjective

__all__ = ["hellinger_limit"]

Array = NDArray[np.float64]


@single_threaded
def hellinger_limit(
    kernel: MarkovKernel, energy: FreeEnergy, p0: Array, times: Array, n: int, *, tracked: bool
) -> float:
    """The limit for `n` individuals a snapshot; NaN where the flow could not be differentiated.

    `tracked`: the same individuals at every time, moving by rates frozen over the intervals (the
    information of the conditional means and covariances of the counts); otherwise independent
    snapshots of the continuous flow.
    """
    model = FlowModel(kernel, times)
    theta = np.concatenate(
        [energy.potential, [np.log(energy.beta)], np.log(p0 / kernel.stationary)]
    )
    steps = np.clip(np.ceil(np.diff(times) / 0.015), 1, 500).astype(np.int64)
    if not tracked:
        mesh = Mesh(steps)
        p = model.probabilities(theta, mesh)
        if p is None:
            return float("nan")
        return float(np.sqrt(Problem(kernel, energy, model, theta, mesh, p).limit(n)))
    mesh = Mesh(np.minimum(steps, 8))
    chain = FrozenObjective(model, np.empty((times.size, 0))).trajectory(theta, mesh)
    if chain is None:
        return float("nan")
    p, slopes = chain
    weighted = TrackedObjective(model, n * p, frozen=True, empirical=False).reweighted(theta, mesh)
    found = None if weighted is None else weighted.evaluate(theta, mesh)
    if found is None:
        return float("nan")
    covariance = np.linalg.pinv(found.information, rcond=1e-12, hermitian=True)
    # Forecasts start from the true p0: only the energy's part of the error reaches them.
    known = slice(0, model.n_energy)
    by_energy = slopes[:, :, known] / p[:, :, None]
    flat = by_energy.reshape(-1, model.n_energy)
    variance = np.sum((flat @ covariance[known, known]) * flat, axis=1).reshape(p.shape)
    return float(np.sqrt(np.mean(np.sum(p * variance, axis=1)) / 8.0))
