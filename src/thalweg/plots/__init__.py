"""Pictures: each function takes values of the library and returns a plotly figure."""

from thalweg.plots.graph import flow, landscape
from thalweg.plots.layout import positions

__all__ = ["flow", "landscape", "positions"]
