"""Clouds of points from tables (one row per individual) and from the embeddings of AnnData."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg._types import Array
from thalweg._words import listed
from thalweg.adapters.cells import Keys, cell_times, embedding, read_h5ad
from thalweg.adapters.pieces import coordinate_table, read_table
from thalweg.errors import InputError
from thalweg.points import PointLandscape
from thalweg.snapshots.columns import TIME_NAMES, choose, require
from thalweg.snapshots.times import TimeScale, read_times

_BASES = ("X_pca", "X_scVI", "X_umap")


@dataclass(frozen=True, eq=False)
class PointTable:
    """Clouds at increasing times, the names of their coordinates, and the choices made."""

    times: Array
    clouds: tuple[Array, ...]
    coordinates: tuple[str, ...]
    scale: TimeScale
    messages: tuple[str, ...]
    basis: str = ""


def read_points(
    path: Path, *, time: str | None = None, coordinates: str | None = None, basis: str | None = None
) -> PointTable:
    """The clouds in a file.

    Parameters
    ----------
    path : Path
        A `.csv`, `.tsv` or `.parquet` table with one row per individual, or an `.h5ad` of cells.
    time : str, optional
        The column of times; of `obs` for cells.
    coordinates : str, optional
        Columns, separated by commas; by default every other column of numbers.
    basis : str, optional
        For cells: the embedding in `obsm`, by default the first of X_pca, X_scVI, X_umap.
    """
    if path.suffix.lower() == ".h5ad":
        adata = read_h5ad(path)
        columns = list(adata.obs.columns)
        key = require(columns, time, TIME_NAMES, "time", f"obs of {path.name}", "--time")
        return embedded_cells(adata, str(key), basis)
    frame = read_table(path)
    columns = list(frame.columns)
    key = require(columns, time, TIME_NAMES, "time", path.name, "--time")
    rest = [column for column in columns if column != key]
    messages = [f"{path.name}: time is {str(key)!r}"]
    if coordinates is not None:
        named = [name.strip() for name in coordinates.split(",") if name.strip()]
        chosen = [choose(rest, name, (), "coordinate", path.name) for name in named]
    else:
        chosen = [column for column in rest if frame[column].dtype.kind in "fiu"]
        messages.append(f"{path.name}: coordinates are {listed(chosen)}")
    if not chosen:
        raise InputError(
            f"{path.name} has no column of numbers beside {str(key)!r}; name the coordinates with "
            "--coordinates x,y."
        )
    x = coordinate_table(frame, chosen, path.name)
    numbers, scale = read_times(frame[key].to_numpy(), str(key))
    moments, row = np.unique(numbers, return_inverse=True)
    clouds = tuple(x[row == k] for k in range(moments.size))
    return PointTable(moments, clouds, tuple(map(str, chosen)), scale, tuple(messages))


def embedded_cells(adata: Any, time_key: str, basis: str | None = None) -> PointTable:
    """The cells of each time in an embedding of `obsm`."""
    name, x = embedding(adata, basis or next((b for b in _BASES if b in adata.obsm), "X_pca"))
    moments, row, scale = cell_times(adata, time_key)
    clouds = tuple(x[row == k] for k in range(moments.size))
    names = tuple(f"{name}_{k + 1}" for k in range(x.shape[1]))
    messages = () if basis else (f"coordinates are obsm[{name!r}]",)
    return PointTable(moments, clouds, names, scale, messages, name)


def write_drift(
    adata: Any, model: PointLandscape, basis: str, keys: Keys, time_key: str | None = None
) -> None:
    """Write a potential at the cells, and minus its gradient, in its embedding."""
    name, x = embedding(adata, basis)
    if x.shape[1] != model.dimension_:
        raise InputError(
            f"the landscape was learned in {model.dimension_} dimensions, and obsm[{name!r}] has "
            f"{x.shape[1]}; give the embedding that it was learned in."
        )
    drift, spread, height = np.empty_like(x), np.empty_like(x), np.empty(len(x))
    moments, row = model.times_[-1:], np.zeros(len(x), dtype=np.intp)
    if time_key is not None:
        moments, row, _ = cell_times(adata, time_key)
    for k, time in enumerate(moments):
        here = row == k
        drift[here] = -model.gradient(x[here], time)
        spread[here] = model.gradient_stderr(x[here], time)
        height[here] = model.potential(x[here], time)
    short = name.removeprefix("X_")
    adata.obsm[f"velocity_{short}"] = drift
    adata.obsm[f"velocity_{short}_stderr"] = spread
    adata.obs[keys.landscape] = height
    adata.uns[keys.landscape] = {
        "beta": model.beta_,
        "beta_stderr": model.beta_stderr_,
        "goodness": str(model.goodness_),
        "warning": model.warning_,
        "why": model.why_,
    }
