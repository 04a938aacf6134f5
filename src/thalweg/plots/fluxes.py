"""Net movement along edges, for the arrows of pictures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from thalweg.flow import Trajectory
from thalweg.flow.rates import net_fluxes
from thalweg.geometry import TransportGeometry
from thalweg.geometry.operators import transport_weights
from thalweg.learn import FreeEnergyRegressor
from thalweg.mobility import as_mobility


def mean_fluxes(model: FreeEnergyRegressor, path: Trajectory | None = None) -> NDArray[np.float64]:
    """The net flux along each edge, averaged over the observed times.

    `path`: the fitted flow over these times, computed here if absent.
    """
    kernel = model.kernel_
    mobility = as_mobility(model.mobility)
    if path is None:
        path = model.predict(None, np.linspace(model.times_[0], model.times_[-1], 9))
    gaps = np.diff(path.times)
    total = np.zeros(kernel.n_edges)
    if model.fitted_.members is None and model.time_basis is None:
        weights = 0.5 * (np.append(gaps, 0.0) + np.append(0.0, gaps))
        for weight, p in zip(weights, path.probabilities, strict=True):
            total += weight * net_fluxes(kernel, model.energy_, p, mobility)
        return total / gaps.sum()
    # The path of an average over landscapes does not follow the mean landscape, whose fluxes may
    # even point the other way; take those of the potential that moves each population to the next.
    geometry = TransportGeometry(kernel, mobility)
    source, target, _ = kernel.edges
    for p, q in pairwise(path.probabilities):
        middle = 0.5 * (p + q)
        psi = geometry.tangent(middle, q - p)
        total += transport_weights(kernel, middle, mobility) * (psi[target] - psi[source])
    return total / gaps.sum()
