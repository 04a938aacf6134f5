"""Populations of points: interpolation, forecasts and tests of clouds seen at several times."""

from thalweg.points.bridge import schroedinger_bridge, walk_generator
from thalweg.points.coupling import Displacement, displace, mean_error, wasserstein1
from thalweg.points.evaluation import leave_one_time_out
from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.grouped import GroupedDraws, design_effect, grouped_bootstrap, relaxation_times
from thalweg.points.interpolation import Interpolation, PointInterpolator
from thalweg.points.landscape import PointLandscape
from thalweg.points.methods import METHODS
from thalweg.points.relaxation import RelaxationFit, fit_relaxation

__all__ = [
    "METHODS",
    "Displacement",
    "GoodnessOfFit",
    "GroupedDraws",
    "Interpolation",
    "PointInterpolator",
    "PointLandscape",
    "RelaxationFit",
    "design_effect",
    "displace",
    "fit_relaxation",
    "grouped_bootstrap",
    "leave_one_time_out",
    "mean_error",
    "relaxation_times",
    "schroedinger_bridge",
    "walk_generator",
    "wasserstein1",
]
