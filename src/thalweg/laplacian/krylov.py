"""Restarted GMRES for a matrix-free operator, with the residual history a caller can act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["KrylovSolution", "gmres"]

Array = NDArray[np.float64]


class KrylovSolution(NamedTuple):
    x: Array
    iterations: int
    residual: float
    """Relative to the norm of the right-hand side."""


def gmres(
    operator: Callable[[Array], Array],
    right: Array,
    *,
    tolerance: float,
    max_iterations: int,
    restart: int = 100,
) -> KrylovSolution:
    """`x` with `|b - A x| <= tolerance |b|`, or the best after `max_iterations`.

    The basis has the precision of `right`: single is enough for loose tolerances, at half the cost.
    """
    size = float(np.linalg.norm(right))
    x = np.zeros_like(right)
    if size == 0.0:
        return KrylovSolution(x, 0, 0.0)
    done, residual = 0, 1.0
    remainder = right
    while done < max_iterations:
        steps = min(restart, max_iterations - done)
        update, used = _cycle(operator, remainder, tolerance * size, steps)
        x = x + update
        done += used
        if used < steps and done <= restart:
            # The first cycle ended by itself: its own estimate is good enough.
            return KrylovSolution(x, done, tolerance)
        remainder = right - operator(x)
        previous, residual = residual, float(np.linalg.norm(remainder)) / size
        if residual <= 1.5 * tolerance or residual > 0.9 * previous or not np.isfinite(residual):
            break
    return KrylovSolution(x, done, residual)


def _cycle(
    operator: Callable[[Array], Array], right: Array, tolerance: float, steps: int
) -> tuple[Array, int]:
    norm = float(np.linalg.norm(right))
    if norm == 0.0 or not np.isfinite(norm):
        return np.zeros_like(right), 1
    capacity = min(steps, 16)
    basis = np.empty((capacity + 1, right.size), right.dtype)
    basis[0] = right / norm
    hessenberg = np.zeros((steps + 1, steps))
    cosine, sine = np.zeros(steps), np.zeros(steps)
    rotated = np.zeros(steps + 1)
    rotated[0] = norm
    k = 0
    while k < steps:
        if k + 2 > basis.shape[0]:
            grown = np.empty((min(2 * basis.shape[0], steps + 1), right.size), right.dtype)
            grown[: basis.shape[0]] = basis
            basis = grown
        new = operator(basis[k])
        before = float(np.linalg.norm(new))
        for _ in range(2):
            # Twice is enough: the second pass removes what rounding left of the first.
            parts = basis[: k + 1] @ new
            new = new - parts @ basis[: k + 1]
            hessenberg[: k + 1, k] += parts
            height = float(np.linalg.norm(new))
            if height > 0.1 * before:
                break
        if not np.isfinite(height):
            break
        hessenberg[k + 1, k] = height
        column = hessenberg[:, k]
        for i in range(k):
            top = cosine[i] * column[i] + sine[i] * column[i + 1]
            column[i + 1] = -sine[i] * column[i] + cosine[i] * column[i + 1]
            column[i] = top
        length = float(np.hypot(column[k], column[k + 1]))
        if length == 0.0:
            break
        cosine[k], sine[k] = column[k] / length, column[k + 1] / length
        column[k], column[k + 1] = length, 0.0
        rotated[k + 1] = -sine[k] * rotated[k]
        rotated[k] *= cosine[k]
        k += 1
        if abs(rotated[k]) <= tolerance or height <= 1e-14 * length:
            break
        basis[k] = new / height
    if k == 0:
        return np.zeros_like(right), 1
    coefficients = np.linalg.solve(np.triu(hessenberg[:k, :k]), rotated[:k])
    return np.asarray(coefficients.astype(right.dtype) @ basis[:k]), k
