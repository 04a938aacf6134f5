"""Motion: velocities as arrows on an embedding, and streams between groups as a Sankey diagram."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.figure_factory as ff
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from thalweg.dynamics import Streams
from thalweg.plots.layout import ARROW, PALETTE, gridded
from thalweg.plots.series import faint


def arrows(positions: ArrayLike, velocities: ArrayLike, *, n_cells: int = 22) -> go.Figure:
    """Velocities averaged over the cells of a grid, as arrows.

    Parameters
    ----------
    positions : array
        Points in the plane, `(n, 2)`.
    velocities : array
        One velocity per point.
    n_cells : int
        Cells of the grid along the longer side.
    """
    centre, size = gridded(positions, velocities, n_cells)
    figure: go.Figure = ff.create_quiver(
        centre[:, 0], centre[:, 1], size[:, 0], size[:, 1], scale=1, arrow_scale=0.35,
        line={"color": ARROW, "width": 1.6}, name="velocity",
    )  # fmt: skip
    return figure


def sankey(streams: Streams, names: Sequence[str], *, title: str = "Who goes where") -> go.Figure:
    """Groups at each time as nodes, streams between them as bands.

    Parameters
    ----------
    streams : Streams
        The result of `thalweg.dynamics.streams`.
    names : sequence of str
        Names of the groups.
    title : str
        Title of the figure.
    """
    n_times, size = streams.shares.shape
    colour = [PALETTE[a % len(PALETTE)] for a in range(size)]
    a, b = (k.ravel() for k in np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
    source = np.concatenate([k * size + a for k in range(n_times - 1)])
    target = np.concatenate([(k + 1) * size + b for k in range(n_times - 1)])
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "label": [f"{names[g]} ({t:g})" for t in streams.times for g in range(size)],
                "color": colour * n_times, "pad": 14, "thickness": 12,
            },
            link={
                "source": source, "target": target, "value": streams.moved.ravel(),
                "color": [faint(colour[int(s) % size], 0.35) for s in source],
            },
        )
    )  # fmt: skip
    return figure.update_layout(title={"text": title, "x": 0.02}, height=420)
