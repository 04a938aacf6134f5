"""Pictures: each function takes values of the library and returns a plotly figure."""

from thalweg.plots.graph import flow, landscape
from thalweg.plots.layout import positions
from thalweg.plots.series import fit, forecast, potential

__all__ = ["fit", "flow", "forecast", "landscape", "positions", "potential"]
