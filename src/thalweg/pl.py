"""Pictures of AnnData, in the manner of scanpy: `thalweg.pl.landscape(adata, basis="umap")`."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from thalweg.adapters.cells import Keys
from thalweg.errors import InputError
from thalweg.plots.graph import LANDSCAPE_SCALE

__all__ = ["landscape"]


def landscape(adata: Any, *, basis: str = "umap", key: str = "thalweg") -> go.Figure:
    """The cells in an embedding, coloured by the potential that `thalweg.tl.free_energy` wrote."""
    keys = Keys(key)
    if keys.potential not in adata.obs:
        raise InputError(
            f"adata.obs has no {keys.potential!r}; run thalweg.tl.free_energy(adata, ...) first."
        )
    place = basis if basis in adata.obsm else f"X_{basis}"
    if place not in adata.obsm:
        raise InputError(
            f"adata.obsm has no {place!r}; there are {', '.join(map(str, adata.obsm)) or 'none'}."
        )
    xy = np.asarray(adata.obsm[place])[:, :2]
    figure = go.Figure(
        go.Scattergl(
            x=xy[:, 0],
            y=xy[:, 1],
            mode="markers",
            text=[f"{v:.3g}" for v in adata.obs[keys.potential]],
            hoverinfo="text",
            marker={
                "size": float(np.clip(600 / np.sqrt(adata.n_obs), 2, 9)),
                "color": np.asarray(adata.obs[keys.potential]),
                "colorscale": LANDSCAPE_SCALE,
                "colorbar": {"title": {"text": "V"}, "thickness": 14, "outlinewidth": 0},
            },
        )
    )
    figure.update_layout(
        title={"text": "Energy landscape", "x": 0.02},
        template="plotly_white",
        xaxis={"title": f"{basis} 1", "showgrid": False, "zeroline": False},
        yaxis={"title": f"{basis} 2", "showgrid": False, "zeroline": False, "scaleanchor": "x"},
        height=600,
    )
    return figure
