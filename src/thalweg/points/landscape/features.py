"""Functions on R^d with their derivatives: the span of a potential, and of the moments.

A block holds functions of one kind; a `Basis` is several blocks side by side. `spread` in a
`value`, `gradient` or `laplacian` is the variance of a Gaussian that the function is averaged over:
`E f(x + sqrt(spread) xi)`, in closed form.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from thalweg._types import Array
from thalweg.errors import InputError

Function = Callable[[Array], Array]

_KMEANS_POINTS = 4000
"""Largest number of points that k-means sees."""
_DIFFERENCE = 1e-4
"""Step of differences, in standard deviations: rounding and truncation balance."""


class Block(Protocol):
    """Functions of one kind."""

    @property
    def size(self) -> int: ...
    @property
    def local(self) -> NDArray[np.bool_]:
        """Functions that are shrunk separately: local ones, and powers above the second."""
        return np.ones(self.size, dtype=bool)

    def value(self, x: Array, spread: float = 0.0) -> Array: ...
    def gradient(self, x: Array, spread: float = 0.0) -> Array: ...
    def laplacian(self, x: Array, spread: float = 0.0) -> Array: ...
    def slope(self, x: Array, weights: Array) -> Array:
        """Gradient of the weighted sum, shape (points, d)."""
        return self.gradient(x) @ weights

    def hessian(self, x: Array, weights: Array) -> Array:
        """Second derivatives of the weighted sum, shape (points, d, d)."""
        ...


@dataclass(frozen=True, eq=False)
class Polynomials(Block):
    """Monomials of the standardised coordinates, of total degree 1 to `degree`.

    Without `cross` only powers of single coordinates.

    >>> one = Polynomials(np.zeros(2), np.ones(2), 2)
    >>> one.size, one.value(np.array([[2.0, 3.0]]))
    (5, array([[2., 3., 4., 6., 9.]]))
    """

    mean: Array
    scale: Array
    degree: int
    cross: bool = True

    @classmethod
    def over(cls, pool: Array, degree: int, *, cross: bool = True) -> Polynomials:
        """Monomials of the coordinates standardised over a cloud."""
        return cls(pool.mean(axis=0), scales(pool), degree, cross)

    @cached_property
    def exponents(self) -> NDArray[np.int64]:
        d, powers = self.mean.size, range(1, self.degree + 1)
        if not self.cross:
            return np.concatenate([k * np.eye(d, dtype=np.int64) for k in powers])
        chosen = [c for k in powers for c in combinations_with_replacement(range(d), k)]
        return np.array([np.bincount(c, minlength=d) for c in chosen], dtype=np.int64)

    @property
    def size(self) -> int:
        return int(self.exponents.shape[0])

    @property
    def local(self) -> NDArray[np.bool_]:
        return self.exponents.sum(axis=1) > 2

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return self._monomials(x, spread)[1:].T

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        known, e = self._monomials(x, spread), self.exponents
        out = np.empty((x.shape[0], x.shape[1], self.size))
        for i in range(x.shape[1]):
            out[:, i] = (known[self._lowered[i, 1:]] * (e[:, [i]] / self.scale[i])).T
        return out

    def slope(self, x: Array, weights: Array) -> Array:
        e, d = self.exponents, x.shape[1]
        turned = np.zeros((self.size + 1, d))
        for i in range(d):
            np.add.at(turned[:, i], self._lowered[i, 1:], weights * e[:, i] / self.scale[i])
        return np.asarray(self._monomials(x).T @ turned)

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        known, e = self._monomials(x, spread), self.exponents
        out = np.zeros((e.shape[0], x.shape[0]))
        for i in range(x.shape[1]):
            twice = e[:, i] * (e[:, i] - 1) / self.scale[i] ** 2
            used = np.flatnonzero(twice)
            out[used] += twice[used, None] * known[self._lowered[i, self._lowered[i, 1 + used]]]
        return out.T

    def hessian(self, x: Array, weights: Array) -> Array:
        d, every = x.shape[1], np.concatenate([np.zeros((1, x.shape[1])), self.exponents])
        turned = np.zeros((self.size + 1, d, d))
        for i in range(d):
            first = self._lowered[i, 1:]
            for j in range(i, d) if self.cross else (i,):
                factor = weights * every[1:, i] * every[first, j] / (self.scale[i] * self.scale[j])
                np.add.at(turned[:, i, j], self._lowered[j, first], factor)
                turned[:, j, i] = turned[:, i, j]
        return np.asarray((self._monomials(x).T @ turned.reshape(-1, d * d)).reshape(-1, d, d))

    def _monomials(self, x: Array, spread: float = 0.0) -> Array:
        """One row per monomial, the constant first; or averages: `h_{k+1} = z h_k + k s h_{k-1}`.

        Derivatives of averages are averages of derivatives, so that they are among these rows.
        """
        z, s = ((x - self.mean) / self.scale).T, spread / self.scale**2
        power = np.empty((self.degree + 1, *z.shape))
        power[0] = 1.0
        for k in range(1, self.degree + 1):
            np.multiply(power[k - 1], z, out=power[k])
            if spread > 0 and k > 1:
                power[k] += (k - 1) * s[:, None] * power[k - 2]
        out = np.empty((self.size + 1, x.shape[0]))
        out[0] = 1.0
        for row, (parent, axis, k) in enumerate(self._parents, start=1):
            np.multiply(out[parent], power[k, axis], out=out[row])
        return out

    @cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        """The row of each monomial by its exponents; the constant is row 0."""
        listed = [(0,) * self.mean.size, *(tuple(map(int, e)) for e in self.exponents)]
        return {e: row for row, e in enumerate(listed)}

    @cached_property
    def _lowered(self) -> NDArray[np.int64]:
        """Per coordinate and row, the row with one power less of it, or 0 if there is none."""
        out = np.zeros((self.mean.size, self.size + 1), dtype=np.int64)
        for e, row in self._rows.items():
            for i in np.flatnonzero(e):
                out[i, row] = self._rows[(*e[:i], e[i] - 1, *e[i + 1 :])]
        return out

    @cached_property
    def _parents(self) -> list[tuple[int, int, int]]:
        """Per monomial: the row without its last coordinate, that coordinate and its power."""
        found = []
        for e in list(self._rows)[1:]:
            i = int(np.flatnonzero(e)[-1])
            found.append((self._rows[(*e[:i], 0, *e[i + 1 :])], i, e[i]))
        return found


@dataclass(frozen=True, eq=False)
class Gaussians(Block):
    """`exp(-|x - c|^2 / (2 w^2))` at centres `c` with widths `w`.

    >>> Gaussians(np.zeros((1, 1)), np.ones(1)).value(np.array([[0.0], [1.0]])).round(4).ravel()
    array([1.    , 0.6065])
    """

    centers: Array
    widths: Array

    @classmethod
    def over(cls, pool: Array, count: int, factor: float, rng: np.random.Generator) -> Gaussians:
        """About `count` functions over a cloud, `factor` times as wide as they are apart."""
        centers, near = spaced_centers(pool, count, rng)
        return cls(centers, np.full(len(centers), factor * near))

    @property
    def size(self) -> int:
        return int(self.centers.shape[0])

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return self._bumps(x, spread)[0]

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        bump, square, _ = self._bumps(x, spread)
        bump /= square
        out = np.empty((x.shape[0], x.shape[1], self.size))
        for i in range(x.shape[1]):
            np.subtract(self.centers[:, i], x[:, [i]], out=out[:, i])
            out[:, i] *= bump
        return out

    def slope(self, x: Array, weights: Array) -> Array:
        bump, square, _ = self._bumps(x, 0.0)
        pull = weights / square
        return np.asarray(bump @ (pull[:, None] * self.centers) - (bump @ pull)[:, None] * x)

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        bump, square, distance = self._bumps(x, spread)
        return np.asarray(bump * (distance / square**2 - x.shape[1] / square))

    def hessian(self, x: Array, weights: Array) -> Array:
        bump, square, _ = self._bumps(x, 0.0)
        second = bump * (weights / square**2)
        n, d = x.shape
        outer = (self.centers[:, :, None] * self.centers[:, None, :]).reshape(-1, d * d)
        mixed = x[:, :, None] * (second @ self.centers)[:, None, :]
        out = (second @ outer).reshape(n, d, d) - mixed - mixed.transpose(0, 2, 1)
        out += second.sum(axis=1)[:, None, None] * x[:, :, None] * x[:, None, :]
        out -= (bump @ (weights / square))[:, None, None] * np.eye(d)
        return np.asarray(out)

    def _bumps(self, x: Array, spread: float) -> tuple[Array, Array, Array]:
        square = self.widths**2 + spread
        distance = cdist(x, self.centers, "sqeuclidean")
        shrink = (self.widths**2 / square) ** (x.shape[1] / 2)
        return shrink * np.exp(-0.5 * distance / square), square, distance


@dataclass(frozen=True, eq=False)
class OnAxis(Block):
    """Functions of one coordinate: a one-dimensional block on that axis."""

    block: Block
    axis: int

    @property
    def size(self) -> int:
        return self.block.size

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return self.block.value(x[:, [self.axis]], spread)

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        out = np.zeros((*x.shape, self.size))
        out[:, self.axis] = self.block.gradient(x[:, [self.axis]], spread)[:, 0]
        return out

    def slope(self, x: Array, weights: Array) -> Array:
        out = np.zeros(x.shape)
        out[:, self.axis] = self.block.slope(x[:, [self.axis]], weights)[:, 0]
        return out

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        return self.block.laplacian(x[:, [self.axis]], spread)

    def hessian(self, x: Array, weights: Array) -> Array:
        out = np.zeros((*x.shape, x.shape[1]))
        out[:, self.axis, self.axis] = self.block.hessian(x[:, [self.axis]], weights)[:, 0, 0]
        return out


@dataclass(frozen=True, eq=False)
class Given(Block):
    """Functions that the user gave, each from points (rows) to numbers; central differences."""

    functions: tuple[Function, ...]
    scale: Array

    @property
    def size(self) -> int:
        return len(self.functions)

    @property
    def local(self) -> NDArray[np.bool_]:
        return np.zeros(self.size, dtype=bool)

    def value(self, x: Array, spread: float = 0.0) -> Array:
        columns = []
        for k, function in enumerate(self.functions):
            found = np.asarray(function(x), dtype=np.float64)
            if found.shape != (x.shape[0],) or not np.isfinite(found).all():
                raise InputError(
                    f"features[{k}] gave shape {found.shape} for {x.shape[0]} points, or a value "
                    "that is not finite; a feature takes one row per point and returns one finite "
                    "number for each."
                )
            columns.append(found)
        return np.stack(columns, axis=1)

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        return np.stack(
            [(self.value(x + s) - self.value(x - s)) / (2 * s.sum()) for s in self._steps()], axis=1
        )

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        middle = 2 * self.value(x)
        seconds = [
            (self.value(x + s) + self.value(x - s) - middle) / s.sum() ** 2 for s in self._steps()
        ]
        return np.asarray(np.sum(seconds, axis=0))

    def hessian(self, x: Array, weights: Array) -> Array:
        rows = [
            (self.gradient(x + s) - self.gradient(x - s)) @ weights / (2 * s.sum())
            for s in self._steps()
        ]
        out = np.stack(rows, axis=1)
        return np.asarray(0.5 * (out + out.transpose(0, 2, 1)))

    def _steps(self) -> Array:
        return np.diag(_DIFFERENCE * self.scale)


@dataclass(frozen=True, eq=False)
class Basis:
    """Blocks side by side."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def local(self) -> NDArray[np.bool_]:
        return np.concatenate([block.local for block in self.blocks])

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return np.concatenate([block.value(x, spread) for block in self.blocks], axis=1)

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        """Shape (points, d, functions)."""
        return np.concatenate([block.gradient(x, spread) for block in self.blocks], axis=2)

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        return np.concatenate([block.laplacian(x, spread) for block in self.blocks], axis=1)

    def slope(self, x: Array, weights: Array) -> Array:
        """Gradient of the sum of the functions times `weights`."""
        out = np.zeros(x.shape)
        for block, part in self._split(weights):
            out += block.slope(x, part)
        return out

    def hessian(self, x: Array, weights: Array) -> Array:
        """Second derivatives of the sum of the functions times `weights`."""
        out = np.zeros((x.shape[0], x.shape[1], x.shape[1]))
        for block, part in self._split(weights):
            out += block.hessian(x, part)
        return out

    def _split(self, weights: Array) -> list[tuple[Block, Array]]:
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        return list(zip(self.blocks, np.split(weights, ends), strict=True))


