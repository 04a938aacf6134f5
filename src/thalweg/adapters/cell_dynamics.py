"""Fates, velocities and transitions of cells, written where scvelo and CellRank look for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg._words import listed
from thalweg.adapters.cells import Keys, check_written, connectivities, embedding
from thalweg.dynamics import Fates, transition_rates, velocity
from thalweg.dynamics.velocity import velocity_map
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.learn import FreeEnergyRegressor

TRANSITIONS = "T_fwd"
"""`obsp`: the matrix that `cellrank.kernels.PrecomputedKernel` reads."""
_HOLD = 0.02
"""Smooths over about seven steps of the walk, more than the diameter of a group of 30 cells."""


def cell_labels(adata: Any, model: FreeEnergyRegressor, keys: Keys) -> NDArray[np.int64]:
    """The number of each cell's state in the model."""
    check_written(adata, "obs", keys.state, "free_energy(adata, ...)")
    place = {str(name): x for x, name in enumerate(model.kernel_.names or ())}
    names = adata.obs[keys.state].astype(str)
    stray = [name for name in names.unique() if name not in place]
    if stray:
        raise InputError(
            f"adata.obs[{keys.state!r}] has the state {stray[0]!r}, which the model does not have; "
            "use the model that thalweg.tl.free_energy returned for these cells."
        )
    return names.map(place).to_numpy(dtype=np.int64)


def write_fates(adata: Any, label: NDArray[np.int64], fates: Fates, keys: Keys) -> None:
    """`obsm` with one column per fate, its standard errors, and the names in `uns`."""
    adata.obsm[keys.fates] = fates.probabilities.value[label]
    adata.obsm[keys.fates_stderr] = fates.probabilities.stderr[label]
    adata.uns[keys.fates] = {"names": np.array(fates.names, dtype=str)}


def write_velocity(
    adata: Any,
    model: FreeEnergyRegressor,
    basis: str,
    neighbors_key: str | None,
    layer: str | None,
    keys: Keys,
) -> str:
    """Write velocities on the embedding and the cells' transition matrix; return the first key.

    The landscape is carried over to the graph of cells: the states' potential, spread smoothly over
    their cells, and the same beta. scvelo draws `obsm["velocity_" + basis]`; CellRank uses
    `obsp["T_fwd"]` (rows sum to one). With an expression `layer`, the velocities of its genes go to
    `layers["velocity"]`.
    """
    if layer is not None and layer not in adata.layers:
        there = listed(adata.layers) or "none"
        raise InputError(f"adata.layers has no {layer!r}; there are {there}.")
    label = cell_labels(adata, model, keys)
    place, xy = embedding(adata, basis)
    kernel = MarkovKernel.from_weights(connectivities(adata, neighbors_key))
    energy = FreeEnergy(_spread(kernel, model.potential_[label]), model.beta_)
    key = f"velocity_{place.removeprefix('X_')}"
    adata.obsm[key] = velocity(kernel, energy, xy[:, :2])
    if layer is not None:
        adata.layers["velocity"] = velocity_map(kernel, energy.potential) @ adata.layers[layer]
    rates = transition_rates(kernel, energy)
    fastest = float(-rates.diagonal().min())
    adata.obsp[TRANSITIONS] = sparse.csr_matrix(
        sparse.eye_array(kernel.n_states) + rates / (1.0001 * fastest)
    )
    return key


def _spread(kernel: MarkovKernel, values: Array) -> Array:
    """Values that are constant on groups of cells, smoothed so that they vary within groups.

    Minimises the roughness along the graph plus `_HOLD` times the squared change, both weighted by
    degree; the slope that smoothing removes is restored.
    """
    if np.ptp(values) == 0:
        return values
    source, target, c = kernel.edges
    pi = kernel.stationary
    solver = LaplacianSolver(kernel.n_states, source, target, grounded=True)
    hold, mean = _HOLD * pi, pi @ values
    off = values - mean
    smooth = solver.factor(c, hold).solve(hold * off, tolerance=1e-8, throw=True).x
    smooth -= pi @ smooth
    return np.asarray(mean + smooth * (pi @ off**2) / (pi @ (smooth * off)))
