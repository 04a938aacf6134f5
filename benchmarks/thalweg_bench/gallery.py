"""The graphs on which methods are compared: a picture and a table of each.

`thalweg bench gallery` draws the twelve random families and six deterministic graphs. States are
coloured by how much of the stationary distribution they hold relative to the mean state.
"""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy import sparse
from scipy.sparse.linalg import eigsh

from thalweg._types import Array
from thalweg.graphs import (
    GRAPH_FAMILIES,
    cycle,
    hamming_kernel,
    hypercube,
    make_graph,
    path,
    star,
    triangular_lattice,
)
from thalweg.kernel import MarkovKernel
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["layout", "run", "spectral_gap"]


_COLUMNS = 6
"""Graphs per row of the figure."""
_TITLES = {
    "complete": "Complete",
    "erdos_renyi": "Erdős–Rényi",
    "regular": "Random regular",
    "watts_strogatz": "Watts–Strogatz",
    "block_model": "Block model",
    "delaunay": "Delaunay",
    "spanning_tree": "Euclidean spanning tree",
    "k_partite": "k-partite",
    "grid": "Grid",
    "torus": "Torus",
    "apollonian": "Apollonian",
    "barabasi_albert": "Barabási–Albert",
    "path": "Path",
    "cycle": "Cycle",
    "star": "Star",
    "triangular": "Triangular lattice",
    "hypercube": "Hypercube",
    "hamming": "Hamming (3 letters, length 3)",
}
_SIZES = {"complete": 20, "k_partite": 24, "grid": 48, "torus": 48, "apollonian": 40}
"""Numbers of states, where these are not 50."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "block_model": {"n_blocks": 4, "within": 5.0, "between": 0.8},
    "erdos_renyi": {"mean_degree": 4.5},
}
"""Arguments of `make_graph` beside the number of states."""


def run(settings: BenchSettings) -> BenchResult:
    """One figure with every graph, and a table of sizes, degrees and spectral gaps."""
    rng = np.random.default_rng(settings.seed)
    kernels = {
        name: make_graph(name, _SIZES.get(name, 50), rng=rng, **_OPTIONS.get(name, {}))
        for name in GRAPH_FAMILIES
    }
    kernels |= {
        "path": path(40),
        "cycle": cycle(40),
        "star": star(40),
        "triangular": triangular_lattice(6, 7),
        "hypercube": hypercube(5),
        "hamming": hamming_kernel(3, 3),
    }
    rows = []
    for done, (name, kernel) in enumerate(kernels.items()):
        settings.progress(f"drawing {_TITLES[name]}", done, len(kernels))
        rows.append(
            {
                "graph": name,
                "n_states": kernel.n_states,
                "n_edges": kernel.n_edges,
                "mean_degree": round(2 * kernel.n_edges / kernel.n_states, 2),
                "spectral_gap": float(f"{spectral_gap(kernel):.4g}"),
            }
        )
    table = pd.DataFrame(rows)
    slowest = table.loc[table.spectral_gap.idxmin()]
    fastest = table.loc[table.spectral_gap.idxmax()]
    notes = (
        f"{len(kernels)} graphs of {table.n_states.min()} to {table.n_states.max()} states, "
        f"seed {settings.seed}.",
        f"Spectral gaps run from {slowest.spectral_gap:.3g} ({slowest.graph}) to "
        f"{fastest.spectral_gap:.3g} ({fastest.graph}).",
    )
    return BenchResult(table, {"gallery": _figure(kernels, settings.seed)}, notes)


def spectral_gap(kernel: MarkovKernel) -> float:
    """`1 - lambda_2` of `K`: the rate at which the slowest difference decays.

    >>> spectral_gap(cycle(4))
    1.0
    """
    root = np.sqrt(kernel.stationary)
    symmetric = sparse.diags_array(root) @ kernel.matrix @ sparse.diags_array(1 / root)
    symmetric = (symmetric + symmetric.T) / 2
    if kernel.n_states <= 500:
        second = np.linalg.eigvalsh(symmetric.toarray())[-2]
    else:
        second = eigsh(symmetric, k=2, which="LA", return_eigenvectors=False).min()
    return float(round(1 - second, 12))


def layout(name: str, kernel: MarkovKernel, seed: int) -> Array:
    """Where to draw the states, scaled to the unit box: a ring, their coordinates, or springs."""
    n = kernel.n_states
    if name == "complete":
        angle = 2 * np.pi * np.arange(n) / n
        return _unit(np.column_stack([np.cos(angle), np.sin(angle)]))
    if name == "path":
        # A path drawn straight is a hair line; a spiral shows its states.
        turn = np.sqrt(np.linspace(0.06, 1, n))
        angle = 6 * np.pi * turn
        return _unit(np.column_stack([turn * np.cos(angle), turn * np.sin(angle)]))
    springs = ("erdos_renyi", "regular", "block_model", "barabasi_albert", "hamming")
    if kernel.coordinates is not None and name not in springs:
        return _unit(kernel.coordinates[:, :2])
    graph: Any = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(
        zip(kernel.edges.source.tolist(), kernel.edges.target.tolist(), strict=True)
    )
    start = nx.kamada_kawai_layout(graph)
    drawn = nx.spring_layout(graph, pos=start, iterations=30, k=1.6 / math.sqrt(n), seed=seed)
    return _unit(np.array([drawn[x] for x in range(n)], dtype=np.float64))


def _unit(xy: Array) -> Array:
    """Centred and scaled into the box from -1 to 1, each axis by the same factor."""
    centre = (xy.max(axis=0) + xy.min(axis=0)) / 2
    return np.asarray((xy - centre) / max(float(np.ptp(xy, axis=0).max()) / 2, 1e-12))


def _figure(kernels: dict[str, MarkovKernel], seed: int) -> go.Figure:
    n_rows = math.ceil(len(kernels) / _COLUMNS)
    titles = [
        f"<b>{_TITLES[name]}</b><br><span style='font-size:11px;color:#777'>"
        f"{kernel.n_states} states, {kernel.n_edges} edges</span>"
        for name, kernel in kernels.items()
    ]
    figure = make_subplots(
        n_rows,
        _COLUMNS,
        subplot_titles=titles,
        horizontal_spacing=0.02,
        vertical_spacing=0.085,
    )
    for k, (name, kernel) in enumerate(kernels.items()):
        row, column = k // _COLUMNS + 1, k % _COLUMNS + 1
        for trace in _traces(kernel, layout(name, kernel, seed), name == "torus"):
            figure.add_trace(trace, row=row, col=column)
    hidden = {"visible": False, "range": [-1.12, 1.12]}
    figure.update_xaxes(**hidden, constrain="domain")
    figure.update_yaxes(**hidden, constrain="domain")
    for k in range(n_rows * _COLUMNS):
        anchor = "x" if k == 0 else f"x{k + 1}"
        figure.update_yaxes(
            scaleanchor=anchor, scaleratio=1, row=k // _COLUMNS + 1, col=k % _COLUMNS + 1
        )
    figure.update_annotations(font={"size": 14, "color": "#222"})
    figure.update_layout(
        title={
            "text": "<b>Graph families</b>   <span style='font-size:14px;color:#555'>states "
            "coloured by their stationary probability, relative to the mean</span>",
            "x": 0.02,
            "font": {"size": 22, "color": "#222"},
        },
        showlegend=False,
        plot_bgcolor="white",
        paper_bgcolor="white",
        font={"family": "Inter, Helvetica, Arial, sans-serif"},
        margin={"l": 20, "r": 90, "t": 110, "b": 20},
        height=270 * n_rows + 130,
        width=1360,
        coloraxis={
            "colorscale": "Viridis",
            "cmin": math.log2(0.25),
            "cmax": math.log2(4),
            "colorbar": {
                "title": {"text": "π · N", "side": "top"},
                "tickvals": [-2, -1, 0, 1, 2],
                "ticktext": ["≤ ¼", "½", "1", "2", "≥ 4"],
                "thickness": 12,
                "len": 0.45,
                "outlinewidth": 0,
            },
        },
    )
    return figure


def _traces(kernel: MarkovKernel, xy: Array, wrapped: bool) -> list[go.Scatter]:
    """Edges as one broken line, thinner and paler the more there are; states above them."""
    source, target, _ = kernel.edges
    start, end = xy[source], xy[target]
    if wrapped:
        # An edge round the torus is drawn as two stubs that leave the picture.
        far = np.linalg.norm(end - start, axis=1) > 0.6
        direction = np.sign(end[far] - start[far]) * 0.11
        start = np.concatenate([start[~far], start[far], end[far]])
        end = np.concatenate([end[~far], xy[source[far]] - direction, xy[target[far]] + direction])
    broken = np.full((len(start), 3, 2), np.nan)
    broken[:, 0], broken[:, 1] = start, end
    alpha = min(0.55, max(0.16, 45 / source.size))
    lines = go.Scatter(
        x=broken[:, :, 0].ravel(),
        y=broken[:, :, 1].ravel(),
        mode="lines",
        line={"width": 1.0, "color": f"rgba(70, 80, 95, {alpha:.2f})"},
        hoverinfo="skip",
    )
    relative = kernel.stationary * kernel.n_states
    points = go.Scatter(
        x=xy[:, 0],
        y=xy[:, 1],
        mode="markers",
        marker={
            "size": 8,
            "color": np.log2(relative),
            "coloraxis": "coloraxis",
            "line": {"width": 0.8, "color": "white"},
        },
        customdata=np.column_stack([np.arange(kernel.n_states), kernel.stationary]),
        hovertemplate="state %{customdata[0]}<br>π = %{customdata[1]:.4f}<extra></extra>",
    )
    return [lines, points]
