"""Static pictures of interactive figures, by a local browser and without the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["HOW_TO_GET_PICTURES", "static_pictures"]

HOW_TO_GET_PICTURES = (
    "static pictures (SVG, PNG) were left out: install Chromium or Chrome and "
    "pip install 'thalweg[bench]'; the interactive HTML is complete without them."
)
_SIZE = {"width": 1000, "height": 560}
"""Of a picture, in pixels."""


def static_pictures(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """`{name.svg: ..., name.png: ...}` for every figure; empty where there is no browser.

    The page that draws them loads plotly from this machine and no mathematics from elsewhere, so no
    request leaves it.
    """
    if not figures:
        return {}
    try:
        kaleido = import_module("kaleido")
    except ImportError:
        return {}
    out: dict[str, bytes] = {}
    try:
        kaleido.start_sync_server(mathjax=False, timeout=60, silence_warnings=True)
        try:
            for name, figure in figures.items():
                drawing = json.loads(figure.to_json())
                layout = drawing.get("layout", {})
                size = {key: layout.get(key) or value for key, value in _SIZE.items()}
                sharp = 2 if size["width"] * size["height"] < 800_000 else 1
                for kind, scale in (("svg", 1), ("png", sharp)):
                    options = {"format": kind, "scale": scale, **size}
                    out[f"{name}.{kind}"] = kaleido.calc_fig_sync(drawing, opts=options)
        finally:
            kaleido.stop_sync_server(silence_warnings=True)
    except Exception:  # whatever is wrong with the browser must not cost the benchmark's results
        return {}
    return out
