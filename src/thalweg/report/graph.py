"""The graph in the report: landscape with names and arrows, and the population in time."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import numpy as np
from scipy.spatial import cKDTree

from thalweg._types import Array
from thalweg.kernel import MarkovKernel
from thalweg.plots.aggregate import View, view
from thalweg.plots.layout import PALETTE, cut, state_texts, strongest_edges, strongest_fluxes
from thalweg.report.svg import (
    INK,
    PAPER,
    SOFT,
    Picture,
    Scale,
    colours,
    element,
    levels,
    number,
    palette,
    segment,
    table_text,
    ticks,
    words,
    wrap,
)

Box = tuple[float, float, float, float]

_SIDE = 620.0
"""Width of the drawing of the graph, in pixels,"""
_PAD = 46.0
"""its margin on all sides,"""
_BAR = 96.0
"""and the width of the colour bar beside it."""
_MOST_EDGES = 6000
"""Largest number of edges drawn: more would be a grey blur of several megabytes."""
_MOST_MARKERS = 2500
"""Largest number of markers: a graph with more states is drawn as patches."""
_NAMED = 60
"""Largest number of states at which every name that fits is written; above it, twelve are."""
_CROWDED = 400
"""Number of states above which four are named, since names then cover other states."""


def drawn(kernel: MarkovKernel) -> View:
    """The kernel as the report draws it: merged into patches where states are many."""
    return view(kernel, _MOST_MARKERS)


def landscape_picture(
    shown: View,
    values: Array,
    *,
    stderr: Array | None = None,
    fluxes: Array | None = None,
    name: str = "landscape",
    label: str = "V",
) -> Picture:
    """The graph coloured by the potential, with names, and arrows along the strongest fluxes.

    Parameters
    ----------
    shown : View
        What `drawn` made of the kernel.
    values : array
        Potential of each state of the whole kernel.
    stderr : array, optional
        Its standard errors.
    fluxes : array, optional
        Net flux from source to target of each edge; only for a kernel that is drawn whole.
    name : str
        Name of the picture.
    label : str
        Label of the colours.
    """
    v = shown.mean(values)
    low, high = float(v.min()), float(v.max())
    points, radius, height = _layout(shown)
    texts = state_texts(shown.kernel)
    hover = [f"{t}: {label} = {number(float(x))}" for t, x in zip(texts, v, strict=True)]
    if stderr is not None:
        hover = [f"{t} ± {e:.2g}" for t, e in zip(hover, shown.mean(stderr), strict=True)]
    fills = colours(v, low, high, "landscape")
    alt = f"The graph of {values.size} states, coloured by {label}."
    parts = [_edges(shown.kernel, points), *_nodes(points, radius, fills, hover)]
    if fluxes is not None:
        parts += _arrows(shown.kernel, points, radius, fluxes)
        alt += " Arrows show the strongest net movement."
    parts += _labels(points, radius, texts, v)
    parts += _colour_bar("landscape", low, high, height, label)
    errors = np.full(values.size, np.nan) if stderr is None else stderr
    rows = zip(shown.names, values, errors, strict=True)
    data = table_text(["state", label, "stderr"], rows)
    return Picture(name, wrap(_SIDE + _BAR, height, parts, alt), alt, data)


def moving_picture(shown: View, times: Array, p: Array) -> Picture:
    """The population in time: one set of colours per frame, chosen by a slider on the page."""
    density, low, high = shown.densities(p)
    points, radius, height = _layout(shown)
    texts = state_texts(shown.kernel)
    fills = colours(density[0], low, high, "population")
    parts = [_edges(shown.kernel, points), *_nodes(points, radius, fills, texts)]
    parts += _labels(points, radius, texts, -shown.total(p[-1]))
    caption = "share, relative to pure diffusion at rest"
    parts += _colour_bar("population", low, high, height, caption, powers=True)
    alt = f"The population on {p.shape[1]} states at {len(times)} times; the slider moves it."
    frames = {
        "labels": [f"time {number(float(t))}" for t in times],
        "colours": palette("population"),
        "levels": base64.b64encode(levels(density, low, high).tobytes()).decode("ascii"),
    }
    order = np.argsort(-np.ptp(p, axis=0))[:50]
    rows = [(t, shown.names[x], p[k, x]) for k, t in enumerate(times) for x in order]
    data = table_text(["time", "state", "share"], rows)
    drawing = wrap(_SIDE + _BAR, height, parts, alt)
    return Picture("population-in-time", drawing, alt, data, frames)


def _layout(shown: View) -> tuple[Array, float, float]:
    """Pixels of the states, their radius, and the height of the drawing."""
    xy, n = shown.xy, shown.kernel.n_states
    span = np.ptp(xy, axis=0)
    size = _SIDE - 2 * _PAD
    tall = float(np.clip(span[1] / max(span[0], 1e-12), 0.3, 1.0)) if span[0] >= span[1] else 1.0
    height = size * tall + 2 * _PAD
    scale = size / max(float(span.max()), 1e-12)
    centre = 0.5 * (xy.min(axis=0) + xy.max(axis=0))
    points = (xy - centre) * scale * np.array([1.0, -1.0]) + np.array([_SIDE / 2, height / 2])
    # Crowded states are drawn smaller: most of them should not cover their nearest neighbour.
    near = cKDTree(points).query(points, k=min(2, n))[0].reshape(n, -1)[:, -1]
    room = 0.55 * float(np.quantile(near, 0.25)) if n > 1 else 15.0
    radius = float(np.clip(min(190 / np.sqrt(n), max(room, 6.0)), 2.2, 15.0))
    return points, radius, height


def _edges(kernel: MarkovKernel, points: Array) -> str:
    source, target = strongest_edges(kernel, _MOST_EDGES)
    a, b = points[source], points[target]
    path = "".join(
        f"M{p[0]:.0f} {p[1]:.0f}L{q[0]:.0f} {q[1]:.0f}" for p, q in zip(a, b, strict=True)
    )
    return element("path", d=path, stroke=SOFT, stroke_opacity="0.4", fill="none")


def _nodes(points: Array, radius: float, fills: Sequence[str], hover: Sequence[str]) -> list[str]:
    # The outline keeps dark valleys visible on a dark page and pale hills on a white one.
    outline = f' stroke="{SOFT}" stroke-width="{1.0 if radius > 4 else 0.4}"'
    parts = [f'<g class="nodes"{outline}>']
    for (x, y), fill, text in zip(points, fills, hover, strict=True):
        title = element("title", escape(text))
        parts.append(element("circle", title, cx=x, cy=y, r=radius, fill=fill))
    return [*parts, "</g>"]


def _arrows(kernel: MarkovKernel, points: Array, radius: float, fluxes: Array) -> list[str]:
    parts = []
    for start, end, size in strongest_fluxes(kernel, fluxes):
        a, b = points[start], points[end]
        gap = b - a
        length = float(np.hypot(*gap))
        if length < 2 * radius + 6:
            continue
        unit = gap / length
        side = np.array([-unit[1], unit[0]])
        width = 1.0 + 3.5 * float(np.sqrt(size))
        tip = b - unit * (radius + 2)
        foot = tip - unit * (3.2 * width)
        corners = (tip, foot + side * 1.7 * width, foot - side * 1.7 * width)
        head = " ".join(f"{p[0]:.1f},{p[1]:.1f}" for p in corners)
        (x1, y1), (x2, y2) = a + unit * (radius + 2), foot
        parts += [
            segment(x1, y1, x2, y2, PALETTE[1], stroke_width=width, stroke_opacity="0.85"),
            element("polygon", points=head, fill=PALETTE[1]),
        ]
    return ['<g class="arrows">', *parts, "</g>"]


def _labels(points: Array, radius: float, names: Sequence[str], values: Array) -> list[str]:
    """Names beside their states where there is room; the lowest first."""
    n = len(names)
    order = np.argsort(values)
    wanted = order if n <= _NAMED else np.concatenate([order[:8], order[-4:]])
    if n > _CROWDED:
        wanted = np.concatenate([order[:3], order[-1:]])
    taken: list[Box] = []
    if n <= _CROWDED:
        taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    parts = []
    for k in wanted:
        text = cut(names[k], 22)
        (x, y), width = points[k], 7.0 * len(text)
        places = (
            (x + radius + 4, y + 4),
            (x - radius - 4 - width, y + 4),
            (x - width / 2, y - radius - 5),
            (x - width / 2, y + radius + 15),
        )
        for left, base in places:
            box = (left, base - 11, left + width, base + 3)
            inside = box[0] > 2 and box[2] < _SIDE + 12
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                halo = {"stroke": PAPER, "stroke_width": 3, "paint_order": "stroke"}
                parts.append(words(left, base, text, INK, **halo))
                break
    return parts


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _colour_bar(
    scale: str, low: float, high: float, height: float, label: str, *, powers: bool = False
) -> list[str]:
    table = palette(scale)
    top, bottom, left = 40.0, height - 30.0, _SIDE + 26.0
    ramp = Scale(low, high if high > low else low + 1.0, bottom, top)
    step = (bottom - top) / 64
    parts = [
        element("rect", x=left, y=bottom - (k + 1) * step, width=14, height=step + 0.5,
                fill=table[4 * k])
        for k in range(64)
    ]  # fmt: skip
    marks = [float(t) for t in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    for tick in marks if powers else ticks(low, high, 5):
        text = number(10.0**tick) if powers else number(tick)
        parts.append(words(left + 20, ramp(tick) + 4, text))
    parts.append(words(_SIDE + _BAR - 6, 24, label, text_anchor="end"))
    return parts
