"""Curves of the report: observed against fitted, forecasts with bands, potentials ranked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.learn.forecast import Forecast
from thalweg.plots.layout import PALETTE, busiest, cut, error_bars, extremes
from thalweg.report.svg import (
    INK,
    LINE,
    SOFT,
    Axes,
    Picture,
    Scale,
    apart,
    element,
    number,
    segment,
    table_text,
    words,
    wrap,
)
from thalweg.snapshots import Snapshots

_WIDTH = 760.0
"""Width of a drawing, in pixels,"""
_LEFT, _RIGHT = 66.0, 18.0
"""its margins,"""
_NAMES = 118.0
"""and the width reserved for names beside curves."""
DASHES = ("", "", "", "7 4", "7 4", "2 4", "2 4", "9 3 2 3")
"""Solid, dashed, dotted: curves also differ in print and without colour vision."""


def fitted_curves(
    names: Sequence[str], seen: Snapshots, fine: Array, fitted: Array, time_label: str
) -> Picture:
    """Observed points on fitted lines, with the residuals in standard errors below.

    `fitted` has one row for each time in `fine`.
    """
    times, observed, sizes = seen.times, dense(seen.frequencies), seen.sizes
    chosen = busiest(observed)
    expected = np.column_stack([np.interp(times, fine, fitted[:, x]) for x in chosen])
    noise = np.sqrt(np.maximum(expected * (1 - expected), 1e-300) / sizes[:, None])
    residual = (observed[:, chosen] - expected) / np.maximum(noise, 1e-12)
    highest = float(np.minimum(observed[:, chosen] + 2 * noise, 1.0).max())  # the bars' ends
    top = 1.05 * max(highest, float(fitted[:, chosen].max()), 1e-9)
    width = Scale(float(fine[0]), float(fine[-1]), _LEFT, _WIDTH - _NAMES)
    above = Axes(width, Scale(0.0, top, 300.0, 16.0), "", "share of the population")
    reach = float(np.clip(np.ceil(np.abs(residual).max()), 3.0, 20.0))
    below = Axes(width, Scale(-reach, reach, 440.0, 344.0), time_label, "residual / s.e.")
    parts = above.draw() + below.draw()
    parts.append(_band(below, fine[[0, -1]], np.full(2, -2.0), np.full(2, 2.0), "#8a8a8a"))
    for k, x in enumerate(chosen):
        colour = PALETTE[k]
        parts.append(_polyline(above, fine, fitted[:, x], colour, DASHES[k]))
        for t, y, e in zip(times, observed[:, x], noise[:, k], strict=True):
            at = above.x(float(t))
            low, high = above.y(max(y - 2 * e, 0.0)), above.y(min(y + 2 * e, top))
            parts.append(segment(at, low, at, high, colour))
            parts.append(element("circle", cx=at, cy=above.y(float(y)), r=3.6, fill=colour))
        for t, r in zip(times, np.clip(residual[:, k], -reach, reach), strict=True):
            at, height = below.x(float(t)), below.y(float(r))
            parts.append(element("circle", cx=at, cy=height, r=3, fill=colour))
    parts += _end_names(above, [names[x] for x in chosen], fitted[-1, chosen])
    alt = (
        "Share of the population in the states that changed most: observed points, fitted lines, "
        "and residuals in standard errors of counting."
    )
    rows = [
        (t, names[x], observed[i, x], expected[i, k], noise[i, k])
        for i, t in enumerate(times)
        for k, x in enumerate(chosen)
    ]
    data = table_text(["time", "state", "observed", "fitted", "standard_error"], rows)
    drawing = wrap(_WIDTH, 490.0, parts, alt)
    return Picture("observed-and-fitted", drawing, alt, data)


def forecast_curves(
    names: Sequence[str], forecast: Forecast, start: float, time_label: str
) -> Picture:
    """The forecast in the states that change most, with bands; `start` marks the last snapshot."""
    times, p, lower, upper = forecast.times, forecast.probabilities, forecast.lower, forecast.upper
    chosen, banded = busiest(p), bool(np.isfinite(lower).all())
    highest = max(p[:, chosen].max(), upper[:, chosen].max() if banded else 0.0)
    axes = Axes(
        Scale(float(times[0]), float(times[-1]), _LEFT, _WIDTH - _NAMES),
        Scale(0.0, 1.05 * float(highest), 330.0, 16.0),
        time_label,
        "share of the population",
    )
    parts = axes.draw()
    for k, x in enumerate(chosen):
        if banded:
            parts.append(_band(axes, times, lower[:, x], upper[:, x], PALETTE[k]))
        parts.append(_polyline(axes, times, p[:, x], PALETTE[k], DASHES[k]))
    if axes.x.low < start < axes.x.high:
        at = axes.x(start)
        parts.append(segment(at, 16, at, 330, SOFT, stroke_dasharray="2 4"))
        parts.append(words(at + 6, 28, "last snapshot"))
    parts += _end_names(axes, [names[x] for x in chosen], p[-1, chosen])
    alt = "Forecast of the share of the population in the states that change most, with bands."
    rows = [
        (t, names[x], p[i, x], lower[i, x], upper[i, x])
        for i, t in enumerate(times)
        for x in chosen
    ]
    data = table_text(["time", "state", "share", "lower", "upper"], rows)
    return Picture("forecast", wrap(_WIDTH, 380.0, parts, alt), alt, data)


def ranked(names: Sequence[str], values: Array, stderr: Array | None) -> Picture:
    """The potential, ranked, with bars of two standard errors; the extremes if states are many."""
    order = extremes(values, 40)
    bars = np.zeros(values.size) if stderr is None else error_bars(stderr)
    low = float((values[order] - bars[order]).min())
    high = float((values[order] + bars[order]).max())
    pad = 0.03 * (high - low if high > low else 1.0)
    left = min(24.0 + 7.2 * max(len(names[x]) for x in order), 260.0)
    bottom = 20.0 + 20.0 * order.size
    axes = Axes(
        Scale(low - pad, high + pad, left, _WIDTH - _RIGHT),
        Scale(0.0, float(order.size), bottom, 20.0),
        "potential V (mean zero)",
        "",
    )
    # The vertical axis has the names of the states in place of ticks.
    parts = [part for part in axes.draw() if 'text-anchor="end"' not in part]
    for k, x in enumerate(order):
        y = axes.y(k + 0.5)
        a, b = axes.x(values[x] - bars[x]), axes.x(values[x] + bars[x])
        at = axes.x(float(values[x]))
        parts += [
            segment(left, y, _WIDTH - _RIGHT, y, LINE),
            words(left - 8, y + 4, cut(names[x], 32), INK, text_anchor="end"),
            segment(float(a), y, float(b), y, PALETTE[0], stroke_width=2),
            element("circle", cx=at, cy=y, r=4, fill=PALETTE[0]),
        ]
    alt = "The potential of each state, ranked, with bars of two standard errors."
    if order.size < values.size:
        alt = "The 20 lowest and 20 highest states, with two standard errors."
    shown = np.full(values.size, np.nan) if stderr is None else stderr
    rows = [(names[x], values[x], shown[x]) for x in np.argsort(values)]
    data = table_text(["state", "potential", "stderr"], rows)
    return Picture("potential-ranked", wrap(_WIDTH, bottom + 54, parts, alt), alt, data)


def line(x: Array, y: Array, x_label: str, y_label: str, name: str) -> Picture:
    """One curve."""
    low, high = float(y.min()), float(y.max())
    pad = 0.05 * (high - low if high > low else 1.0)
    axes = Axes(
        Scale(float(x[0]), float(x[-1]), _LEFT, _WIDTH - _RIGHT),
        Scale(low - pad, high + pad, 250.0, 16.0),
        x_label,
        y_label,
    )
    parts = [*axes.draw(), _polyline(axes, x, y, PALETTE[0])]
    alt = f"{y_label} against {x_label}, from {number(float(y[0]))} to {number(float(y[-1]))}."
    data = table_text([x_label, y_label], zip(x, y, strict=True))
    return Picture(name, wrap(_WIDTH, 300.0, parts, alt), alt, data)


def _polyline(axes: Axes, x: Array, y: Array, colour: str, dashes: str = "") -> str:
    return element(
        "polyline", points=axes.points(x, y), fill="none", stroke=colour, stroke_width=2,
        stroke_linejoin="round", stroke_dasharray=dashes or None,
    )  # fmt: skip


def _end_names(axes: Axes, names: Sequence[str], ends: Array) -> list[str]:
    """Names at the right ends of curves, moved apart, so that no reader depends on colours."""
    order = np.argsort(-ends, kind="stable")
    heights = apart([axes.y(ends[k]) + 4 for k in order], 13.0, axes.y.start + 10)
    return [
        words(axes.x.stop + 8, height, cut(names[k], 18), PALETTE[k], font_size=12)
        for k, height in zip(order, heights, strict=True)
    ]


def _band(axes: Axes, x: Array, low: Array, high: Array, colour: str) -> str:
    edge = axes.points(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
    return element("polygon", points=edge, fill=colour, fill_opacity="0.18")
