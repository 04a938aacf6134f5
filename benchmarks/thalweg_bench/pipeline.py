"""The pipeline, drawn from a real run: snapshots, potentials, loss, landscape, forecast."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.weak.fit import fit_weak
from thalweg.plots.layout import PALETTE
from thalweg.snapshots import Snapshots, hellinger
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]


_SHOWN = (0, 3, 10)
"""Numbers of the snapshots drawn."""
_TITLES = (
    "1. Snapshots: t = 0",
    "t = 1.5",
    "t = 5",
    "2. Velocity potential, first step",
    "3. Loss against beta",
    "4. Landscape, recovered",
    "Landscape, true",
    "5. Forecast beyond the data",
)


def run(settings: BenchSettings) -> BenchResult:
    """One problem on a triangulation of 60 points, every stage drawn and measured."""
    rng = np.random.default_rng(settings.seed)
    kernel = make_graph("delaunay", 60, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    true = FreeEnergy(centred(np.sin(2 * np.pi * x) * np.cos(1.5 * np.pi * y), kernel), 0.15)
    p0 = kernel.stationary * np.exp(-8 * ((x - 0.3) ** 2 + (y - 0.7) ** 2))
    times, later = np.linspace(0, 5, 11), np.linspace(5, 15, 21)
    path = gradient_flow(kernel, true, p0 / p0.sum(), np.append(times, later[1:])).probabilities
    seen = Snapshots.from_counts(
        times, [rng.multinomial(20_000, p / p.sum()) for p in path[: times.size]]
    )
    settings.progress("fitting", 0, 1)
    smooth = (seen.counts + 0.5) / (seen.counts + 0.5).sum(axis=1, keepdims=True)
    # The JKO condition looks back: the velocity at the later end of the step, towards the earlier.
    psi = TransportGeometry(kernel).tangent(smooth[1], smooth[0] - smooth[1]) / times[1]
    betas = np.geomspace(0.02, 0.8, 25)
    weak = fit_weak(kernel, times, smooth)
    loss = np.array([fit_weak(kernel, times, smooth, beta=b).residual for b in betas])
    model = FreeEnergyRegressor().fit(kernel, seen)
    forecast = model.predict(path[times.size - 1], later).probabilities
    errors = hellinger(path[times.size - 1 :], forecast)
    still = hellinger(path[times.size - 1 :], np.repeat(path[times.size - 1][None], 21, axis=0))
    correlation = float(np.corrcoef(model.potential_, true.potential)[0, 1])
    rows = [
        ("snapshots", "individuals at each of 11 times", 20_000.0),
        ("snapshots", "Hellinger distance to the truth, mean",
         float(np.mean(hellinger(path[: times.size], smooth)))),
        ("potentials", "residual of the first Laplacian solve",
         _residual(kernel, smooth, psi * times[1])),
        ("loss", "beta at the minimum of the weak loss", weak.beta),
        ("landscape", "beta, likelihood", model.beta_),
        ("landscape", "beta, true", true.beta),
        ("landscape", "correlation of V with the truth", correlation),
        ("forecast", "Hellinger distance to the truth, mean over times 5 to 15",
         float(errors.mean())),
        ("forecast", "the same for no movement after 5", float(still.mean())),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["stage", "what", "value"])
    figure = _figure(kernel, smooth, psi, betas, loss, model, true, later, path[10:], forecast)
    notes = (
        f"seed {settings.seed}: correlation of the recovered landscape {correlation:.4f}, beta "
        f"{model.beta_:.3f} for {true.beta:g}, forecast error {errors.mean():.4f} against "
        f"{still.mean():.4f} without movement.",
    )
    return BenchResult(table, {"stages": figure}, notes)


def _residual(kernel: MarkovKernel, p: Array, psi: Array) -> float:
    from thalweg.geometry.operators import transport_laplacian
    from thalweg.mobility import LogMean

    return float(np.abs(transport_laplacian(kernel, p[1], LogMean()) @ psi - (p[0] - p[1])).max())


def _figure(
    kernel: MarkovKernel, p: Array, psi: Array, betas: Array, loss: Array,
    model: FreeEnergyRegressor, true: FreeEnergy, later: Array, path: Array, forecast: Array,
) -> go.Figure:  # fmt: skip
    figure = make_subplots(
        2, 4, subplot_titles=_TITLES, horizontal_spacing=0.05, vertical_spacing=0.14
    )
    top = float(np.log10(p.max()))
    for column, k in enumerate(_SHOWN, start=1):
        _map(figure, kernel, np.log10(p[k]), 1, column, "Viridis", (-4.0, top))
    span = float(np.abs(psi).max())
    _map(figure, kernel, psi, 1, 4, "RdBu", (-span, span))
    figure.add_scatter(
        x=betas, y=loss, mode="lines", line={"color": PALETTE[0]}, showlegend=False, row=2, col=1
    )
    low, high = float(true.potential.min()), float(true.potential.max())
    _map(figure, kernel, model.potential_, 2, 2, "RdYlBu_r", (low, high))
    _map(figure, kernel, true.potential, 2, 3, "RdYlBu_r", (low, high))
    for color, state in zip(PALETTE, np.argsort(-np.abs(path[-1] - path[0]))[:3], strict=False):
        figure.add_scatter(
            x=later, y=path[:, state], mode="markers", row=2, col=4, name=f"state {state}, true",
            marker={"color": color, "size": 5},
        )  # fmt: skip
        figure.add_scatter(
            x=later, y=forecast[:, state], mode="lines", row=2, col=4, line={"color": color},
            name=f"state {state}, forecast",
        )  # fmt: skip
    figure.update_xaxes(type="log", title="beta", row=2, col=1)
    figure.update_yaxes(title="residual", row=2, col=1)
    figure.update_xaxes(title="time", row=2, col=4)
    figure.update_layout(template="plotly_white", width=1400, height=720)
    return figure


def _map(
    figure: go.Figure, kernel: MarkovKernel, values: Array, row: int, column: int, scale: str,
    limits: tuple[float, float],
) -> None:  # fmt: skip
    xy = kernel.coordinates
    assert xy is not None
    source, target, _ = kernel.edges
    lines = np.full((source.size, 3, 2), np.nan)
    lines[:, 0], lines[:, 1] = xy[source], xy[target]
    figure.add_scatter(
        x=lines[:, :, 0].ravel(), y=lines[:, :, 1].ravel(), mode="lines", hoverinfo="skip",
        line={"color": "rgba(90,90,90,0.35)", "width": 1}, showlegend=False, row=row, col=column,
    )  # fmt: skip
    figure.add_scatter(
        x=xy[:, 0], y=xy[:, 1], mode="markers", showlegend=False, row=row, col=column,
        marker={"color": values, "colorscale": scale, "cmin": limits[0], "cmax": limits[1],
                "size": 10, "line": {"width": 0.5, "color": "#444"}},
    )  # fmt: skip
    figure.update_xaxes(visible=False, row=row, col=column)
    figure.update_yaxes(visible=False, row=row, col=column)
