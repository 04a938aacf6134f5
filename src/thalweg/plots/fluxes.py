"""Net movement along edges, for the arrows of pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.flow import Trajectory
from thalweg.flow.rates import net_fluxes as flow_fluxes
from thalweg.learn import FreeEnergyRegressor
from thalweg.mobility import as_mobility


def net_fluxes(model: FreeEnergyRegressor, path: Trajectory | None = None) -> NDArray[np.float64]:
    """The net flux along each edge, averaged over the times that were seen.

    `path`: the fitted flow over these times, computed here if absent.
    """
    kernel = model.kernel_
    mobility = as_mobility(model.mobility)
    if path is None:
        path = model.predict(None, np.linspace(model.times_[0], model.times_[-1], 9))
    gaps = np.diff(path.times)
    weights = 0.5 * (np.append(gaps, 0.0) + np.append(0.0, gaps)) / gaps.sum()
    total = np.zeros(kernel.n_edges)
    for weight, p in zip(weights, path.probabilities, strict=True):
        total += weight * flow_fluxes(kernel, model.energy_, p, mobility)
    return total
