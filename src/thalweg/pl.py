"""Pictures of AnnData, in the manner of scanpy: `thalweg.pl.landscape(adata, basis="umap")`."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from thalweg.adapters.cell_dynamics import embedding
from thalweg.adapters.cells import Keys
from thalweg.errors import InputError
from thalweg.plots.graph import LANDSCAPE_SCALE
from thalweg.plots.motion import arrows

__all__ = ["fates", "landscape", "velocity"]


def landscape(adata: Any, *, basis: str = "umap", key: str = "thalweg") -> go.Figure:
    """The cells in an embedding, coloured by the potential that `thalweg.tl.free_energy` wrote."""
    potential = _column(adata, Keys(key).potential)
    return _cells(adata, basis, potential, "V", "Energy landscape")


def fates(
    adata: Any, fate: str | int = 0, *, basis: str = "umap", key: str = "thalweg"
) -> go.Figure:
    """The cells coloured by the probability of one fate, which `thalweg.tl.fates` wrote.

    `fate` is its name, or its number.
    """
    keys = Keys(key)
    if keys.fates not in adata.obsm:
        raise InputError(
            f"adata.obsm has no {keys.fates!r}; run thalweg.tl.fates(adata, model) first."
        )
    names = [str(name) for name in adata.uns[keys.fates]["names"]]
    which = names.index(fate) if fate in names else fate
    if not isinstance(which, int) or not 0 <= which < len(names):
        raise InputError(f"fate is {fate!r}; there are {', '.join(names)}.")
    values = np.asarray(adata.obsm[keys.fates])[:, which]
    return _cells(adata, basis, values, "probability", f"Fate: {names[which]}")


def velocity(adata: Any, *, basis: str = "umap", key: str = "thalweg") -> go.Figure:
    """Arrows of the velocities that `thalweg.tl.velocity` wrote, over the landscape."""
    name, xy = embedding(adata, basis)
    if f"velocity_{name}" not in adata.obsm:
        raise InputError(
            f"adata.obsm has no 'velocity_{name}'; run thalweg.tl.velocity(adata, model) first."
        )
    figure = landscape(adata, basis=basis, key=key)
    for trace in arrows(xy, adata.obsm[f"velocity_{name}"]).data:
        figure.add_trace(trace)
    return figure.update_layout(title={"text": "Where the cells go"}, showlegend=False)


def _column(adata: Any, name: str) -> Any:
    if name not in adata.obs:
        raise InputError(
            f"adata.obs has no {name!r}; run thalweg.tl.free_energy(adata, ...) first."
        )
    return np.asarray(adata.obs[name])


def _cells(adata: Any, basis: str, values: Any, label: str, title: str) -> go.Figure:
    _, xy = embedding(adata, basis)
    figure = go.Figure(
        go.Scattergl(
            x=xy[:, 0],
            y=xy[:, 1],
            mode="markers",
            text=[f"{v:.3g}" for v in values],
            hoverinfo="text",
            marker={
                "size": float(np.clip(600 / np.sqrt(adata.n_obs), 2, 9)),
                "color": values,
                "colorscale": LANDSCAPE_SCALE,
                "colorbar": {"title": {"text": label}, "thickness": 14, "outlinewidth": 0},
            },
        )
    )
    figure.update_layout(
        title={"text": title, "x": 0.02},
        template="plotly_white",
        xaxis={"title": f"{basis} 1", "showgrid": False, "zeroline": False},
        yaxis={"title": f"{basis} 2", "showgrid": False, "zeroline": False, "scaleanchor": "x"},
        height=600,
    )
    return figure
