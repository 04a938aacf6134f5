"""Curves: observed against fitted, forecasts with bands, potentials ranked with error bars."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from thalweg.kernel import MarkovKernel
from thalweg.plots.graph import short_names
from thalweg.plots.layout import PALETTE, busiest, error_bars, extremes, fitted_series


def fit(
    kernel: MarkovKernel,
    times: ArrayLike,
    observed: ArrayLike,
    fitted: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    fitted_times: ArrayLike | None = None,
    most: int = 8,
) -> go.Figure:
    """Share of the population in the states that changed most: points observed, lines fitted.

    `fitted_times`: the times of `fitted`, if not `times`; a finer grid makes smooth lines. With the
    sample `sizes`, points carry bars of two standard errors of counting.
    """
    figure = go.Figure()
    names = short_names(kernel)
    chosen = fitted_series(times, observed, fitted, sizes, fitted_times, most)
    for color, (x, (t, seen, noise), (fine, curve)) in zip(cycle(PALETTE), chosen, strict=False):
        bars = None
        if noise is not None:
            bars = {"type": "data", "array": noise, "thickness": 1, "width": 0}
        figure.add_scatter(
            x=fine, y=curve, mode="lines", line={"color": color}, name=names[x], legendgroup=str(x),
        )  # fmt: skip
        figure.add_scatter(
            x=t, y=seen, mode="markers", marker={"color": color, "size": 7}, error_y=bars,
            legendgroup=str(x), showlegend=False, name=names[x],
        )  # fmt: skip
    return _axes(figure, "time", "share of the population", "Observed (points) and fitted (lines)")


def forecast(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    *,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    start: float | None = None,
    most: int = 8,
) -> go.Figure:
    """The forecast in the states that change most, with bands; `start` marks the last snapshot."""
    t, p = np.asarray(times, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    figure = go.Figure()
    names = short_names(kernel)
    for color, x in zip(cycle(PALETTE), busiest(p, most), strict=False):
        if lower is not None and upper is not None:
            low, high = np.asarray(lower)[:, x], np.asarray(upper)[:, x]
            figure.add_scatter(
                x=np.concatenate([t, t[::-1]]), y=np.concatenate([high, low[::-1]]), fill="toself",
                fillcolor=faint(color, 0.18), line={"width": 0}, hoverinfo="skip", showlegend=False,
                legendgroup=str(x),
            )  # fmt: skip
        figure.add_scatter(
            x=t, y=p[:, x], mode="lines", line={"color": color}, name=names[x], legendgroup=str(x)
        )
    if start is not None:
        figure.add_vline(x=start, line={"dash": "dot", "width": 1}, annotation_text="last snapshot")
    return _axes(figure, "time", "share of the population", "Forecast")


def potential(
    kernel: MarkovKernel, values: ArrayLike, stderr: ArrayLike | None = None, *, most: int = 60
) -> go.Figure:
    """The potential, ranked, with bars of two standard errors; the extremes if states are many."""
    v = np.asarray(values, dtype=np.float64)
    order, title = extremes(v, most), "Potential by state"
    if v.size > most:
        title = f"Potential: the {most // 2} lowest and {most // 2} highest states"
    bars = None
    if stderr is not None:
        bars = {"type": "data", "array": error_bars(stderr)[order], "thickness": 1, "width": 0}
    names = short_names(kernel)
    figure = go.Figure(
        go.Scatter(
            x=v[order], y=[names[x] for x in order], mode="markers", error_x=bars,
            marker={"color": PALETTE[0], "size": 7},
        )
    )  # fmt: skip
    figure = _axes(figure, "V (mean zero)", "", title)
    figure.update_layout(height=max(320, 18 * order.size + 120))
    return figure.update_yaxes(type="category", automargin=True)


def faint(color: str, alpha: float) -> str:
    """A transparent `color`.

    >>> faint("#0072B2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    r, g, b = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({r},{g},{b},{alpha:g})"


def _axes(figure: go.Figure, x: str, y: str, title: str) -> go.Figure:
    return figure.update_layout(
        title={"text": title, "x": 0.02},
        xaxis_title=x,
        yaxis_title=y,
        template="plotly_white",
        font={"family": "system-ui, sans-serif"},
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "y": -0.18, "yanchor": "top", "x": 0},
        height=500,
    )
