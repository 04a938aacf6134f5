"""Pictures: each function takes values of the library and returns a plotly figure."""

from thalweg._optional import optional

optional("plotly", extra="cli", what="drawing with thalweg.plots")

from thalweg.plots.graph import flow, gallery, geodesic, landscape  # noqa: E402
from thalweg.plots.layout import positions  # noqa: E402
from thalweg.plots.motion import arrows, sankey  # noqa: E402
from thalweg.plots.series import fit, forecast, potential  # noqa: E402

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
