"""Tools for AnnData, in the manner of scanpy: `thalweg.tl.free_energy(adata, time_key="day")`."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.adapters.cell_dynamics import cell_labels, write_fates, write_velocity
from thalweg.adapters.cells import Keys, cell_problem, write_results
from thalweg.adapters.points import embedded_cells, write_drift
from thalweg.dynamics import Fates
from thalweg.learn import FreeEnergyRegressor
from thalweg.points import Interpolation, PointInterpolator, PointLandscape

__all__ = ["fates", "free_energy", "interpolate", "landscape", "velocity"]


def free_energy(
    adata: Any,
    *,
    time_key: str,
    state_key: str | None = None,
    neighbors_key: str | None = None,
    n_states: int | None = None,
    key_added: str = "thalweg",
    copy: bool = False,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Learn the landscape that moves the cells, and write it to `adata`.

    Writes `obs[key_added + "_potential"]`, `"_potential_stderr"`, `"_equilibrium"`, `"_state"`,
    `obsm[key_added + "_probabilities"]` and `uns[key_added]`. Returns the fitted model, or, with
    `copy=True`, the annotated copy.

    Parameters
    ----------
    adata : AnnData
        Cells with times in `obs` and a neighbour graph in `obsp`.
    time_key : str
        The column of `obs` with the day of each cell.
    state_key : str, optional
        A column of `obs` with clusters to take as states; by default groups of neighbouring cells.
    neighbors_key : str, optional
        Key of the neighbour graph; by default `obsp["connectivities"]`.
    n_states : int, optional
        Number of groups without a `state_key`.
    key_added : str
        Prefix of the keys to write.
    copy : bool
        Whether to annotate and return a copy.
    seed : int
        Seed of every random number generator used.
    **options
        Options of `FreeEnergyRegressor`.
    """
    adata = adata.copy() if copy and adata is not None else adata
    problem = cell_problem(
        adata,
        time_key=time_key,
        state_key=state_key,
        neighbors_key=neighbors_key,
        n_states=n_states,
        seed=seed,
    )
    model = FreeEnergyRegressor(seed=seed, **options).fit(problem.kernel, problem.snapshots)
    write_results(adata, problem, model, Keys(key_added))
    return adata if copy else model


def fates(
    adata: Any, model: FreeEnergyRegressor, targets: Any = None, *, key: str = "thalweg"
) -> Fates:
    """Write to `adata` the probability of each fate of the cells, with standard errors.

    Parameters
    ----------
    adata : AnnData
        Cells that `free_energy` was run on.
    model : FreeEnergyRegressor
        The model that `free_energy` returned.
    targets : mapping or sequence, optional
        Sets of states, `{name: states}`; by default the sets that hold a cell longest.
    key : str
        The `key_added` of `free_energy`.

    Writes `obsm[key + "_fates"]`, `obsm[key + "_fates_stderr"]` and, with the names,
    `uns[key + "_fates"]`. Returns the fates of the states.
    """
    found = model.fate_probabilities(targets)
    write_fates(adata, cell_labels(adata, model, Keys(key)), found, Keys(key))
    return found


def landscape(
    adata: Any,
    *,
    time_key: str,
    basis: str | None = None,
    key_added: str = "thalweg",
    seed: int = 0,
    **options: Any,
) -> PointLandscape:
    """Learn a potential on an embedding of the cells, and write it with its drift to `adata`.

    Writes `obs[key_added + "_landscape"]`, the potential at each cell, `obsm["velocity_" + basis]`,
    minus its gradient, `obsm["velocity_" + basis + "_stderr"]`, and `uns[key_added + "_landscape"]`
    with beta, the test of fit and warnings. Returns the model; `velocity` takes it as well.

    Parameters
    ----------
    adata : AnnData
        Cells with times in `obs` and an embedding in `obsm`.
    time_key : str
        The column of `obs` with the time of each cell.
    basis : str, optional
        The embedding, by default X_pca.
    key_added : str
        Prefix of the keys to write.
    seed : int
        Seed of every random number generator used.
    **options
        Options of `PointLandscape`.
    """
    cells = embedded_cells(adata, time_key, basis)
    model = PointLandscape(seed=seed, **options).fit(cells.times, cells.clouds)
    write_drift(adata, model, cells.basis, Keys(key_added), time_key)
    return model


def interpolate(
    adata: Any,
    *,
    time_key: str,
    time: float,
    basis: str | None = None,
    method: str = "auto",
    key_added: str = "thalweg_interpolation",
    seed: int = 0,
) -> Interpolation:
    """Estimate the cells at a time between or after the observed ones.

    Writes `uns[key_added]`: the cloud in the embedding, its weights, the method and the reason for
    it, the test of fit, warnings, and the interval of W1 expected from trials.

    Parameters
    ----------
    adata : AnnData
        Cells with times in `obs` and an embedding in `obsm`.
    time_key : str
        The column of `obs` with the time of each cell.
    time : float
        The time to interpolate or forecast at.
    basis : str, optional
        The embedding; by default X_pca.
    method : str
        A method of `PointInterpolator.interpolate` or, after the last time, of `forecast`.
    key_added : str
        Key of `uns` to write to.
    seed : int
        Seed of every random number generator used.
    """
    cells = embedded_cells(adata, time_key, basis)
    model = PointInterpolator(seed=seed).fit(cells.times, cells.clouds)
    ask: Any = model.forecast if time > cells.times[-1] else model.interpolate
    guess: Interpolation = ask(float(time), method=method)
    adata.uns[key_added] = {
        "time": float(time),
        "points": guess.points.points,
        "weights": guess.points.weights,
        "coordinates": np.array(cells.coordinates),
        "method": guess.method,
        "why": guess.why,
        "warning": guess.warning,
        "goodness": str(guess.goodness or ""),
        "w1_interval": np.array(guess.w1_interval or ()),
    }
    return guess


def velocity(
    adata: Any,
    model: FreeEnergyRegressor | PointLandscape,
    *,
    basis: str = "umap",
    neighbors_key: str | None = None,
    layer: str | None = None,
    key: str = "thalweg",
) -> None:
    """Write velocities on an embedding, and the cells' transition matrix.

    Parameters
    ----------
    adata : AnnData
        Cells that `free_energy` was run on, with an embedding and a neighbour graph.
    model : FreeEnergyRegressor or PointLandscape
        The model that `free_energy`, or `landscape`, returned.
    basis : str
        The embedding, `obsm["X_" + basis]`.
    neighbors_key : str, optional
        Key of the neighbour graph; by default `obsp["connectivities"]`.
    layer : str, optional
        Expression whose velocities, gene by gene, go to `layers["velocity"]` as well.
    key : str
        The `key_added` of `free_energy`.

    Writes `obsm["velocity_" + basis]`, which `scvelo.pl.velocity_embedding_stream` draws, and
    `obsp["T_fwd"]`, which `cellrank.kernels.PrecomputedKernel(adata, obsp_key="T_fwd")` takes.
    With a layer, `scvelo.tl.velocity_graph(adata, xkey=layer)` and
    `cellrank.kernels.VelocityKernel(adata, xkey=layer)` read the velocities of the genes.
    A `PointLandscape` has no transition matrix: its standard errors are written instead.
    """
    if isinstance(model, PointLandscape):
        write_drift(adata, model, basis, Keys(key))
        return
    write_velocity(adata, model, basis, neighbors_key, layer, Keys(key))
