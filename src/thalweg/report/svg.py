"""Drawing in SVG: scales, ticks, colours and axes, with the colours of the page's scheme.

Everything is plain text that follows the reader's light or dark scheme through CSS variables, and
falls back to the light one in a picture that was saved on its own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg._spreadsheet import guarded
from thalweg._types import Array

# Evenly spaced colours of two scales that are readable without colour vision and in print.
_CIVIDIS = ("#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369",
            "#e1cc55", "#fee838")  # fmt: skip
_VIRIDIS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58",
            "#b5de2b", "#fde725")  # fmt: skip
_SCALES = {"landscape": _CIVIDIS, "population": _VIRIDIS}

INK, SOFT, LINE, PAPER = (
    "var(--ink, #1c2128)",
    "var(--soft, #57606a)",
    "var(--line, #d8dee4)",
    "var(--paper, #ffffff)",
)


@dataclass(frozen=True)
class Picture:
    """One figure of a page: the drawing, a description of it, and its data."""

    name: str
    """Also the name of the files that the reader saves."""
    svg: str
    alt: str
    data: str = ""
    """The numbers behind the drawing, as CSV."""
    frames: dict[str, Any] | None = None
    """The frames of a moving picture, for `thalweg.report.script`."""


@dataclass(frozen=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = 0.5 if span == 0 else (value - self.low) / span
        return self.start + share * (self.stop - self.start)


def number(value: float) -> str:
    """A number with four digits, or six from 10,000 on.

    >>> number(0.30000000000000004), number(12500.0), number(1e-9)
    ('0.3', '12500', '1e-09')
    """
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.6g}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between `low` and `high`, at most `most` of them.

    >>> ticks(0.0, 3.333), ticks(-0.7, 12.4)
    ([0.0, 1.0, 2.0, 3.0], [0.0, 5.0, 10.0])
    """
    span = high - low
    if not np.isfinite(span) or span <= 0:
        return [low]
    rough = span / most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first = np.ceil(low / step - 1e-9)
    found = [float(k * step) for k in np.arange(first, high / step + 1e-9)]
    return [0.0 if abs(tick) < 1e-9 * span else round(tick, 12) for tick in found]


def colours(values: Array, low: float, high: float, scale: str) -> list[str]:
    """A colour for each value; `scale` is "landscape" or "population"."""
    table = palette(scale)
    return [table[k] for k in levels(values, low, high)]


def levels(values: Array, low: float, high: float) -> NDArray[np.uint8]:
    """Values as indices 0 to 255 of a colour table."""
    span = high - low if high > low else 1.0
    return np.round(255 * np.clip((values - low) / span, 0, 1)).astype(np.uint8)


def palette(scale: str) -> list[str]:
    """The 256 colours of a scale."""
    anchors = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in _SCALES[scale]])
    where = np.linspace(0, len(anchors) - 1, 256)
    rgb = np.column_stack([np.interp(where, range(len(anchors)), anchors[:, k]) for k in range(3)])
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.round(rgb).astype(int)]


def wrap(width: float, height: float, parts: Iterable[str], alt: str) -> str:
    """The drawing as an element that scales with the page."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(alt)}" font-family="system-ui, sans-serif" font-size="13">'
        + "".join(parts)
        + "</svg>"
    )


def element(tag: str, body: str = "", **attributes: object) -> str:
    """An element of a drawing; numbers get one decimal, and `_` in a name stands for `-`.

    >>> element("circle", cx=1.25, cy=2, fill_opacity="0.18")
    '<circle cx="1.2" cy="2" fill-opacity="0.18"/>'
    """
    given = "".join(
        f' {name.replace("_", "-")}="{f"{v:.1f}" if isinstance(v, float) else v}"'
        for name, v in attributes.items()
        if v is not None
    )
    return f"<{tag}{given}>{body}</{tag}>" if body else f"<{tag}{given}/>"


def segment(x1: float, y1: float, x2: float, y2: float, stroke: str, **more: object) -> str:
    """A straight line."""
    return element("line", "", x1=x1, x2=x2, y1=y1, y2=y2, stroke=stroke, **more)


def words(x: float, y: float, text: str, fill: str = SOFT, **more: object) -> str:
    """A line of text, escaped."""
    return element("text", escape(text), x=x, y=y, fill=fill, **more)


def apart(heights: ArrayLike, gap: float, lowest: float) -> list[float]:
    """Heights of labels, given in falling order: at least `gap` apart and not below `lowest`."""
    out = [float(height) for height in np.asarray(heights)]
    for k in range(1, len(out)):
        out[k] = max(out[k], out[k - 1] + gap)
    # Then upwards from the bottom: only labels that are in the way move.
    for k in reversed(range(len(out))):
        out[k] = min(out[k], lowest)
        lowest = out[k] - gap
    return out


@dataclass(frozen=True)
class Axes:
    """A frame with ticks, labels and a clipped area to draw in."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str

    def draw(self) -> list[str]:
        """Grid lines, tick labels and axis labels."""
        x, y = self.x, self.y
        parts = [part for tick in ticks(y.low, y.high) for part in self._rung(tick)]
        for tick in ticks(x.low, x.high, 8):
            at = x(tick)
            parts.append(segment(at, y.start, at, y.start + 5, SOFT))
            parts.append(words(at, y.start + 19, number(tick), text_anchor="middle"))
        parts.append(segment(x.start, y.start, x.stop, y.start, SOFT))
        middle = 0.5 * (x.start + x.stop)
        parts.append(words(middle, y.start + 38, self.x_label, text_anchor="middle"))
        if self.y_label:
            turned = f"translate({x.start - 48:.1f},{0.5 * (y.start + y.stop):.1f}) rotate(-90)"
            parts.append(words(0, 0, self.y_label, transform=turned, text_anchor="middle"))
        return parts

    def _rung(self, tick: float) -> tuple[str, str]:
        """The grid line and the number of a tick of the vertical axis."""
        at, left = self.y(tick), self.x.start
        number_ = words(left - 8, at + 4, number(tick), text_anchor="end")
        return segment(left, at, self.x.stop, at, LINE), number_

    def points(self, x: Array, y: Array) -> str:
        """The `points` of a polyline or polygon."""
        return " ".join(
            f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b)
        )


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV that a spreadsheet opens; text that would run as a formula is quoted.

    >>> table_text(["state", "V"], [["=1+1", 0.5]])
    "state,V\\r\\n'=1+1,0.5\\r\\n"
    """
    out = io.StringIO()
    csv.writer(out).writerows([header, *([_safe(cell) for cell in row] for row in rows)])
    return out.getvalue()


def _safe(cell: object) -> object:
    if isinstance(cell, float | np.floating):
        return f"{float(cell):.10g}"
    return guarded(cell) if isinstance(cell, str) else cell
