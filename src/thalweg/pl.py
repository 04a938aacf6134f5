"""Pictures with matplotlib, in the manner of scanpy: `thalweg.pl.landscape(adata, basis="umap")`.

Each function takes a fitted model (or AnnData that `thalweg.tl.free_energy` annotated) and the
options `ax=`, `color=`, `save=` and `show=`. plotly is not needed. For arrays rather than models,
see `thalweg.plots.mpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg._sparse import dense
from thalweg._words import listed
from thalweg.adapters.cells import Keys, check_written, embedding
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.forecast import Forecast
from thalweg.plots import mpl
from thalweg.plots.fluxes import mean_fluxes
from thalweg.snapshots import Snapshots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fates", "fit", "flow", "forecast", "landscape", "potential", "velocity"]


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
        drawn = None if data.kernel_.n_edges > _MOST_EDGES else mean_fluxes(data)
        return mpl.landscape(data.kernel_, data.potential_, fluxes=drawn, color=color, **options)
    if not hasattr(data, "obsm"):
        raise InputError(
            f"pl.landscape draws AnnData or a fitted model, not a {type(data).__name__}; for "
            "arrays use thalweg.plots.mpl.landscape."
        )
    if color is None:
        color, label = Keys(key).potential, "V"
        check_written(data, "obs", color, "free_energy(adata, ...)")
    elif color not in data.obs:
        raise InputError(f"adata.obs has no {color!r}; it has {listed(data.obs)}.")
    else:
        label = str(color)
    return _cells(data, basis, np.asarray(data.obs[color]), label=label, **options)


def fates(
    adata: Any, fate: str | int = 0, *, basis: str = "umap", key: str = "thalweg", **options: Any
) -> Axes:
    """The cells coloured by the probability of one fate, which `thalweg.tl.fates` wrote.

    Parameters
    ----------
    adata : AnnData
        The cells.
    fate : str or int
        Name or number of the fate.
    basis : str
        The embedding, `"umap"` for `obsm["X_umap"]`.
    key : str
        The `key` of `thalweg.tl.fates`.
    **options
        `ax`, `save`, `show`, `cmap`, as `thalweg.plots.mpl.scatter` takes them.
    """
    keys = Keys(key)
    check_written(adata, "obsm", keys.fates, "fates(adata, model)")
    names = [str(name) for name in adata.uns[keys.fates]["names"]]
    which = names.index(fate) if fate in names else fate
    if not isinstance(which, int) or not 0 <= which < len(names):
        raise InputError(f"fate is {fate!r}; there are {', '.join(names)}.")
    values = np.asarray(adata.obsm[keys.fates])[:, which]
    options.setdefault("title", f"Fate: {names[which]}")
    return _cells(adata, basis, values, label="probability", **options)


def velocity(
    adata: Any,
    *,
    basis: str = "umap",
    key: str = "thalweg",
    save: Any = None,
    show: bool | None = None,
    **options: Any,
) -> Axes:
    """Arrows of the velocities that `thalweg.tl.velocity` wrote, over the landscape.

    Parameters
    ----------
    adata : AnnData
        The cells.
    basis : str
        The embedding, `"umap"` for `obsm["X_umap"]`.
    key : str
        The `key_added` of `thalweg.tl.free_energy`.
    save : path, optional
        File to write.
    show : bool, optional
        Whether to show the figure; by default where matplotlib is interactive.
    **options
        `ax`, `color`, `cmap`, as `landscape` takes them.
    """
    place, xy = embedding(adata, basis)
    name = place.removeprefix("X_")
    check_written(adata, "obsm", f"velocity_{name}", "velocity(adata, model)")
    options.setdefault("title", "Where the cells go")
    axes = landscape(adata, basis=basis, key=key, show=False, **options)
    return mpl.quiver(axes, xy, adata.obsm[f"velocity_{name}"], save=save, show=show)


def _cells(adata: Any, basis: str, values: Any, **options: Any) -> Axes:
    place, xy = embedding(adata, basis)
    name = place.removeprefix("X_")
    return mpl.scatter(xy, values, labels=(f"{name}1", f"{name}2"), **options)


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
    snapshots = snapshots.on(model.time_scale_)
    fine = np.union1d(np.linspace(model.times_[0], snapshots.times[-1], 61), snapshots.times)
    curve = model.predict(None, fine).probabilities
    seen = dense(snapshots.frequencies)
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
        Times, or the result of `model.forecast`.
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
"""Above this number of edges, fluxes take longer than their arrows are worth."""