def scales(pool: Array) -> Array:
    """Standard deviations of the coordinates; 1 where there is none."""
    deviation = pool.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0)


def spaced_centers(pool: Array, count: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Centres by k-means, and the typical distance from one to its two nearest others."""
    from sklearn.cluster import KMeans

    some = pool
    if pool.shape[0] > _KMEANS_POINTS:
        some = pool[rng.choice(pool.shape[0], _KMEANS_POINTS, replace=False)]
    count = min(count, np.unique(some, axis=0).shape[0])
    model = KMeans(count, n_init=1, max_iter=10, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten rounds are enough for centres to be spread out
        centers = np.asarray(model.fit(some).cluster_centers_, dtype=np.float64)
    if count < 3:
        return centers, float(np.sqrt(pool.var(axis=0).sum()) or 1.0)
    apart = cdist(centers, centers)
    np.fill_diagonal(apart, np.inf)
    return centers, float(np.median(np.sort(apart, axis=1)[:, :2].mean(axis=1)))


_FINE, _WIDE = 120, 30
"""Largest numbers of narrow and of wide Gaussians."""
_LEAST_SHARE = 1e-5
"""Share of the variance below which a component is dropped."""
_CROSS_DIMENSION = 8
"""Largest dimension with mixed second moments; above it there are only variances."""


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
        powers = Polynomials.over(pool, 2, cross=pool.shape[1] <= _CROSS_DIMENSION)
        fine = Gaussians.over(pool, min(_FINE, max(most, 10)), 1.0, rng)
        wide = Gaussians.over(pool, min(_WIDE, max(most // 4, 5)), 1.0, rng)
        basis = Basis((powers, fine, wide))
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
