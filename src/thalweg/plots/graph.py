"""A graph with colours on its states: landscapes, and flows in time with a slider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.geometry import Geodesic
from thalweg.kernel import MarkovKernel
from thalweg.plots.aggregate import view
from thalweg.plots.layout import MOST_EDGES, cut, state_texts, strongest_edges

# Cividis and viridis are readable without colour vision and in print.
POPULATION_SCALE = "Viridis"
LANDSCAPE_SCALE = "Cividis"


def landscape(
    kernel: MarkovKernel,
    potential: ArrayLike,
    *,
    title: str = "Energy landscape",
    stderr: ArrayLike | None = None,
) -> go.Figure:
    """The graph with the potential as colour; hover shows name, value and error.

    A graph of many thousand states is drawn as patches, each with the mean over its states.
    """
    shown = view(kernel)
    values = shown.mean(np.asarray(potential, dtype=np.float64))
    kernel, xy = shown.kernel, shown.xy
    text = [f"{name}<br>V = {v:.4g}" for name, v in zip(state_names(kernel), values, strict=True)]
    if stderr is not None:
        errors = shown.mean(np.asarray(stderr, dtype=np.float64))
        text = [f"{t} ± {e:.2g}" for t, e in zip(text, errors, strict=True)]
    figure = go.Figure([_edges(kernel, xy), _states(xy, values, text, LANDSCAPE_SCALE, "V")])
    return _styled(figure, title)


def flow(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    *,
    title: str = "Population over time",
) -> go.Figure:
    """The population in time: a slider and a play button move the colours.

    Colour is the density `p / pi` on a logarithmic scale: 1 is the resting value of pure diffusion.
    """
    drawn = view(kernel)
    kernel, xy = drawn.kernel, drawn.xy
    whole = np.asarray(probabilities, dtype=np.float64)
    p, (shown, low, top) = drawn.total(whole), drawn.densities(whole)
    names = state_names(kernel)

    def states(k: int) -> go.Scattergl | go.Scatter:
        text = [f"{name}<br>p = {q:.3g}" for name, q in zip(names, p[k], strict=True)]
        trace = _states(xy, shown[k], text, POPULATION_SCALE, "density")
        trace.marker.update(cmin=low, cmax=top)
        ticks = np.arange(np.ceil(low), np.floor(top) + 1)
        trace.marker.colorbar.update(tickvals=ticks, ticktext=[f"{10.0**tick:g}" for tick in ticks])
        return trace

    frames = [go.Frame(data=[states(k)], traces=[1], name=f"{k}") for k in range(len(p))]
    figure = go.Figure([_edges(kernel, xy), states(0)], frames=frames)
    _styled(figure, title)
    figure.update_layout(
        updatemenus=[_play_buttons()],
        sliders=[_slider([f"{time:.4g}" for time in np.asarray(times)])],
        margin={"b": 150},
    )
    return figure


def geodesic(
    kernel: MarkovKernel,
    path: Geodesic,
    *,
    n_steps: int = 21,
    title: str | None = None,
) -> go.Figure:
    """The population along a geodesic, with a slider: 0 is one end, 1 the other.

    >>> from thalweg.geometry import TransportGeometry
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> path = TransportGeometry(kernel).geodesic([0.8, 0.1, 0.1], [0.1, 0.1, 0.8])
    >>> len(geodesic(kernel, path, n_steps=5).frames)
    5
    """
    points = path.at(np.linspace(0, 1, n_steps))
    if title is None:
        title = f"Geodesic of length {path.distance:.4g}"
    return flow(kernel, points.times, points.probabilities, title=title)


def gallery(
    kernel: MarkovKernel,
    values: Mapping[str, ArrayLike],
    *,
    columns: int = 3,
    label: str = "V",
    title: str = "",
) -> go.Figure:
    """Several quantities per state side by side on one colour scale, each under its name.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> len(gallery(kernel, {"truth": [0.0, 1.0], "fit": [0.1, 0.9]}).data)
    4
    """
    from plotly.subplots import make_subplots

    if not values:
        raise InputError("gallery got nothing to draw; give it names and values, as a mapping.")
    drawn = view(kernel)
    names = state_names(drawn.kernel)
    pictures = {
        name: drawn.mean(np.asarray(value, dtype=np.float64)) for name, value in values.items()
    }
    low = min(float(v.min()) for v in pictures.values())
    high = max(float(v.max()) for v in pictures.values())
    width = min(columns, len(pictures))
    height = -(-len(pictures) // width)
    titles = [escape(str(name), quote=False) for name in pictures]
    figure = make_subplots(
        height, width, subplot_titles=titles, horizontal_spacing=0.03, vertical_spacing=0.08
    )
    for k, v in enumerate(pictures.values()):
        text = [f"{name}<br>{label} = {value:.4g}" for name, value in zip(names, v, strict=True)]
        states = _states(drawn.xy, v, text, LANDSCAPE_SCALE, label)
        states.marker.update(cmin=low, cmax=high, showscale=k == 0)
        states.marker.size = max(3.0, states.marker.size / width)
        where = {"row": k // width + 1, "col": k % width + 1}
        figure.add_trace(_edges(drawn.kernel, drawn.xy), **where)
        figure.add_trace(states, **where)
    _styled(figure, title)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    for k in range(len(pictures)):
        number = "" if k == 0 else str(k + 1)
        figure.update_layout({f"yaxis{number}": {"scaleanchor": f"x{number}"}})
    return figure.update_layout(height=min(1400, 120 + 360 * height))


def state_names(kernel: MarkovKernel) -> list[str]:
    """Names or numbers of the states, escaped: plotly reads a subset of HTML in labels."""
    return [escape(text, quote=False) for text in state_texts(kernel)]


def short_names(kernel: MarkovKernel) -> list[str]:
    """Names short enough for legends and axes, still different from each other."""
    if kernel.names is None:
        return state_names(kernel)
    short = [cut(str(name), 28) for name in kernel.names]
    count = Counter(short)
    apart = [name if count[name] == 1 else f"{name} ({k})" for k, name in enumerate(short)]
    return [escape(name, quote=False) for name in apart]


def _edges(kernel: MarkovKernel, xy: Array) -> go.Scatter | go.Scattergl:
    source, target = strongest_edges(kernel, MOST_EDGES)
    lines = np.full((source.size, 3, 2), np.nan)
    lines[:, 0], lines[:, 1] = xy[source], xy[target]
    kind = go.Scattergl if source.size > 5000 else go.Scatter
    return kind(
        x=lines[:, :, 0].ravel(),
        y=lines[:, :, 1].ravel(),
        mode="lines",
        line={"width": 0.6, "color": "rgba(130,130,140,0.55)"},
        hoverinfo="skip",
        showlegend=False,
    )


def _states(
    xy: Array, values: Array, text: Sequence[str], scale: str, label: str
) -> go.Scatter | go.Scattergl:
    n = len(values)
    kind = go.Scattergl if n > 5000 else go.Scatter
    return kind(
        x=xy[:, 0],
        y=xy[:, 1],
        mode="markers",
        text=list(text),
        hoverinfo="text",
        showlegend=False,
        marker={
            "size": float(np.clip(430 / np.sqrt(n), 4, 24)),
            "color": values,
            "colorscale": scale,
            "line": {"width": 0.5 if n < 5000 else 0, "color": "rgba(128,128,128,0.55)"},
            "colorbar": {"title": {"text": label}, "thickness": 14, "outlinewidth": 0},
        },
    )


def _styled(figure: go.Figure, title: str) -> go.Figure:
    return figure.update_layout(
        title={"text": title, "x": 0.02},
        xaxis={"visible": False},
        yaxis={"visible": False, "scaleanchor": "x"},
        template="plotly_white",
        margin={"l": 20, "r": 20, "t": 60, "b": 20},
        font={"family": "system-ui, sans-serif"},
        height=620,
    )


def _play_buttons() -> dict[str, Any]:
    def button(label: str, target: Any, duration: int) -> dict[str, Any]:
        options = {
            "frame": {"duration": duration, "redraw": False},
            "mode": "immediate",
            "fromcurrent": duration > 0,
            "transition": {"duration": 0},
        }
        return {"label": label, "method": "animate", "args": [target, options]}

    return {
        "type": "buttons",
        "direction": "left",
        "x": 0.0,
        "y": -0.02,
        "xanchor": "left",
        "yanchor": "top",
        "pad": {"t": 8, "r": 8},
        "showactive": False,
        "bgcolor": "rgba(128,128,128,0.12)",
        "bordercolor": "rgba(128,128,128,0.5)",
        "buttons": [button("▶ play", None, 350), button("❚❚ pause", [None], 0)],
    }


def _slider(labels: Sequence[str]) -> dict[str, Any]:
    options = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}}
    return {
        "x": 0.0,
        "len": 1.0,
        "y": -0.1,
        "yanchor": "top",
        "currentvalue": {"prefix": "time ", "xanchor": "right"},
        "bgcolor": "rgba(128,128,128,0.3)",
        "bordercolor": "rgba(128,128,128,0.5)",
        "tickcolor": "rgba(128,128,128,0.5)",
        "pad": {"t": 8},
        "steps": [
            {"label": label, "method": "animate", "args": [[f"{k}"], options]}
            for k, label in enumerate(labels)
        ],
    }
