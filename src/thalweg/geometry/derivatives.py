"""Derivatives of `W_K^2` from the geodesic itself: no differentiation through iterations.

The envelope theorem: the action is stationary along the geodesic, so only what is given matters.
`d W^2 / dp = -2 psi(0)`, `d W^2 / dq = 2 psi(1)` (up to a constant: mass is fixed), and for the
conductance of an edge, at fixed `pi`, `d W^2 / dc_e = -integral F_e^2 / (c_e^2 m_e) dt`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import stages
from thalweg.geometry.geodesic import Geodesic
from thalweg.status import Status

__all__ = ["DistanceGradient", "distance_gradient"]

Array = NDArray[np.float64]


class DistanceGradient(NamedTuple):
    """`W_K^2` and its derivatives; those in the end points have mean zero under `pi`."""

    squared_distance: float
    first: Array
    second: Array
    conductance: Array
    """Per edge of the kernel, the stationary distribution held fixed."""
    status: Status


def distance_gradient(geodesic: Geodesic) -> DistanceGradient:
    """The derivatives of the squared length of a geodesic."""
    problem, flux = geodesic._problem, geodesic._flux
    source, target, conductance = geodesic.kernel.edges
    _, rho, _ = problem.value(flux, 0.0)
    edge = stages.stage_weights(source, target, conductance, np.maximum(rho, 1e-300), problem.spec)
    energy = np.where(flux == 0, 0.0, flux**2 / np.maximum(edge, 1e-300))
    by_conductance = -(problem.mesh.weights @ energy) / conductance
    return DistanceGradient(
        geodesic.distance**2,
        -2.0 * geodesic.initial_potential,
        2.0 * geodesic.final_potential,
        by_conductance,
        geodesic.status,
    )
