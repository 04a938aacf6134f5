"""Pictures: each function takes values of the library and returns a plotly figure."""

from thalweg.plots.graph import flow, gallery, geodesic, landscape
from thalweg.plots.layout import positions
from thalweg.plots.series import fit, forecast, potential

__all__ = ["fit", "flow", "forecast", "gallery", "geodesic", "landscape", "positions", "potential"]
