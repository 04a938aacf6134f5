"""The directions in which clouds of many dimensions move, in which alone a potential is learned.

Fifty coordinates have more second moments than any sample determines, and Gaussians in them are
near hardly any individual. But clouds move in few of their principal components. Those are kept in
which snapshots differ by more than sampling, the ones that move furthest first; the others stay as
they are, with a warning if some of them move as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from thalweg._types import Array

_MOST_AXES = 5
"""Largest number of directions that are kept: all polynomials to the third degree are tried."""
_FEWEST_AXES = 2
"""Least number of components that span the potential."""
_LEVEL = 0.01
"""Level, for all components together, above which a component does not move."""


@dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates along a few orthonormal directions (the columns of `axes`) from `origin`.

    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal([t, *[0] * 11], 1.0, size=(400, 12)) for t in (0.0, 2.0, 4.0)]
    >>> chart = Chart.of(tuple(clouds))
    >>> chart.axes.shape, chart.left, bool(abs(chart.axes[0]).max() > 0.99)
    ((12, 2), 0, True)
    """

    origin: Array
    axes: Array
    left: int
    """Number of other components that move."""

    @classmethod
    def of(cls, clouds: tuple[Array, ...]) -> Chart:
        """Principal components of all clouds that move furthest."""
        pool = np.concatenate(clouds)
        origin = pool.mean(axis=0)
        vectors = np.linalg.eigh(np.cov((pool - origin).T))[1][:, ::-1]
        parts = [(x - origin) @ vectors for x in clouds]
        moved, p = _movement(parts)
        order = np.lexsort((-moved, p > _LEVEL / p.size))
        moving = int((p <= _LEVEL / p.size).sum())
        count = int(np.clip(moving, _FEWEST_AXES, _MOST_AXES))
        return cls(origin, vectors[:, order[:count]], max(moving - count, 0))

    @classmethod
    def whole(cls, dimension: int) -> Chart:
        """The coordinates as they are."""
        return cls(np.zeros(dimension), np.eye(dimension), 0)

    def down(self, x: Array) -> Array:
        """Points in the coordinates along the directions."""
        return np.asarray((x - self.origin) @ self.axes)

    def lift(self, vectors: Array) -> Array:
        """Vectors along the directions, in all coordinates."""
        return np.asarray(vectors @ self.axes.T)

    @property
    def reach(self) -> Array:
        """Length of each coordinate's projection on the directions."""
        return np.asarray(np.sqrt((self.axes**2).sum(axis=1)))

    def __str__(self) -> str:
        kept, every = self.axes.shape[::-1]
        if kept == every:
            return ""
        said = f"{kept} of {every} principal components, which move most"
        return said + (f"; {self.left} others move as well" if self.left else "")


def _movement(parts: list[Array]) -> tuple[Array, Array]:
    """Per component, the mean square distance of the normal fits, and the p-value of no change."""
    n = np.array([len(x) for x in parts], dtype=np.float64)[:, None]
    means = np.array([x.mean(axis=0) for x in parts])
    variances = np.maximum([x.var(axis=0) for x in parts], 1e-300)
    fourths = np.array([((x - m) ** 4).mean(axis=0) for x, m in zip(parts, means, strict=True)])
    inside = (n * variances).sum(axis=0) / n.sum()
    middle, width = (n * means).sum(axis=0) / n.sum(), np.sqrt(inside)
    kurtosis = np.maximum((n * fourths / variances**2).sum(axis=0) / n.sum(), 1.5)
    shift = (n * (means - middle) ** 2 / inside).sum(axis=0)
    spread = (n * (variances / inside - 1) ** 2 / (kurtosis - 1)).sum(axis=0)
    far = ((means - middle) ** 2 + (np.sqrt(variances) - width) ** 2).mean(axis=0)
    return far, np.asarray(chi2.sf(shift + spread, 2 * (len(parts) - 1)))
