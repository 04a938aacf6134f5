"""Pictures: each function takes values of the library and returns a plotly figure.

`thalweg.plots.mpl` has the same names for matplotlib, and `thalweg.pl` takes models and AnnData.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg._optional import optional

if TYPE_CHECKING:
    from thalweg.plots.graph import flow, gallery, geodesic, landscape
    from thalweg.plots.layout import positions
    from thalweg.plots.motion import arrows, sankey
    from thalweg.plots.series import fit, forecast, potential

__all__ = [
    "arrows",
    "fit",
    "flow",
    "forecast",
    "gallery",
    "geodesic",
    "landscape",
    "positions",
    "potential",
    "sankey",
]

_HOME_OF = {
    **dict.fromkeys(("flow", "gallery", "geodesic", "landscape"), "graph"),
    **dict.fromkeys(("fit", "forecast", "potential"), "series"),
    **dict.fromkeys(("arrows", "sankey"), "motion"),
    "positions": "layout",
}


def __getattr__(name: str) -> Any:
    if name == "mpl":
        return import_module("thalweg.plots.mpl")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'thalweg.plots' has no attribute {name!r}")
    if home != "layout":
        optional("plotly", extra="cli", what="drawing with thalweg.plots")
    return getattr(import_module(f"thalweg.plots.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "mpl"])
