"""A potential on R^d and time, and the flow of points down it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.points.landscape.features import Basis

_CHUNK = 500
"""Individuals processed together."""
_MARGIN = 0.05
"""Margin of the box, as a share of the points' extent."""
END, MIDDLE = float(np.sqrt(1 / 6)), float(np.sqrt(4 / 6))
"""Roots of the shares of a step's noise at its ends and in its middle, by Simpson's rule."""


def time_basis(times: Array, time: float, order: int) -> Array:
    """Legendre polynomials of degree 0 to `order` over the span of `times`."""
    u = 2 * (time - times[0]) / (times[-1] - times[0]) - 1
    return np.array([np.polynomial.Legendre.basis(b)(u) for b in range(order + 1)])


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
        theta = self.at(time)
        parts = [self.basis.slope(x[a : a + _CHUNK], theta) for a in range(0, len(x), _CHUNK)]
        return np.concatenate(parts) if parts else np.zeros_like(x)

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
            return 0.0 if rng is None or not size else share * size * rng.standard_normal(x.shape)

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
