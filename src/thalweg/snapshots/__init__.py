"""Snapshots of a population, the probabilities behind them, and distances between those."""

from thalweg.snapshots.clouds import PointSnapshots, WeightedPoints
from thalweg.snapshots.density import (
    DensityEstimate,
    Dirichlet,
    HeatKernel,
    Smoother,
    estimate_probabilities,
)
from thalweg.snapshots.metrics import hellinger, total_variation
from thalweg.snapshots.replicates import Replicates
from thalweg.snapshots.snapshots import Snapshots
from thalweg.snapshots.times import TimeScale, read_times

__all__ = [
    "DensityEstimate",
    "Dirichlet",
    "HeatKernel",
    "PointSnapshots",
    "Replicates",
    "Smoother",
    "Snapshots",
    "TimeScale",
    "WeightedPoints",
    "estimate_probabilities",
    "hellinger",
    "read_times",
    "total_variation",
]
