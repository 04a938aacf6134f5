"""Between a potential on R^d and a free energy on a graph of points.

A step of the walk of `MarkovKernel.from_points` has mean square length `d s^2` and takes unit time,
so that `beta (K - I)` on the graph is diffusion with `beta s^2 / 2` in space: energies on the graph
are those in space times `2 / s^2`. The free energy of a graph is relative to `pi`, that in space to
volume: `V_graph = (2 / s^2) (V + beta log(pi / volume))`, with `volume` the share of space of a
state, from the distance to its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.spatial import cKDTree

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

_NEIGHBORS = 8
"""Nearest states from which the gradient at a state, and its share of space, are computed."""


def graph_energy(kernel: MarkovKernel, potential: Array, beta: float) -> FreeEnergy:
    """The free energy on the graph of a potential given at its states."""
    clock, volume = _clock(kernel), _volumes(kernel)
    v = clock * (potential + beta * np.log(kernel.stationary / volume))
    return FreeEnergy(v - kernel.stationary @ v, clock * beta)


def graph_gradient(kernel: MarkovKernel, energy: FreeEnergy) -> Callable[[Array], Array]:
    """Gradient in space of a graph's potential: least squares over the neighbouring states."""
    if kernel.coordinates is None:
        raise InputError("the kernel to start from has no coordinates; use from_points.")
    clock, centres = _clock(kernel), kernel.coordinates
    v = energy.potential / clock - energy.beta / clock * np.log(
        kernel.stationary / _volumes(kernel)
    )
    k = int(min(max(_NEIGHBORS, 2 * centres.shape[1]), len(centres)))
    near = cKDTree(centres).query(centres, k=k)[1].reshape(len(centres), -1)
    apart = centres[near] - centres[near].mean(axis=1, keepdims=True)
    rise = v[near] - v[near].mean(axis=1, keepdims=True)
    normal = np.einsum("nki,nkj->nij", apart, apart)
    size = np.trace(normal, axis1=1, axis2=2)[:, None, None]
    normal = normal + 1e-3 * size * np.eye(centres.shape[1])
    slopes = np.linalg.solve(normal, np.einsum("nki,nk->ni", apart, rise)[..., None])[..., 0]
    tree = cKDTree(centres)

    def gradient(x: Array) -> Array:
        return np.asarray(slopes[tree.query(x)[1]])

    return gradient


def _clock(kernel: MarkovKernel) -> float:
    """Unit steps of the walk per unit of variance in space: `2 / s^2`."""
    assert kernel.coordinates is not None
    x, (a, b, c) = kernel.coordinates, kernel.edges
    square = 2 * float(c @ ((x[a] - x[b]) ** 2).sum(axis=1)) / x.shape[1]
    return 2.0 / square


def _volumes(kernel: MarkovKernel) -> Array:
    """The share of space of each state."""
    x = kernel.coordinates
    assert x is not None
    k = int(min(_NEIGHBORS, len(x) - 1))
    reach = cKDTree(x).query(x, k=[k + 1])[0].ravel()
    smallest = reach[reach > 0].min() if np.any(reach > 0) else 1.0
    logs = x.shape[1] * np.log(np.maximum(reach, smallest))
    volume = np.exp(logs - logs.max())
    return np.asarray(volume / volume.sum())
