"""Tools for AnnData, in the manner of scanpy: `thalweg.tl.free_energy(adata, time_key="day")`."""

from __future__ import annotations

from typing import Any

from thalweg.adapters.cell_dynamics import cell_labels, write_fates, write_velocity
from thalweg.adapters.cells import Keys, cell_problem, write_results
from thalweg.dynamics import Fates
from thalweg.learn import FreeEnergyRegressor

__all__ = ["fates", "free_energy", "velocity"]


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

    `time_key`: the column of `obs` with the day of each cell. `state_key`: a column of `obs` with
    clusters to take as states; without it, groups of neighbouring cells. The graph is
    `obsp["connectivities"]`, or that of `neighbors_key`. `options` go to `FreeEnergyRegressor`.

    Writes `obs[key_added + "_potential"]`, `"_potential_stderr"`, `"_equilibrium"`, `"_state"`,
    `obsm[key_added + "_probabilities"]` and `uns[key_added]`. Returns the fitted model, or, with
    `copy=True`, the annotated copy.
    """
    adata = adata.copy() if copy else adata
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
    """Where the cells end: write the probability of each fate, with standard errors, to `adata`.

    Parameters
    ----------
    adata : AnnData
        Cells that `free_energy` has seen.
    model : FreeEnergyRegressor
        What it returned.
    targets : mapping or sequence, optional
        Sets of states, `{name: states}`; by default the sets that hold a cell longest.
    key : str
        The prefix that was given to `free_energy`.

    Writes `obsm[key + "_fates"]`, `obsm[key + "_fates_stderr"]` and, with the names,
    `uns[key + "_fates"]`. Returns the fates of the states.
    """
    found = model.fate_probabilities(targets)
    write_fates(adata, cell_labels(adata, model, Keys(key)), found, Keys(key))
    return found


def velocity(
    adata: Any,
    model: FreeEnergyRegressor,
    *,
    basis: str = "umap",
    neighbors_key: str | None = None,
    key: str = "thalweg",
) -> None:
    """Write velocities on an embedding, and the cells' transition matrix.

    Parameters
    ----------
    adata : AnnData
        Cells that `free_energy` has seen, with an embedding and a neighbour graph.
    model : FreeEnergyRegressor
        What it returned.
    basis : str
        The embedding, `obsm["X_" + basis]`.
    neighbors_key : str, optional
        Which neighbour graph.
    key : str
        The prefix that was given to `free_energy`.

    Writes `obsm["velocity_" + basis]`, which `scvelo.pl.velocity_embedding_stream` draws, and
    `obsp["T_fwd"]`, which `cellrank.kernels.PrecomputedKernel(adata.obsp["T_fwd"], adata)` takes.
    """
    write_velocity(adata, model, basis, neighbors_key, Keys(key))
