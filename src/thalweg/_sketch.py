"""A small picture of a curve of populations, for notebooks: plain SVG, no package needed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from html import escape

import numpy as np

from thalweg._types import Array

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#B5A900")
"""Colours of curves, first those of Okabe and Ito: distinguishable with any colour vision."""
_CURVES = 5
"""Number of states drawn."""
_WIDTH, _HEIGHT, _LEFT = 420.0, 150.0, 8.0
"""Size of the drawing and margin on its sides, in pixels."""


def busiest(p: Array, most: int = 8) -> list[int]:
    """The states whose share changes most over time, one row of `p` per time.

    >>> busiest(np.array([[0.6, 0.1, 0.3], [0.1, 0.2, 0.7]]), 2)
    [0, 2]
    """
    change = np.ptp(p, axis=0) + 1e-3 * p.mean(axis=0)
    return [int(x) for x in np.argsort(-change)[:most]]


def sketch(
    caption: str, times: Array, probabilities: Array, names: Sequence[Hashable] | None = None
) -> str:
    """HTML with the shares of the five states that change most, and a line of text.

    >>> html = sketch("two times", np.array([0.0, 1.0]), np.array([[1.0, 0.0], [0.5, 0.5]]))
    >>> html.count("<polyline"), "state 1" in html
    (2, True)
    """
    p = np.asarray(probabilities, dtype=np.float64)
    chosen = busiest(p, _CURVES)
    span = float(times[-1] - times[0]) or 1.0
    x = _LEFT + (times - times[0]) / span * (_WIDTH - 2 * _LEFT)
    top = max(float(p[:, chosen].max()), 1e-12)
    parts, keys = [], []
    for colour, state in zip(PALETTE, chosen, strict=False):
        y = _HEIGHT - 6 - p[:, state] / top * (_HEIGHT - 16)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        name = f"state {state}" if names is None else str(names[state])[:24]
        keys.append(f'<span style="color:{colour}">&#9632; {escape(name)}</span>')
    alt = escape(f"shares of the population from time {times[0]:g} to {times[-1]:g}")
    return (
        f"<div><div>{escape(caption)}</div>"
        f'<svg role="img" aria-label="{alt}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" '
        f'style="width:{_WIDTH:g}px;max-width:100%;border-bottom:1px solid #8a8a8a">'
        f"{''.join(parts)}</svg><div>{' '.join(keys)}</div></div>"
    )
