"""Pictures with matplotlib, in the manner of scanpy: `thalweg.pl.landscape(adata, basis="umap")`.

Each function takes a fitted model (or AnnData that `thalweg.tl.free_energy` annotated) and the
options `ax=`, `color=`, `save=` and `show=`. plotly is not needed. For arrays rather than models,
see `thalweg.plots.mpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg.adapters.cells import Keys
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.forecast import Forecast
from thalweg.plots import mpl
from thalweg.plots.fluxes import net_fluxes
from thalweg.snapshots import Snapshots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fit", "flow", "forecast", "landscape", "potential"]


def landscape(
    data: Any,
    *,
    basis: str = "umap",
    color: str | ArrayLike | None = None,
    key: str = "thalweg",
    **options: Any,
) -> Axes:
    """The landscape: cells in an embedding, or the states of a fitted model with arrows.

    Parameters
    ----------
    data : AnnData or FreeEnergyRegressor
        Cells that `thalweg.tl.free_energy` annotated, or a fitted model.
    basis : str
        For cells: the embedding, `"umap"` for `obsm["X_umap"]`.
    color : str or array, optional
        What to colour by, in place of the potential: for cells a column of `obs`, for a model a
        value per state.
    key : str
        For cells: the `key_added` of `thalweg.tl.free_energy`.
    **options
        `ax`, `save`, `show`, `cmap`, `title`, as `thalweg.plots.mpl.landscape` takes them.
    """
    if isinstance(data, FreeEnergyRegressor):
        drawn = None if data.kernel_.n_edges > _MOST_EDGES else net_fluxes(data)
        return mpl.landscape(data.kernel_, data.potential_, fluxes=drawn, color=color, **options)
    if not hasattr(data, "obsm"):
        raise InputError(
            f"pl.landscape draws AnnData or a fitted model, not a {type(data).__name__}; for "
            "arrays use thalweg.plots.mpl.landscape."
        )
    column = Keys(key).potential if color is None else color
    if column not in data.obs:
        raise InputError(
            f"adata.obs has no {column!r}; run thalweg.tl.free_energy(adata, ...) first."
            if color is None
            else f"adata.obs has no {column!r}; it has {', '.join(map(str, data.obs.columns))}."
        )
    place = basis if basis in data.obsm else f"X_{basis}"
    if place not in data.obsm:
        raise InputError(
            f"adata.obsm has no {place!r}; there are {', '.join(map(str, data.obsm)) or 'none'}."
        )
    name = place.removeprefix("X_")
    return mpl.scatter(
        np.asarray(data.obsm[place])[:, :2],
        np.asarray(data.obs[column]),
        labels=(f"{name}1", f"{name}2"),
        label="V" if color is None else str(color),
        **options,
    )


def fit(model: FreeEnergyRegressor, snapshots: Snapshots, **options: Any) -> Axes:
    """Observed and fitted shares in the states that changed most.

    Parameters
    ----------
    model : FreeEnergyRegressor
        A fitted model.
    snapshots : Snapshots
        What was observed.
    **options
        `ax`, `color`, `save`, `show`, `most`, as `thalweg.plots.mpl.fit` takes them.
    """
    fine = np.union1d(np.linspace(model.times_[0], snapshots.times[-1], 61), snapshots.times)
    curve = model.predict(None, fine).probabilities
    seen = snapshots.frequencies
    seen = seen if isinstance(seen, np.ndarray) else seen.toarray()
    return mpl.fit(
        model.kernel_, snapshots.times, seen, curve, sizes=snapshots.sizes, fitted_times=fine,
        **options,
    )  # fmt: skip


def forecast(model: FreeEnergyRegressor, times: ArrayLike | Forecast, **options: Any) -> Axes:
    """The forecast of a fitted model with its bands.

    Parameters
    ----------
    model : FreeEnergyRegressor
        A fitted model.
    times : array or Forecast
        Times, or what `model.forecast` gave.
    **options
        `ax`, `color`, `save`, `show`, `most`, as `thalweg.plots.mpl.forecast` takes them.
    """
    ahead = times if isinstance(times, Forecast) else model.forecast(times)
    return mpl.forecast(
        model.kernel_, ahead.times, ahead.probabilities, lower=ahead.lower, upper=ahead.upper,
        start=float(model.times_[-1]), **options,
    )  # fmt: skip


def flow(model: FreeEnergyRegressor, times: ArrayLike, **options: Any) -> list[Axes]:
    """The fitted population on the graph at several times, side by side."""
    path = model.predict(None, times)
    return mpl.flow(model.kernel_, path.times, path.probabilities, **options)


def potential(model: FreeEnergyRegressor, **options: Any) -> Axes:
    """The potential of each state, ranked, with bars of two standard errors."""
    return mpl.potential(model.kernel_, model.potential_, model.potential_stderr_, **options)


_MOST_EDGES = 200_000
"""Beyond, fluxes take longer than anybody looks at their arrows."""
