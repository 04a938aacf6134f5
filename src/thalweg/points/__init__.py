"""Populations of points: interpolating, forecasting and judging clouds seen at several times."""

from thalweg.points.bridge import schroedinger_bridge, walk_generator
from thalweg.points.coupling import mean_error, wasserstein1
from thalweg.points.displacement import Displacement, displace
from thalweg.points.interpolation import METHODS, Interpolation, PointInterpolator
from thalweg.points.relaxation import RelaxationFit, fit_relaxation

__all__ = [
    "METHODS",
    "Displacement",
    "Interpolation",
    "PointInterpolator",
    "RelaxationFit",
    "displace",
    "fit_relaxation",
    "mean_error",
    "schroedinger_bridge",
    "walk_generator",
    "wasserstein1",
]
