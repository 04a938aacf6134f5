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
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg_bench.accuracy_cases import Problem

__all__ = ["hellinger_limit"]

Array = NDArray[np.float64]


@single_threaded
def hellinger_limit(
    kernel: MarkovKernel, energy: FreeEnergy, p0: Array, times: Array, n: int, *, tracked: bool
) -> float:
    """The limit for `n` individuals per snapshot; NaN where the flow could not be differentiated.

    `tracked`: the same individuals at every time, moving by the rates of the flow (the information
    of the conditional means and covariances of the counts); otherwise independent snapshots. Both
    are differentiated along the continuous flow: the chain of frozen rates can be unstable where a
    state is nearly empty, and its derivatives then say nothing about its errors.
    """
    model = FlowModel(kernel, times)
    theta = np.concatenate(
        [energy.potential, [np.log(energy.beta)], np.log(p0 / kernel.stationary)]
    )
    mesh = Mesh(np.clip(np.ceil(np.diff(times) / 0.015), 1, 500).astype(np.int64))
    found = model.sensitivities(theta, mesh)
    if found is None:
        return float("nan")
    p = np.exp(found[0])
    problem = Problem(kernel, energy, model, theta, mesh, p)
    if not tracked:
        return float(np.sqrt(problem.limit(n)))
    return float(np.sqrt(problem.tracked_limit(n * p, frozen=False)))
