"""Net movement along edges, for the arrows of pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.edges.fluxes import edge_fluxes, internal_spec
from thalweg.learn import FreeEnergyRegressor
from thalweg.mobility import LogMean

__all__ = ["net_fluxes"]


def net_fluxes(model: FreeEnergyRegressor) -> NDArray[np.float64]:
    """The net flux along each edge, averaged over the times that were seen."""
    kernel = model.kernel_
    mobility = LogMean() if model.mobility is None else model.mobility
    moments = np.linspace(model.times_[0], model.times_[-1], 9)
    path = model.predict(None, moments)
    total = np.zeros(kernel.n_edges)
    for p in path.probabilities:
        total += edge_fluxes(
            *kernel.edges,
            p / kernel.stationary,
            model.energy_.external(p),
            model.energy_.beta,
            mobility.spec,
            internal_spec(model.energy_, mobility),
        )
    return total / moments.size
