"""`TimeMesh`: the interval [0, 1] in pieces, with Gauss points on each.

The discretised geodesic problem uses three linear maps of values at the Gauss points ("stages"):
the quadrature, the integral from an end of [0, 1] to each stage, and the interpolating polynomial.
With these points the optimality system of the discretised action is the symplectic Gauss method for
the geodesic equations, so `s` stages per piece give order `2 s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from thalweg._types import Array, Index

_GRADING = 2.0
"""Exponent of the grading: with it densities, powers of time at an empty end, grow like squares."""
_MAX_ORDER = 9
"""Largest number of stages per piece of a finer mesh."""
_GAIN = 10.0
"""Factor by which two more stages reduce the error of a smooth piece, approximately."""


@dataclass(frozen=True, eq=False)
class TimeMesh:
    """Pieces of the given widths (their sum is one), and the number of Gauss points on each.

    >>> mesh = TimeMesh.uniform(2, 2)
    >>> mesh.times.round(4)
    array([0.1057, 0.3943, 0.6057, 0.8943])
    >>> float(mesh.weights @ mesh.times**3)
    0.25
    """

    widths: Array
    orders: Index

    @classmethod
    def uniform(cls, pieces: int, order: int) -> TimeMesh:
        return cls(np.full(pieces, 1.0 / pieces), np.full(pieces, order))

    @classmethod
    def graded(cls, intervals: int, singular: tuple[bool, bool]) -> TimeMesh:
        """Single-stage pieces, finer towards each singular end, where widths grow linearly.

        >>> TimeMesh.graded(4, (False, False)).widths
        array([0.25, 0.25, 0.25, 0.25])
        >>> TimeMesh.graded(4, (True, True)).widths
        array([0.15625, 0.34375, 0.34375, 0.15625])
        """
        left, right = (_GRADING if s else 1.0 for s in singular)
        u = np.linspace(0, 1, intervals + 1)
        # From either end to the middle, so that no small width is a difference of numbers near one.
        first, second = betainc(left, right, u), betainc(right, left, u)
        half = intervals // 2
        widths = np.empty(intervals)
        widths[:half] = np.diff(first)[:half]
        widths[half:] = np.diff(second)[: intervals - half][::-1]
        return cls(np.asarray(widths / widths.sum()), np.ones(intervals, dtype=np.int64))

    def finer(self, errors: Array, target: float) -> TimeMesh:
        """More stages where the error is: two or four on a smooth piece, a cut elsewhere."""
        widths: list[float] = []
        orders: list[int] = []
        # An unknown error is no reason to cut: the next mesh will reveal it.
        errors = np.where(np.isfinite(errors), errors, 1e3 * target)
        for width, order, error in zip(self.widths, self.orders, errors, strict=True):
            parts, stages = 1, int(order)
            if error > target / self.pieces:
                if stages < _MAX_ORDER and error < 1e4 * target:
                    stages = min(stages + (2 if error < _GAIN * target else 4), _MAX_ORDER)
                else:
                    parts, stages = 2, min(stages, 6)
            widths += [float(width) / parts] * parts
            orders += [stages] * parts
        return TimeMesh(np.array(widths), np.array(orders))

    @property
    def pieces(self) -> int:
        return int(self.widths.size)

    @cached_property
    def start(self) -> Index:
        """The first stage of each piece, and the number of stages."""
        return np.concatenate([[0], np.cumsum(self.orders)])

    @property
    def size(self) -> int:
        """Number of stages."""
        return int(self.start[-1])

    @cached_property
    def _mirror(self) -> TimeMesh:
        return TimeMesh(self.widths[::-1].copy(), self.orders[::-1].copy())

    @cached_property
    def nodes(self) -> Array:
        """The ends of the pieces, counted from the nearer end of [0, 1]."""
        left = np.concatenate([[0.0], np.cumsum(self.widths)])
        right = np.concatenate([[0.0], np.cumsum(self.widths[::-1])])[::-1]
        nodes = np.where(left < 0.5, left, 1.0 - right)
        nodes[-1] = 1.0
        return nodes

    @cached_property
    def piece(self) -> Index:
        """The piece in which each stage lies."""
        return np.repeat(np.arange(self.pieces), self.orders)

    @cached_property
    def place(self) -> Array:
        """The place of each stage in its piece, from 0 to 1."""
        return np.concatenate([gauss(int(order))[0] for order in self.orders])

    @cached_property
    def times(self) -> Array:
        return np.asarray(self.nodes[self.piece] + self.widths[self.piece] * self.place)

    @cached_property
    def weights(self) -> Array:
        local = np.concatenate([gauss(int(order))[1] for order in self.orders])
        return np.asarray(self.widths[self.piece] * local)

    @cached_property
    def late(self) -> NDArray[np.bool_]:
        """Stages whose density is integrated backwards from the second end point."""
        return self.is_late(self.piece, self.place)

    def is_late(self, piece: Index, place: Array) -> NDArray[np.bool_]:
        return np.asarray(self.nodes[piece] + self.widths[piece] * place > 0.5)

    @cached_property
    def forward(self) -> Array:
        """`J` with `J f = integral of f from 0 to each stage`."""
        return self.integral_to(self.piece, self.place)

    @cached_property
    def from_ends(self) -> Array:
        """`J` for early stages, minus the integral to 1 for late ones: no cancellation at 1."""
        return self.integral_from_ends(self.piece, self.place)

    @cached_property
    def middle(self) -> Array:
        """Row of the integral from 0 to 1/2."""
        return self.integral_to(*self.locate(np.array([0.5])))[0]

    @cached_property
    def from_middle(self) -> Array:
        """The integral from 1/2 to each stage."""
        return self.integral_from_middle(self.piece, self.place)

    def integral_from_middle(self, piece: Index, place: Array) -> Array:
        rows = self.integral_from_ends(piece, place)
        late = self.is_late(piece, place)
        rows[late] += self.weights - self.middle
        rows[~late] -= self.middle
        return rows

    def integral_from_ends(self, piece: Index, place: Array) -> Array:
        rows = self.integral_to(piece, place)
        late = self.is_late(piece, place)
        backward = self._mirror.integral_to(self.pieces - 1 - piece[late], 1.0 - place[late])
        rows[late] = -backward[:, ::-1]
        return rows

    def locate(self, times: Array) -> tuple[Index, Array]:
        """The piece of each time and its place in it, from 0 to 1."""
        nodes = self.nodes
        k = np.clip(np.searchsorted(nodes, times, side="right") - 1, 0, self.pieces - 1)
        return k, np.clip((times - nodes[k]) / self.widths[k], 0.0, 1.0)

    def interpolate(self, piece: Index, place: Array) -> Array:
        """Matrix that evaluates the piecewise polynomial through the stage values."""
        out = np.zeros((place.size, self.size))
        self._fill(out, piece, place, _values, scaled=False)
        return out

    def integral_to(self, piece: Index, place: Array) -> Array:
        """Matrix that integrates that polynomial from 0 to the given places."""
        earlier = np.arange(self.size) < self.start[piece][:, None]
        out = np.where(earlier, self.weights, 0.0)
        self._fill(out, piece, place, _integrals, scaled=True)
        return out

    def _fill(self, out: Array, piece: Index, place: Array, local: object, *, scaled: bool) -> None:
        for order in np.unique(self.orders[piece]):
            rows = np.flatnonzero(self.orders[piece] == order)
            values = local(int(order), place[rows])  # type: ignore[operator]
            if scaled:
                values = values * self.widths[piece[rows]][:, None]
            columns = self.start[piece[rows]][:, None] + np.arange(order)
            out[rows[:, None], columns] = values


@cache
def gauss(order: int) -> tuple[Array, Array]:
    """Points and weights of Gauss and Legendre on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(order)
    return 0.5 * (1 + x), 0.5 * w


@cache
def _coefficients(order: int) -> Array:
    """Legendre coefficients of the polynomial through values at the Gauss points."""
    points, weights = gauss(order)
    p = np.polynomial.legendre.legvander(2 * points - 1, order - 1)
    return np.asarray((2 * np.arange(order) + 1)[:, None] * (p * weights[:, None]).T)


def _values(order: int, place: Array) -> Array:
    p = np.polynomial.legendre.legvander(2 * place - 1, order - 1)
    return np.asarray(p @ _coefficients(order))


def _integrals(order: int, place: Array) -> Array:
    p = np.polynomial.legendre.legvander(2 * place - 1, order)
    integral = np.empty((place.size, order))
    integral[:, 0] = place
    for k in range(1, order):
        integral[:, k] = (p[:, k + 1] - p[:, k - 1]) / (2 * (2 * k + 1))
    return np.asarray(integral @ _coefficients(order))
