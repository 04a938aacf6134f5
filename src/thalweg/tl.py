"""Tools for AnnData, in the manner of scanpy: `thalweg.tl.free_energy(adata, time_key="day")`."""

from __future__ import annotations

from typing import Any

from thalweg.adapters.cells import Keys, cell_problem, write_results
from thalweg.learn import FreeEnergyRegressor

__all__ = ["free_energy"]


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
