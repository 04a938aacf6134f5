"""The same pictures with matplotlib: `ax=`, `color=`, `save=` and `show=` as in scanpy.

Names and leading arguments are those of `thalweg.plots`, which draws with plotly. Every function
returns the axes that it drew on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from thalweg._optional import optional
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.geometry import Geodesic
from thalweg.kernel import MarkovKernel
from thalweg.plots.aggregate import view
from thalweg.plots.layout import (
    ARROW,
    MOST_EDGES,
    PALETTE,
    busiest,
    cut,
    error_bars,
    extremes,
    fitted_series,
    gridded,
    state_texts,
    strongest_edges,
    strongest_fluxes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fit", "flow", "forecast", "geodesic", "landscape", "potential", "quiver", "scatter"]

Path = str | os.PathLike[str]

_NAMED = 40
"""Largest number of states at which all names are written."""


class Shown(TypedDict, total=False):
    """Options of every function here: what happens to the picture."""

    save: Path | None
    """File to write; its ending chooses the format."""
    show: bool | None
    """Whether to show the figure; by default where matplotlib is interactive."""


class Place(Shown, total=False):
    """Options of functions that draw on one pair of axes."""

    ax: Axes | None
    """A new figure by default."""


def landscape(
    kernel: MarkovKernel,
    potential: ArrayLike,
    *,
    fluxes: ArrayLike | None = None,
    title: str = "Energy landscape",
    label: str = "V",
    color: ArrayLike | None = None,
    cmap: str = "cividis",
    **place: Unpack[Place],
) -> Axes:
    """The graph with the potential as colour, names where there is room, arrows along fluxes.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    potential : array
        Potential of each state.
    fluxes : array, optional
        Net flux from source to target of each edge; the strongest become arrows.
    title : str
        Title of the picture.
    label : str
        Label of the colours.
    color : array, optional
        A value per state to colour by, in place of the potential.
    cmap : str
        A matplotlib colour map.
    **place
        `ax`: where to draw, a new figure by default. `save`: a file to write, whose ending chooses
        the format. `show`: whether to show the figure, by default where matplotlib is interactive.
    """
    shown = view(kernel)
    values = shown.mean(np.asarray(potential if color is None else color, dtype=np.float64))
    axes = _axes(place, title)
    xy, n = shown.xy, shown.kernel.n_states
    _edges(axes, shown.kernel, xy)
    points = axes.scatter(
        xy[:, 0], xy[:, 1], c=values, cmap=cmap, s=float(np.clip(6000 / n, 6, 320)),
        edgecolors="#57606a", linewidths=0.6 if n < 500 else 0.0, zorder=3,
    )  # fmt: skip
    axes.get_figure().colorbar(points, ax=axes, label=label, shrink=0.8)
    if fluxes is not None and shown.label is None:
        _arrows(axes, kernel, xy, np.asarray(fluxes, dtype=np.float64))
    if shown.label is None and n <= _NAMED:
        # States without names have numbers: "state 7" beside each would hide the graph.
        texts = _names(kernel) if kernel.names else [str(x) for x in range(n)]
        for (x, y), name in zip(xy, texts, strict=True):
            axes.annotate(
                name, (x, y), xytext=(6, 6), textcoords="offset points", fontsize=8, zorder=5
            )
    axes.set_aspect("equal")
    axes.margins(0.08)
    axes.set_axis_off()
    return _finish(axes, place)


def scatter(
    xy: ArrayLike,
    values: ArrayLike,
    *,
    labels: tuple[str, str] = ("", ""),
    title: str = "Energy landscape",
    label: str = "V",
    cmap: str = "cividis",
    **place: Unpack[Place],
) -> Axes:
    """Points in an embedding, coloured by numbers or by categories.

    Parameters
    ----------
    xy : array, shape (points, 2)
        Where the points are.
    values : array
        A number or a category per point.
    labels : tuple of str
        Labels of the two axes.
    title : str
        Title of the picture.
    label : str
        Label of the colours.
    cmap : str
        A matplotlib colour map.
    **place
        As for `landscape`.
    """
    places, colours = np.asarray(xy, dtype=np.float64), np.asarray(values)
    axes = _axes(place, title)
    size = float(np.clip(120_000 / max(len(places), 1), 2, 40))
    if colours.dtype.kind in "biuf":
        points = axes.scatter(*places[:, :2].T, c=colours, cmap=cmap, s=size, linewidths=0)
        axes.get_figure().colorbar(points, ax=axes, label=label, shrink=0.8)
    else:
        kinds = list(dict.fromkeys(colours.astype(str)))
        for k, kind in enumerate(kinds):
            here = places[colours.astype(str) == kind]
            colour = PALETTE[k % len(PALETTE)]
            axes.scatter(*here[:, :2].T, color=colour, s=size, linewidths=0, label=kind)
        axes.legend(title=label, frameon=False, markerscale=2)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_xticks([])
    axes.set_yticks([])
    return _finish(axes, place)


def quiver(
    axes: Axes,
    xy: ArrayLike,
    velocity: ArrayLike,
    *,
    n_cells: int = 18,
    **place: Unpack[Place],
) -> Axes:
    """Arrows of velocities, averaged over a grid, on axes that hold the points already."""
    centre, arrows = gridded(xy, velocity, n_cells)
    axes.quiver(
        *centre.T, *arrows.T, angles="xy", scale_units="xy", scale=1, color=ARROW, width=0.004,
        edgecolor="white", linewidth=0.4, zorder=4,
    )  # fmt: skip
    return _finish(axes, place)


def flow(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    *,
    title: str = "Population over time",
    most: int = 6,
    ax: Sequence[Axes] | None = None,
    cmap: str = "viridis",
    **shown: Unpack[Shown],
) -> list[Axes]:
    """The population on the graph at up to `most` times, side by side on one colour scale.

    Colour is the share relative to pure diffusion at rest, on a logarithmic scale.
    """
    plt = _pyplot()
    t = np.asarray(times, dtype=np.float64)
    p = np.asarray(probabilities, dtype=np.float64)
    rows = np.unique(np.linspace(0, t.size - 1, min(most, t.size)).round().astype(int))
    drawn = view(kernel)
    density, low, high = drawn.densities(p[rows])
    if ax is None:
        width = len(rows) if len(rows) <= 4 else 3
        height = -(-len(rows) // width)
        figure, grid = plt.subplots(height, width, figsize=(3.6 * width, 3.4 * height))
        every = list(np.atleast_1d(grid).ravel())
        figure.suptitle(title)
    else:
        every = list(ax)
        if len(every) < len(rows):
            raise InputError(f"ax has {len(every)} axes for {len(rows)} times; give one per time.")
    for axes, row, values in zip(every, rows, density, strict=False):
        _edges(axes, drawn.kernel, drawn.xy)
        points = axes.scatter(
            *drawn.xy.T, c=values, cmap=cmap, vmin=low, vmax=high, zorder=3,
            s=float(np.clip(2500 / len(values), 4, 120)),
        )  # fmt: skip
        axes.set_title(f"time {t[row]:.3g}", fontsize=10)
        axes.set_aspect("equal")
    for axes in every:
        axes.set_axis_off()
    label = "log10 of the share relative to rest"
    every[0].get_figure().colorbar(points, ax=every, label=label, shrink=0.8)
    _finish(every[0], {"ax": None if ax is None else every[0], **shown})
    return every


def geodesic(
    kernel: MarkovKernel, path: Geodesic, *, n_steps: int = 6, title: str | None = None, **more: Any
) -> list[Axes]:
    """The population along a geodesic at `n_steps` points; further options as for `flow`."""
    points = path.at(np.linspace(0, 1, n_steps))
    name = f"Geodesic of length {path.distance:.4g}" if title is None else title
    return flow(kernel, points.times, points.probabilities, title=name, most=n_steps, **more)


def fit(
    kernel: MarkovKernel,
    times: ArrayLike,
    observed: ArrayLike,
    fitted: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    fitted_times: ArrayLike | None = None,
    most: int = 8,
    color: Sequence[str] = PALETTE,
    **place: Unpack[Place],
) -> Axes:
    """Share of the population in the states that changed most: points observed, lines fitted.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    times : array
        Times of the snapshots.
    observed : array
        Their frequencies, one row per time.
    fitted : array
        Fitted shares, one row per time.
    sizes : array, optional
        Individuals per snapshot: points get bars of two standard errors of counting.
    fitted_times : array, optional
        Times of `fitted`, if not `times`.
    most : int
        Largest number of states drawn.
    color : sequence of str
        Colours of the states.
    **place
        As for `landscape`.
    """
    axes, names = _axes(place, "Observed (points) and fitted (lines)"), _names(kernel)
    chosen = fitted_series(times, observed, fitted, sizes, fitted_times, most)
    for k, (x, points, curve) in enumerate(chosen):
        colour = color[k % len(color)]
        axes.plot(*curve, color=colour, label=names[x])
        t, share, bars = points
        axes.errorbar(t, share, yerr=bars, fmt="o", color=colour, markersize=4, elinewidth=1)
    return _curves(axes, place)


def forecast(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    *,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    start: float | None = None,
    most: int = 8,
    color: Sequence[str] = PALETTE,
    **place: Unpack[Place],
) -> Axes:
    """The forecast in the states that change most, with bands.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    times : array
        Times of the forecast.
    probabilities : array
        The forecast, one row per time.
    lower : array, optional
        Lower bounds of its bands.
    upper : array, optional
        Upper bounds of its bands.
    start : float, optional
        Time of the last snapshot, to be marked.
    most : int
        Largest number of states drawn.
    color : sequence of str
        Colours of the states.
    **place
        As for `landscape`.
    """
    t, p = np.asarray(times, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    axes, names = _axes(place, "Forecast"), _names(kernel)
    for k, x in enumerate(busiest(p, most)):
        colour = color[k % len(color)]
        if lower is not None and upper is not None:
            low, high = np.asarray(lower)[:, x], np.asarray(upper)[:, x]
            axes.fill_between(t, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(t, p[:, x], color=colour, label=names[x])
    if start is not None:
        axes.axvline(start, color="#57606a", linestyle=":", linewidth=1)
        axes.annotate(
            "last snapshot", (start, 0), xycoords=("data", "axes fraction"), xytext=(4, 4),
            textcoords="offset points", fontsize=8, color="#57606a",
        )  # fmt: skip
    return _curves(axes, place)


def potential(
    kernel: MarkovKernel,
    values: ArrayLike,
    stderr: ArrayLike | None = None,
    *,
    most: int = 40,
    color: str = PALETTE[0],
    **place: Unpack[Place],
) -> Axes:
    """The potential, ranked, with bars of two standard errors; the extremes if states are many."""
    v = np.asarray(values, dtype=np.float64)
    order = extremes(v, most)
    names, y = _names(kernel), np.arange(order.size)
    axes = _axes(place, "Potential by state", size=(6.4, max(2.4, 0.24 * order.size)))
    bars = None if stderr is None else error_bars(stderr)[order]
    axes.errorbar(v[order], y, xerr=bars, fmt="o", color=color, markersize=4, elinewidth=1.4)
    axes.set_yticks(y, [names[x] for x in order], fontsize=8)
    axes.set_xlabel("V (mean zero)")
    axes.grid(axis="x", alpha=0.3)
    return _finish(axes, place)


def _pyplot() -> Any:
    optional("matplotlib", extra="plots", what="drawing with matplotlib")
    import matplotlib.pyplot as plt

    return plt


def _axes(place: Place, title: str, size: tuple[float, float] = (6.4, 5.0)) -> Any:
    ax = place.get("ax")
    axes = _pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax
    axes.set_title(title, loc="left")
    return axes


def _names(kernel: MarkovKernel) -> list[str]:
    # A dollar sign would begin a formula.
    return [cut(text.replace("$", r"\$"), 24) for text in state_texts(kernel)]


def _edges(axes: Any, kernel: MarkovKernel, xy: Array) -> None:
    from matplotlib.collections import LineCollection

    source, target = strongest_edges(kernel, MOST_EDGES)
    lines = np.stack([xy[source], xy[target]], axis=1)
    axes.add_collection(LineCollection(list(lines), colors="#c4cad0", linewidths=0.7, zorder=1))


def _arrows(axes: Any, kernel: MarkovKernel, xy: Array, fluxes: Array) -> None:
    for a, b, size in strongest_fluxes(kernel, fluxes):
        style = {"arrowstyle": "-|>", "color": ARROW, "shrinkA": 7, "shrinkB": 7}
        style["linewidth"] = 0.6 + 2.2 * float(np.sqrt(size))
        axes.annotate("", xy=xy[b], xytext=xy[a], arrowprops=style, zorder=4)


def _curves(axes: Any, place: Place) -> Any:
    axes.set_xlabel("time")
    axes.set_ylabel("share of the population")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return _finish(axes, place)


def _finish(axes: Any, place: Place) -> Any:
    save, show = place.get("save"), place.get("show")
    if save is not None:
        axes.get_figure().savefig(save, dpi=200, bbox_inches="tight")
    plt, own = _pyplot(), place.get("ax") is None and save is None
    if show or (show is None and own and plt.isinteractive()):
        plt.show()
    return axes
