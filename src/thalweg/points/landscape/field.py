"""A potential on R^d and time, and the flow of points down it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.polynomial.legendre import legvander

from thalweg._types import Array
from thalweg.points.landscape.features import Basis

CHUNK = 500
"""Individuals processed together."""
_MARGIN = 0.05
"""Margin of the box, as a share of the points' extent."""
END, MIDDLE = float(np.sqrt(1 / 6)), float(np.sqrt(4 / 6))
"""Roots of the shares of a step's noise at its ends and in its middle, by Simpson's rule."""


def time_basis(times: Array, time: float, order: int) -> Array:
    """Legendre polynomials of degree 0 to `order` over the span of `times`."""
    u = 2 * (time - times[0]) / (times[-1] - times[0]) - 1
    return np.asarray(legvander(u, order)[0])


def in_chunks(function: Callable[[Array], Array], x: Array) -> Array:
    """`function` of the points, some hundred at a time."""
    return np.concatenate([function(x[a : a + CHUNK]) for a in range(0, max(len(x), 1), CHUNK)])


def bounding_box(clouds: tuple[Array, ...]) -> tuple[Array, Array]:
    """Least and greatest coordinates, with a margin of a twentieth."""
    low = np.min([x.min(axis=0) for x in clouds], axis=0)
    high = np.max([x.max(axis=0) for x in clouds], axis=0)
    return low - _MARGIN * (high - low), high + _MARGIN * (high - low)


@dataclass(frozen=True, eq=False)
class Field:
    """A potential on R^d and time: `weights` has one row per time function."""

    basis: Basis
    weights: Array
    times: Array
    box: tuple[Array, Array] | None = None
    """The box in which points were seen; outside it flows keep the slope of its edge."""

    def at(self, time: float) -> Array:
        """Weights of the functions at a time."""
        return time_basis(self.times, time, self.weights.shape[0] - 1) @ self.weights

    def gradient(self, x: Array, time: float) -> Array:
        return in_chunks(partial(self.basis.slope, weights=self.at(time)), x)

    def _slope(self, x: Array, time: float) -> Array:
        return self.gradient(x if self.box is None else np.clip(x, *self.box), time)

    def flow(
        self, x: Array, span: tuple[float, float], steps: int, *,
        beta: float = 0.0, rng: np.random.Generator | None = None, euler: bool = False,
    ) -> Array:  # fmt: skip
        """Points carried over `span`, backwards if it falls; with noise if `rng` is given."""
        h = (span[1] - span[0]) / steps
        size = np.sqrt(2 * beta * h) if rng is not None and beta > 0 and h > 0 else 0.0

        def kick(share: float) -> Array | float:
            return share * size * rng.standard_normal(x.shape) if rng and size else 0.0

        for s in range(steps):
            middle = span[0] + (s + 0.5) * h
            if euler:
                x = x - h * self._slope(x, middle) + kick(1.0)
            else:
                x = self.step(x + kick(END), middle, h, kick(MIDDLE)) + kick(END)
        return x

    def step(self, x: Array, middle: float, h: float, kick: Array | float = 0.0) -> Array:
        """One midpoint step with an impulse at its middle."""
        halfway = x - 0.5 * h * self._slope(x, middle) + 0.5 * kick
        return x - h * self._slope(halfway, middle) + kick
