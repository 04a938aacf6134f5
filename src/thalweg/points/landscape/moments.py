"""The moments that snapshots are compared by: means of smooth test functions of the cloud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.points.landscape.features import Basis, Gaussians, Polynomials, spaced_centers

__all__ = ["Moments"]

_FINE, _WIDE = 120, 30
_LEAST_SHARE = 1e-5
_CROSS_DIMENSION = 8


@dataclass(frozen=True, eq=False)
class Moments:
    """Test functions, rotated to the principal components of the pooled cloud, unit variance.

    Means, second moments (in more than 8 dimensions, variances), and Gaussians of two widths.
    Components below `1e-5` of the variance are dropped. The first components are the smoothest.
    """

    basis: Basis
    rotation: Array

    @classmethod
    def of(cls, pool: Array, most: int, rng: np.random.Generator) -> Moments:
        """Moments of a cloud like `pool`, at most `most` of them."""
        fine, near = spaced_centers(pool, min(_FINE, max(most, 10)), rng)
        wide, far = spaced_centers(pool, min(_WIDE, max(most // 4, 5)), rng)
        widths = np.concatenate([np.full(fine.shape[0], near), np.full(wide.shape[0], far)])
        scale = np.where(pool.std(axis=0) > 0, pool.std(axis=0), 1.0)
        cross = pool.shape[1] <= _CROSS_DIMENSION
        powers = Polynomials(pool.mean(axis=0), scale, 2, cross)
        basis = Basis((powers, Gaussians(np.concatenate([fine, wide]), widths)))
        values = basis.value(pool)
        values = values - values.mean(axis=0)
        spread = values.std(axis=0) + 1e-12
        values = values / spread
        eigenvalues, vectors = np.linalg.eigh(values.T @ values / values.shape[0])
        order = np.argsort(eigenvalues)[::-1][:most]
        order = order[eigenvalues[order] > _LEAST_SHARE * eigenvalues.sum()]
        rotation = vectors[:, order] / np.sqrt(eigenvalues[order]) / spread[:, None]
        return cls(basis, rotation)

    def first(self, count: int) -> Moments:
        """The `count` smoothest ones."""
        return Moments(self.basis, self.rotation[:, :count])

    @property
    def size(self) -> int:
        return int(self.rotation.shape[1])

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return np.asarray(self.basis.value(x, spread) @ self.rotation)
