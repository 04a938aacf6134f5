"""Conjugate gradients for several right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thalweg._types import Array

Map = Callable[[Array], Array]


def conjugate_gradients(
    curvature: Map,
    right: Array,
    preconditioner: Map,
    *,
    tolerance: float | Array,
    least: float = 0.0,
    max_iterations: int = 60,
    min_iterations: int = 0,
    guess: Array | None = None,
) -> tuple[Array, int]:
    """`H^-1 right` for every column, and the number of iterations.

    The iterations end when the squared error in the norm of `H`, estimated by the preconditioner,
    is below `least` or below `tolerance**2` times the squared size of the solution.
    """
    y = preconditioner(right)
    goal = np.maximum(tolerance**2 * np.sum(right * y, axis=0), max(least, 1e-300))
    x, r = np.zeros_like(right), right.copy()
    if guess is not None:
        x = guess.copy()
        r -= curvature(x)
        y = preconditioner(r)
    d = y.copy()
    ry = np.sum(r * y, axis=0)
    for k in range(max_iterations):
        if k >= min_iterations and np.all(ry <= goal):
            return x, k
        Hd = curvature(d)
        step = ry / np.maximum(np.sum(d * Hd, axis=0), 1e-300)
        x += step * d
        r -= step * Hd
        y = preconditioner(r)
        new = np.sum(r * y, axis=0)
        d = y + (new / np.maximum(ry, 1e-300)) * d
        ry = new
    return x, max_iterations
