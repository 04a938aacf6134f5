"""The transport geometry of a kernel: W_K distances, geodesics, exponential and logarithm."""

from __future__ import annotations

from thalweg.geometry.barycenter import Barycenter
from thalweg.geometry.derivatives import DistanceGradient
from thalweg.geometry.geodesic import Geodesic, GeodesicPoints
from thalweg.geometry.transport import TransportGeometry

__all__ = ["Barycenter", "DistanceGradient", "Geodesic", "GeodesicPoints", "TransportGeometry"]
