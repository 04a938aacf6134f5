"""Net movement along edges, for the arrows of pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.edges.fluxes import edge_fluxes, internal_spec
from thalweg.flow import Trajectory
from thalweg.learn import FreeEnergyRegressor
from thalweg.mobility import LogMean

__all__ = ["net_fluxes"]


def net_fluxes(model: FreeEnergyRegressor, path: Trajectory | None = None) -> NDArray[np.float64]:
    """The net flux along each edge, averaged over the times that were seen.

    `path`: the fitted flow over these times, computed here if absent.
    """
    kernel = model.kernel_
    mobility = LogMean() if model.mobility is None else model.mobility
    if path is None:
        path = model.predict(None, np.linspace(model.times_[0], model.times_[-1], 9))
    gaps = np.diff(path.times)
    weights = 0.5 * (np.append(gaps, 0.0) + np.append(0.0, gaps)) / gaps.sum()
    total = np.zeros(kernel.n_edges)
    for weight, p in zip(weights, path.probabilities, strict=True):
        total += weight * edge_fluxes(
            *kernel.edges,
            p / kernel.stationary,
            model.energy_.external(p),
            model.energy_.beta,
            mobility.spec,
            internal_spec(model.energy_, mobility),
        )
    return total
