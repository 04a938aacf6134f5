"""Functions of time for a potential that varies: one basis for every method of learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.errors import InputError


@dataclass(frozen=True)
class TimeBasis:
    """Functions of time `chi_b` for a potential `V(t) = sum_b chi_b(t) V_b`.

    >>> TimeBasis.piecewise([1.0, 2.0])(1.5)
    array([0., 1., 0.])
    """

    functions: Callable[[float], Array]
    size: int
    breaks: tuple[float, ...] | None = None

    @classmethod
    def piecewise(cls, breaks: Sequence[float]) -> TimeBasis:
        """One potential before the first break, one between each two, one after the last."""
        edges = np.asarray(breaks, dtype=np.float64)
        if edges.ndim != 1 or edges.size == 0 or np.any(np.diff(edges) <= 0):
            raise InputError(f"breaks are {list(breaks)}; give one or more increasing times.")

        def pieces(t: float) -> Array:
            out = np.zeros(edges.size + 1)
            out[int(np.searchsorted(edges, t, side="right"))] = 1.0
            return out

        return cls(pieces, edges.size + 1, tuple(edges.tolist()))

    @classmethod
    def of(cls, *functions: Callable[[float], float]) -> TimeBasis:
        """The span of these functions of time: `TimeBasis.of(lambda t: 1.0, np.sin)`."""
        if not functions:
            raise InputError("a time basis needs at least one function.")
        return cls(lambda t: np.array([float(f(t)) for f in functions]), len(functions))

    def __call__(self, t: float) -> Array:
        return self.functions(t)

    def averages(self, edges: Array) -> Array:
        """Each function averaged over each cell of a grid, shape (cells, size).

        Exact for pieces; two Gauss points per cell for smooth functions.

        >>> TimeBasis.piecewise([1.0]).averages(np.array([0.0, 4.0]))
        array([[0.25, 0.75]])
        """
        if self.breaks is not None:
            knots = np.concatenate([[-np.inf], self.breaks, [np.inf]])
            left = np.maximum(edges[:-1, None], knots[None, :-1])
            right = np.minimum(edges[1:, None], knots[None, 1:])
            return np.asarray(np.maximum(right - left, 0.0) / np.diff(edges)[:, None])
        middle, gauss = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges) / np.sqrt(3.0)
        points = np.concatenate([middle - gauss, middle + gauss])
        values = np.array([self(float(t)) for t in points])
        return np.asarray(0.5 * (values[: middle.size] + values[middle.size :]))
