"""The covariance that goes with a curvature."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from thalweg._types import Array

__all__ = ["inverse", "symmetric"]

_CERTAIN = 1e-12
"""Least square of a pivot, relative to the largest entry, for which rounding leaves an inverse."""


def inverse(curvature: Array) -> Array:
    """The inverse of a symmetric matrix, or its pseudo-inverse where some direction is open.

    >>> inverse(np.diag([2.0, 4.0])).diagonal()
    array([0.5 , 0.25])
    >>> inverse(np.ones((2, 2))).round(3)
    array([[0.25, 0.25],
           [0.25, 0.25]])
    """
    if curvature.size == 0:
        return np.zeros_like(curvature)
    factor, failed = dpotrf(curvature.T, lower=1)  # transposed it is in LAPACK's order
    pivots = factor.diagonal()
    if failed or not float(pivots.min()) ** 2 > _CERTAIN * float(np.abs(curvature).max()):
        return np.asarray(np.linalg.pinv(curvature, hermitian=True))
    return symmetric(dpotri(factor, lower=1)[0])


def symmetric(lower: Array) -> Array:
    """The symmetric matrix with this lower triangle, whose upper one is zero."""
    full = lower + lower.T
    np.fill_diagonal(full, lower.diagonal())
    return np.asarray(full)
