"""The transport geometry of a kernel: W_K distances, geodesics, exponential and logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.geometry.geodesic import DistanceGradient, Geodesic, GeodesicPoints
from thalweg.geometry.transport import TransportGeometry

if TYPE_CHECKING:
    from thalweg.geometry.barycenter import Barycenter

__all__ = ["Barycenter", "DistanceGradient", "Geodesic", "GeodesicPoints", "TransportGeometry"]


def __getattr__(name: str) -> Any:
    if name == "Barycenter":
        from thalweg.geometry.barycenter import Barycenter

        return Barycenter
    raise AttributeError(f"module 'thalweg.geometry' has no attribute {name!r}")
