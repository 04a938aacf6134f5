"""A potential on R^d that moves points, learned from snapshots of them."""

from thalweg.points.landscape.estimator import PointLandscape

__all__ = ["PointLandscape"]
