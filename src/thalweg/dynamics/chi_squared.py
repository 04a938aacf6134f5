"""Tail of a quadratic form in Gaussian variables: `sum_i a_i (z_i + d_i)^2`.

Approximated by the non-central chi-square variable with the same mean, variance and skewness, and
a kurtosis as near as such a variable comes (Liu, Tang and Zhang 2009). With a single weight, or
equal ones, this is exact.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2, ncx2

from thalweg._types import Array


def quadratic_tail(statistic: float, weight: Array, covariance: Array, mean: Array) -> float:
    """The probability that `s^T W s` is at least `statistic`, for `s ~ N(mean, covariance)`.

    >>> two = np.eye(2)
    >>> round(quadratic_tail(5.9915, two, two, np.zeros(2)), 4)  # chi-square, two degrees
    0.05
    """
    values, vectors = np.linalg.eigh(weight)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    a, turned = np.linalg.eigh(root.T @ covariance @ root)
    shift = (turned.T @ (root.T @ mean)) ** 2
    free = a > 1e-10 * max(float(a[-1]), 1e-300)
    constant = float(shift[~free].sum())
    a, shift = a[free], shift[free]
    if not a.size:
        return float(statistic <= constant)
    # Cumulants: c_k = sum a^k (1 + k d^2), d^2 = shift / a.
    c1, c2, c3, c4 = (float(np.sum(a ** (k - 1) * (a + k * shift))) for k in (1, 2, 3, 4))
    skew, tails = c3 / c2**1.5, c4 / c2**2
    if skew**2 > tails:
        scale = 1.0 / (skew - np.sqrt(skew**2 - tails))
        off = max(skew * scale**3 - scale**2, 0.0)
        degrees = scale**2 - 2.0 * off
    else:
        scale, off, degrees = 1.0 / skew, 0.0, 1.0 / skew**2
    z = (statistic - constant - c1) / np.sqrt(2.0 * c2)
    x = max(float(z * np.sqrt(2.0) * scale + degrees + off), 0.0)
    return float(ncx2.sf(x, degrees, off) if off > 1e-12 else chi2.sf(x, degrees))
