"""Curves in time that are polynomials on each of several pieces, and continuous.

A curve is given by its values at the Gauss-Lobatto nodes of each piece; neighbouring pieces share
one. Values and rates anywhere are linear in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.paths.mesh import gauss

DEGREE = 6
"""Degree of the polynomials: 4 needed twice the nodes for the same gap, 8 gained nothing."""


@cache
def lobatto(degree: int) -> Array:
    """The nodes on [0, 1], ends included."""
    inner = np.polynomial.legendre.Legendre.basis(degree).deriv().roots()
    return np.concatenate([[0.0], 0.5 + 0.5 * np.sort(inner.real), [1.0]])


def lagrange(nodes: Array, at: Array) -> tuple[Array, Array]:
    """Values and derivatives at `at` of the polynomials that are one at one node, zero at others.

    >>> value, slope = lagrange(np.array([0.0, 1.0]), np.array([0.25]))
    >>> value, slope
    (array([[0.75, 0.25]]), array([[-1.,  1.]]))
    """
    power = np.arange(nodes.size)
    inverse = np.linalg.inv((2 * nodes[:, None] - 1) ** power)
    x = 2 * at[:, None] - 1
    slope = 2 * power * x ** np.maximum(power - 1, 0)
    return np.asarray(x**power @ inverse), np.asarray(slope @ inverse)


@dataclass(frozen=True, eq=False)
class Curve:
    """Piecewise polynomials of degree `DEGREE` between `breaks`.

    >>> curve = Curve(np.array([0.0, 1.0, 3.0]))
    >>> value, rate = curve.maps(np.array([0.5, 2.0]))
    >>> (value @ curve.nodes**2).round(12), (rate @ curve.nodes**2).round(12)
    (array([0.25, 4.  ]), array([1., 4.]))
    """

    breaks: Array

    @property
    def pieces(self) -> int:
        return self.breaks.size - 1

    @cached_property
    def nodes(self) -> Array:
        """The times of the nodes."""
        widths = np.diff(self.breaks)
        inner = self.breaks[:-1, None] + widths[:, None] * lobatto(DEGREE)[None, :-1]
        return np.append(inner.ravel(), self.breaks[-1])

    def piece(self, times: Array) -> NDArray[np.int64]:
        """The piece in which each time lies."""
        found = np.searchsorted(self.breaks, times, side="right") - 1
        return np.clip(found, 0, self.pieces - 1)

    def maps(self, times: Array) -> tuple[Array, Array]:
        """Matrices from values at the nodes to values and rates at `times`."""
        value, rate = (np.zeros((times.size, self.nodes.size)) for _ in range(2))
        piece, widths = self.piece(times), np.diff(self.breaks)
        place = (times - self.breaks[piece]) / widths[piece]
        here, slope = lagrange(lobatto(DEGREE), place)
        for i, k in enumerate(piece):
            columns = slice(k * DEGREE, (k + 1) * DEGREE + 1)
            value[i, columns], rate[i, columns] = here[i], slope[i] / widths[k]
        return value, rate

    def quadrature(self, points: int) -> tuple[Array, Array]:
        """Gauss points of all pieces, in order, and their weights."""
        x, w = gauss(points)
        widths = np.diff(self.breaks)
        times = self.breaks[:-1, None] + widths[:, None] * x
        return times.ravel(), (widths[:, None] * w).ravel()

    def bisected(self, which: NDArray[np.bool_]) -> Curve:
        """The same with these pieces cut in two."""
        middle = 0.5 * (self.breaks[:-1] + self.breaks[1:])[which]
        return Curve(np.sort(np.concatenate([self.breaks, middle])))


@dataclass(frozen=True, eq=False)
class Piecewise:
    """A function of time, interpolated on each piece from its values at Gauss points."""

    breaks: Array
    values: Array
    """`(pieces, points, states)`."""

    def __call__(self, t: float) -> Array:
        k = int(np.clip(np.searchsorted(self.breaks, t, side="right") - 1, 0, len(self.values) - 1))
        nodes = gauss(self.values.shape[1])[0]
        x = (t - self.breaks[k]) / (self.breaks[k + 1] - self.breaks[k])
        return np.asarray(_barycentric(nodes, self.values[k], x))

    def rates(self) -> Array:
        """Derivatives at the points where it is given, `(pieces, points, states)`."""
        nodes = gauss(self.values.shape[1])[0]
        slope = lagrange(nodes, nodes)[1]
        widths = np.diff(self.breaks)[:, None, None]
        return np.asarray(np.einsum("ij,kjx->kix", slope, self.values) / widths)


@cache
def _weights(points: int) -> Array:
    nodes = gauss(points)[0]
    gaps = nodes[:, None] - nodes + np.eye(points)
    return np.asarray(1.0 / np.prod(gaps, axis=1))


def _barycentric(nodes: Array, values: Array, x: float) -> Array:
    gap = x - nodes
    near = int(np.argmin(np.abs(gap)))
    if abs(gap[near]) < 1e-14:
        return values[near]
    w = _weights(nodes.size) / gap
    return np.asarray(w @ values / w.sum())
