"""Curves in time that are polynomials on each of several pieces, and continuous.

A curve is given by its values at the Gauss-Lobatto nodes of each piece; neighbouring pieces share
one. Values and rates anywhere are linear in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.interpolate import BPoly

from thalweg._types import Array, Mask
from thalweg.paths.mesh import gauss

DEGREE = 6
"""Degree of the polynomials: 4 needed twice the nodes for the same gap, 8 gained nothing."""


@cache
def lobatto() -> Array:
    """The nodes on [0, 1], ends included."""
    inner = np.polynomial.legendre.Legendre.basis(DEGREE).deriv().roots()
    return np.concatenate([[0.0], 0.5 + 0.5 * np.sort(inner.real), [1.0]])


@cache
def _nodal() -> tuple[BPoly, BPoly]:
    """The cardinal polynomials of the nodes, and their derivatives."""
    basis = cardinal(lobatto())
    return basis, basis.derivative()


def cardinal(nodes: Array) -> BPoly:
    """The polynomials on [0, 1] that are one at one node, zero at the others.

    >>> line = cardinal(np.array([0.0, 1.0]))
    >>> line(0.25), line.derivative()(0.25)
    (array([0.75, 0.25]), array([-1.,  1.]))
    """
    bernstein = BPoly(np.eye(nodes.size)[:, None], [0.0, 1.0])
    return BPoly(np.linalg.inv(bernstein(nodes))[:, None], [0.0, 1.0])


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
        inner = self.breaks[:-1, None] + widths[:, None] * lobatto()[None, :-1]
        return np.append(inner.ravel(), self.breaks[-1])

    def maps(self, times: Array) -> tuple[Array, Array]:
        """Matrices from values at the nodes to values and rates at `times`."""
        value, rate = (np.zeros((times.size, self.nodes.size)) for _ in range(2))
        widths = np.diff(self.breaks)
        piece = np.searchsorted(self.breaks[1:-1], times, side="right")
        place = (times - self.breaks[piece]) / widths[piece]
        here, slope = (part(place) for part in _nodal())
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

    def bisected(self, which: Mask) -> Curve:
        """The same with these pieces cut in two."""
        middle = 0.5 * (self.breaks[:-1] + self.breaks[1:])[which]
        return Curve(np.sort(np.concatenate([self.breaks, middle])))


def interpolated(breaks: Array, values: Array) -> BPoly:
    """The function of time with these `values`, one row per Gauss point of each piece.

    >>> square = interpolated(np.array([0.0, 2.0]), gauss(3)[0][:, None] ** 2)
    >>> square(1.0).round(12), square.derivative()(1.0).round(12)
    (array([0.25]), array([0.5]))
    """
    pieces = values.reshape(breaks.size - 1, -1, values.shape[-1])
    basis = cardinal(gauss(pieces.shape[1])[0]).c[:, 0]
    return BPoly((basis @ pieces).swapaxes(0, 1), breaks)
