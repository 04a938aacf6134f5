"""Tools for AnnData, in the manner of scanpy: `thalweg.tl.free_energy(adata, time_key="day")`."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.adapters.cells import Keys, cell_problem, cell_times, write_results
from thalweg.adapters.points import embedded_cells
from thalweg.learn import FreeEnergyRegressor
from thalweg.points import Interpolation, PointInterpolator, PointLandscape

__all__ = ["free_energy", "interpolate", "velocity"]


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
    """The cells at a time when none were taken, between or after those that were.

    Writes `uns[key_added]`: the cloud in the embedding `basis` (by default X_pca), its weights, the
    method and why, the test of fit, warnings, and the interval of W1 that the trials expect.

    Parameters
    ----------
    adata : AnnData
        Cells with times in `obs` and an embedding in `obsm`.
    time_key : str
        The column of `obs` with the time of each cell.
    time : float
        The time asked for.
    basis : str, optional
        The embedding.
    method : str
        See `PointInterpolator.interpolate` and `PointInterpolator.forecast`.
    key_added : str
        Where to write.
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
    *,
    time_key: str,
    basis: str | None = None,
    key_added: str = "thalweg",
    seed: int = 0,
    **options: Any,
) -> PointLandscape:
    """The drift of each cell, minus the gradient of a potential in an embedding.

    Writes `obsm[key_added + "_velocity"]`, its standard error in `"_velocity_stderr"`, the
    potential in `obs[key_added + "_landscape"]`, and `uns[key_added + "_velocity"]` with beta, the
    test of fit and warnings. Returns the fitted `PointLandscape`, which takes the `options`.

    Parameters
    ----------
    adata : AnnData
        Cells with times in `obs` and an embedding in `obsm`.
    time_key : str
        The column of `obs` with the time of each cell.
    basis : str, optional
        The embedding, by default X_pca.
    key_added : str
        Prefix of what is written.
    seed : int
        Seed of every random number generator used.
    **options
        Of `PointLandscape`.
    """
    cells = embedded_cells(adata, time_key, basis)
    model = PointLandscape(seed=seed, **options).fit(cells.times, cells.clouds)
    _, row, _ = cell_times(adata, time_key)
    drift, spread = np.empty((2, adata.n_obs, len(cells.coordinates)))
    height = np.empty(adata.n_obs)
    for k, (time, cloud) in enumerate(zip(cells.times, cells.clouds, strict=True)):
        here = row == k
        drift[here] = -model.gradient(cloud, time)
        spread[here] = model.gradient_stderr(cloud, time)
        height[here] = model.potential(cloud, time)
    adata.obsm[f"{key_added}_velocity"] = drift
    adata.obsm[f"{key_added}_velocity_stderr"] = spread
    adata.obs[f"{key_added}_landscape"] = height
    adata.uns[f"{key_added}_velocity"] = {
        "beta": model.beta_,
        "beta_stderr": model.beta_stderr_,
        "goodness": str(model.goodness_),
        "warning": model.warning_,
        "why": model.why_,
    }
    return model
