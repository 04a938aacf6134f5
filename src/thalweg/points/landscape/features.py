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

from thalweg.errors import InputError

__all__ = ["AlongAxes", "Basis", "Block", "Gaussians", "Given", "Polynomials", "spaced_centers"]

Array = NDArray[np.float64]
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
    def local(self) -> bool:
        """Whether the functions are local, and so shrunk harder than global ones."""
        ...

    def value(self, x: Array, spread: float = 0.0) -> Array: ...
    def gradient(self, x: Array, spread: float = 0.0) -> Array: ...
    def laplacian(self, x: Array, spread: float = 0.0) -> Array: ...
    def slope(self, x: Array, weights: Array) -> Array:
        """Gradient of the weighted sum, shape (points, d)."""
        ...

    def hessian(self, x: Array, weights: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class Polynomials:
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
    local = False

    @cached_property
    def exponents(self) -> NDArray[np.int64]:
        d = self.mean.size
        if not self.cross:
            powers = range(1, self.degree + 1)
            return np.array([k * np.eye(d, dtype=int)[i] for k in powers for i in range(d)])
        rows = [
            np.bincount(chosen, minlength=d)
            for k in range(1, self.degree + 1)
            for chosen in combinations_with_replacement(range(d), k)
        ]
        return np.array(rows, dtype=np.int64)

    @property
    def size(self) -> int:
        return int(self.exponents.shape[0])

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return self._product(x, self.exponents, spread)

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        e = self.exponents
        out = np.empty((x.shape[0], x.shape[1], e.shape[0]))
        for i in range(x.shape[1]):
            out[:, i] = e[:, i] / self.scale[i] * self._product(x, _lowered(e, i), spread)
        return out

    def slope(self, x: Array, weights: Array) -> Array:
        return self.gradient(x) @ weights

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        e = self.exponents
        out = np.zeros((x.shape[0], e.shape[0]))
        for i in range(x.shape[1]):
            twice = e[:, i] * (e[:, i] - 1) / self.scale[i] ** 2
            used = np.flatnonzero(twice)
            if used.size:
                lowered = _lowered(_lowered(e[used], i), i)
                out[:, used] += twice[used] * self._product(x, lowered, spread)
        return out

    def hessian(self, x: Array, weights: Array) -> Array:
        """Second derivatives of the weighted sum, shape (points, d, d)."""
        e = self.exponents
        out = np.zeros((x.shape[0], x.shape[1], x.shape[1]))
        for i in range(x.shape[1]):
            first = _lowered(e, i)
            for j in range(i, x.shape[1]):
                factor = weights * e[:, i] * first[:, j] / (self.scale[i] * self.scale[j])
                used = np.flatnonzero(factor)
                if used.size:
                    out[:, i, j] = self._product(x, _lowered(first[used], j)) @ factor[used]
                    out[:, j, i] = out[:, i, j]
        return out

    def _product(self, x: Array, e: NDArray[np.int64], spread: float = 0.0) -> Array:
        """Monomials, or their averages over noise: `h_{k+1} = z h_k + k s h_{k-1}`."""
        z, s = (x - self.mean) / self.scale, spread / self.scale**2
        power = np.ones((self.degree + 1, *z.shape))
        for k in range(1, self.degree + 1):
            power[k] = power[k - 1] * z
            if spread > 0 and k > 1:
                power[k] += (k - 1) * s * power[k - 2]
        out = np.ones((x.shape[0], e.shape[0]))
        for i in range(x.shape[1]):
            used = np.flatnonzero(e[:, i])
            if used.size:
                out[:, used] *= power[e[used, i], :, i].T
        return out


def _lowered(e: NDArray[np.int64], i: int) -> NDArray[np.int64]:
    out = e.copy()
    out[:, i] = np.maximum(out[:, i] - 1, 0)
    return out


@dataclass(frozen=True, eq=False)
class Gaussians:
    """`exp(-|x - c|^2 / (2 w^2))` at centres `c` with widths `w`.

    >>> Gaussians(np.zeros((1, 1)), np.ones(1)).value(np.array([[0.0], [1.0]])).round(4).ravel()
    array([1.    , 0.6065])
    """

    centers: Array
    widths: Array
    local = True

    @property
    def size(self) -> int:
        return int(self.centers.shape[0])

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return self._bumps(x, spread)[0]

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        bump, square, _ = self._bumps(x, spread)
        scaled = bump / square
        return np.asarray((self.centers.T[None] - x[:, :, None]) * scaled[:, None, :])

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
class AlongAxes:
    """Gaussians of one coordinate each: `knots` has a column of centres per coordinate."""

    knots: Array
    widths: Array
    local = True

    @property
    def size(self) -> int:
        return int(self.knots.size)

    def value(self, x: Array, spread: float = 0.0) -> Array:
        return np.hstack([one.value(x[:, [i]], spread) for i, one in self._each()])

    def gradient(self, x: Array, spread: float = 0.0) -> Array:
        out = np.zeros((x.shape[0], x.shape[1], self.size))
        for i, one in self._each():
            out[:, i, self._place(i)] = one.gradient(x[:, [i]], spread)[:, 0]
        return out

    def slope(self, x: Array, weights: Array) -> Array:
        parts = [one.slope(x[:, [i]], weights[self._place(i)]) for i, one in self._each()]
        return np.hstack(parts)

    def laplacian(self, x: Array, spread: float = 0.0) -> Array:
        return np.hstack([one.laplacian(x[:, [i]], spread) for i, one in self._each()])

    def hessian(self, x: Array, weights: Array) -> Array:
        out = np.zeros((x.shape[0], x.shape[1], x.shape[1]))
        for i, one in self._each():
            out[:, i, i] = one.laplacian(x[:, [i]]) @ weights[self._place(i)]
        return out

    def _place(self, i: int) -> slice:
        m = self.knots.shape[0]
        return slice(i * m, (i + 1) * m)

    def _each(self) -> list[tuple[int, Gaussians]]:
        m = self.knots.shape[0]
        return [
            (i, Gaussians(self.knots[:, [i]], np.full(m, self.widths[i])))
            for i in range(self.knots.shape[1])
        ]


@dataclass(frozen=True, eq=False)
class Given:
    """Functions that the user gave, each from points (rows) to numbers; central differences."""

    functions: tuple[Function, ...]
    scale: Array
    local = False

    @property
    def size(self) -> int:
        return len(self.functions)

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

    def slope(self, x: Array, weights: Array) -> Array:
        return self.gradient(x) @ weights

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
        """Functions that are shrunk separately: local ones, and powers above the second."""
        return np.concatenate(
            [
                block.exponents.sum(axis=1) > 2
                if isinstance(block, Polynomials)
                else np.full(block.size, block.local)
                for block in self.blocks
            ]
        )

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
