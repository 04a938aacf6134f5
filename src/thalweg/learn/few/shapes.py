"""Gaussian priors of several smoothness for the potential and for the initial log density.

The precision of shape `p` is `(N L)^p`, with the graph's Laplacian `x^T L x = sum_e c_e (x_s -
x_t)^2`: `p = 0` is noise, `p = 1` a random walk along the graph, `p = 3` a smooth field. All shapes
are scaled to the same mean square difference along an edge, so that one strength means the same
size of potential in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

__all__ = ["FieldPrior", "Shape", "make_shapes"]

_GAUGE = 1e-3
"""Precision of constants, relative to the strength: they change no flow, but must be held."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A precision matrix over the states, and the logarithm of its determinant."""

    power: int
    matrix: Array
    log_determinant: float


def make_shapes(kernel: MarkovKernel, powers: tuple[int, ...]) -> tuple[Shape, ...]:
    """The shapes of these powers on a graph.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> [shape.power for shape in make_shapes(kernel, (0, 2))]
    [0, 2]
    """
    n = kernel.n_states
    flow = kernel.flow_matrix.toarray()
    values, vectors = np.linalg.eigh(n * (np.diag(flow.sum(axis=1)) - flow))
    moves = values > 1e-9 * max(float(values.max()), 1e-300)
    size = np.where(moves, values, 1.0)
    shapes = []
    for power in powers:
        scaled = size**power
        scaled *= np.sum(np.where(moves, size / scaled, 0.0)) / max(1, int(moves.sum()))
        scaled = np.where(moves, scaled, _GAUGE)
        matrix = np.asarray((vectors * scaled) @ vectors.T)
        shapes.append(Shape(power, matrix, float(np.log(scaled).sum())))
    return tuple(shapes)


@dataclass(frozen=True, eq=False)
class FieldPrior:
    """Independent zero-mean Gaussian priors of the potential and the initial log density."""

    potential: Shape
    initial: Shape
    potential_strength: float
    initial_strength: float
    scale: float = 1.0
    """The ordinary size of a change of the potential."""

    @cached_property
    def precision(self) -> Array:
        k = self.potential.matrix.shape[0]
        total = np.zeros((2 * k, 2 * k))
        total[:k, :k] = self.potential_strength * self.potential.matrix
        total[k:, k:] = self.initial_strength * self.initial.matrix
        return total

    @property
    def log_determinant(self) -> float:
        k = self.potential.matrix.shape[0]
        return (
            k * float(np.log(self.potential_strength) + np.log(self.initial_strength))
            + self.potential.log_determinant
            + self.initial.log_determinant
        )

    @property
    def units(self) -> Array:
        """The ordinary size of a change of each parameter."""
        k = self.potential.matrix.shape[0]
        return np.concatenate([np.full(k, self.scale), np.ones(k)])

    def quadratic(self, theta: Array) -> tuple[float, Array, Array]:
        """Value, gradient and Hessian of minus the log prior, up to a constant."""
        gradient = self.times(theta)
        return 0.5 * float(theta @ gradient), gradient, self.precision

    def times(self, theta: Array) -> Array:
        """The precision times a vector."""
        k = self.potential.matrix.shape[0]
        return np.concatenate(
            [
                self.potential_strength * (self.potential.matrix @ theta[:k]),
                self.initial_strength * (self.initial.matrix @ theta[k:]),
            ]
        )
