"""Curves in time with Bernstein coefficients, on a mesh that is graded towards empty ends.

On piece `k`, of width `h_k`, the density is `sum_j c_kj B_j((t - t_k) / h_k)` with the polynomials
`B_j(x) = binom(s, j) x^j (1 - x)^(s - j)`, and consecutive pieces share the coefficient at their
node. Positive coefficients give a positive density, computed without a subtraction, to its last
digit however small it is. A higher degree and a cut of a piece only average coefficients, so a
refined curve is the same curve with positive coefficients again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import comb

import numpy as np

from thalweg._types import Array
from thalweg.paths.mesh import gauss

_POWER = 3
"""On an end piece `t = h x^3`: `t^b log t` becomes smooth enough for Gauss points."""
_UNIFORM = 0.5
"""Share of the barrier that is spread evenly over the coefficients instead of following time."""


@dataclass(frozen=True, eq=False)
class BernsteinMesh:
    """Pieces of [0, 1] from the first to the last, with the tables that evaluate a curve on them.

    Positivity is asked of the coefficients at twice the degree, which are closer to the values.

    >>> mesh = BernsteinMesh(np.array([0.5, 0.5]), 3, 4)
    >>> round(float(mesh.weights @ mesh.values.sum(axis=2).ravel()), 12)
    1.0
    """

    widths: Array
    degree: int
    points: int
    """Gauss points per piece."""
    singular: bool = True
    """Whether states may be empty at the ends: then the outer pieces have points close to them."""

    @property
    def pieces(self) -> int:
        return int(self.widths.size)

    @property
    def positive_degree(self) -> int:
        """The degree at which coefficients are asked to be positive."""
        return 2 * self.degree

    @cached_property
    def _places(self) -> tuple[Array, Array, Array]:
        """Gauss points of every piece, their distance to its right end, and their weights."""
        x, b = gauss(self.points)
        left = np.tile(x, (self.pieces, 1))
        right, weights = left[:, ::-1].copy(), np.tile(b, (self.pieces, 1))
        if self.singular:
            near, weight = x**_POWER, b * _POWER * x ** (_POWER - 1)
            left[0], right[0], weights[0] = near, 1 - near, weight
            left[-1], right[-1], weights[-1] = (1 - near)[::-1], near[::-1], weight[::-1]
        return left, right, weights

    @cached_property
    def weights(self) -> Array:
        """Quadrature weights of all points; their sum is one."""
        return np.asarray(self.widths[:, None] * self._places[2]).ravel()

    @cached_property
    def values(self) -> Array:
        """Polynomials of the degree at the points: (pieces, points, degree + 1)."""
        return _basis(self.degree, *self._places[:2])

    @cached_property
    def slopes(self) -> Array:
        """Their derivatives in time."""
        return _slopes(self.degree, *self._places[:2]) / self.widths[:, None, None]

    @cached_property
    def positive_values(self) -> Array:
        """The polynomials of the positive degree at the points."""
        return _basis(self.positive_degree, *self._places[:2])

    @cached_property
    def positive_slopes(self) -> Array:
        return _slopes(self.positive_degree, *self._places[:2]) / self.widths[:, None, None]

    @property
    def elevation(self) -> Array:
        """Matrix from coefficients to those of the positive degree."""
        return elevation(self.degree, self.positive_degree)

    @cached_property
    def barrier(self) -> Array:
        """The barrier's weights: half the time, half uniform; their sum is one.

        Weights in time alone vanish on a mesh graded over many decades, and Newton then needs
        several times as many steps. A node counts on its left piece; the two ends are fixed.
        """
        size = self.positive_degree + 1
        time = np.broadcast_to(self.widths[:, None] / size, (self.pieces, size))
        out = (1 - _UNIFORM) * time + _UNIFORM / (self.pieces * size)
        out[:-1, -1] += out[1:, 0]
        out[1:, 0] = out[0, 0] = out[-1, -1] = 0.0
        return np.asarray(out)

    def finer(self, factor: int) -> BernsteinMesh:
        """The same pieces with `factor` times as many points."""
        return replace(self, points=factor * self.points)


def graded_pieces(pieces: int, cuts: int, power: float, ratio: float) -> Array:
    """Widths that grow like `k^(power - 1)` from either end, whose pieces are cut `cuts` times.

    >>> graded_pieces(4, 0, 3.0, 0.125)
    array([0.0625, 0.4375, 0.4375, 0.0625])
    >>> graded_pieces(2, 1, 1.0, 0.125)
    array([0.0625, 0.4375, 0.4375, 0.0625])
    """
    widths = np.diff(0.5 * (np.arange(pieces // 2 + 1) / (pieces // 2)) ** power)
    shares = np.diff(np.concatenate([[0.0], ratio ** np.arange(cuts, -1, -1.0)]))
    half = np.concatenate([widths[0] * shares, widths[1:]])
    return np.concatenate([half, half[::-1]])


def carried(old: BernsteinMesh, c: Array, new: BernsteinMesh) -> Array:
    """Coefficients of the same curve on a mesh whose pieces divide those of the old one."""
    parts: list[Array] = []
    i = 0
    for k, width in enumerate(old.widths):
        first, total = i, 0.0
        while i < new.pieces and total < width * (1 - 1e-9):
            total += new.widths[i]
            i += 1
        inside = new.widths[first:i] / total
        left = np.concatenate([[0.0], np.cumsum(inside)])
        right = np.concatenate([[0.0], np.cumsum(inside[::-1])])[::-1]
        for a in range(i - first):
            b = a + 1
            if i - first == 1:
                part = c[k]
            elif left[a] <= right[b]:
                part = _restricted(c[k], left[a], left[b], right[b], inside[a])
            else:  # nearer to the right end: the same from there
                part = _restricted(c[k][::-1], right[b], right[a], left[a], inside[a])[::-1]
            parts.append(part)
    return np.asarray(elevation(old.degree, new.degree) @ np.array(parts))


def _restricted(c: Array, a: float, b: float, after: float, width: float) -> Array:
    """Coefficients on `[a, b]` of [0, 1] (de Casteljau); `after = 1 - b` and `width = b - a`."""
    row, first = c, [c[0]]
    for _ in range(len(c) - 1):
        row = after * row[:-1] + b * row[1:]
        first.append(row[0])
    row = np.array(first)
    if a == 0.0:
        return row
    last = [row[-1]]
    for _ in range(len(c) - 1):
        row = width / b * row[:-1] + a / b * row[1:]
        last.append(row[-1])
    return np.array(last[::-1])


@cache
def elevation(degree: int, higher: int) -> Array:
    """Matrix from the coefficients of a polynomial to those of the same at a higher degree.

    >>> elevation(1, 2)
    array([[1. , 0. ],
           [0.5, 0.5],
           [0. , 1. ]])
    """
    out = np.eye(degree + 1)
    for r in range(degree, higher):
        share = (np.arange(1, r + 1) / (r + 1))[:, None]
        out = np.concatenate([out[:1], share * out[:-1] + (1 - share) * out[1:], out[-1:]])
    return out


def _basis(degree: int, x: Array, y: Array) -> Array:
    """The polynomials at `x = 1 - y`, both given so that neither is a difference."""
    return np.stack([comb(degree, j) * x**j * y ** (degree - j) for j in range(degree + 1)], -1)


def _slopes(degree: int, x: Array, y: Array) -> Array:
    lower = degree * _basis(degree - 1, x, y)
    out = np.zeros((*x.shape, degree + 1))
    out[..., 1:] += lower
    out[..., :-1] -= lower
    return out
