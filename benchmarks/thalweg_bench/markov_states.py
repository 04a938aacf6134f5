"""A rival that needs transitions, which snapshots lack: a reversible Markov-state model."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._compile import njit
from thalweg._types import Array
from thalweg.errors import InputError

__all__ = ["reversible_msm"]

_PSEUDO_COUNT = 0.5
"""Added to every pair of states that were left for each other (Jeffreys' prior)."""


def reversible_msm(
    transitions: ArrayLike, *, pseudo_count: float = _PSEUDO_COUNT, tolerance: float = 1e-8
) -> Array:
    """The likeliest reversible transition matrix of counted transitions: a Markov-state model.

    With `x_ij = pi_i P_ij` symmetric, the likelihood's maximum is the fixed point of
    `x_ij = (c_ij + c_ji) / (c_i / x_i + c_j / x_j)`, rows summed where an index is missing. Where a
    transition was seen one way, `pseudo_count` is added both ways: without it, a state that empties
    for good has no weight at all. States that were never left stay where they are.

    >>> reversible_msm([[8, 2], [4, 6]], pseudo_count=0).round(6)
    array([[0.8, 0.2],
           [0.4, 0.6]])
    """
    c = _checks.as_array(transitions, "transitions")
    if c.ndim != 2 or c.shape[0] != c.shape[1]:
        raise InputError(f"transitions have shape {c.shape}; give a square table of counts.")
    c = c + pseudo_count * ((c + c.T) > 0)
    x = _reversible_flow(c + c.T, c.sum(axis=1), tolerance)
    mass = x.sum(axis=1, keepdims=True)
    p = np.divide(x, mass, out=np.zeros_like(x), where=mass > 0)
    lost = np.flatnonzero(p.sum(axis=1) == 0)
    p[lost, lost] = 1.0
    return np.asarray(p / p.sum(axis=1, keepdims=True))


@njit(cache=True)
def _reversible_flow(both: Array, left: Array, tolerance: float) -> Array:
    """The fixed point of `reversible_msm`, mass one."""
    n = left.size
    x = both / max(both.sum(), 1e-300)
    mass, pull = np.empty(n), np.empty(n)
    for _ in range(100_000):
        for i in range(n):
            mass[i] = x[i].sum()
            pull[i] = left[i] / mass[i] if mass[i] > 0 else 0.0
        for i in range(n):
            for j in range(n):
                weight = pull[i] + pull[j]
                x[i, j] = both[i, j] / weight if weight > 0 else 0.0
        x /= max(x.sum(), 1e-300)
        largest = 0.0
        for i in range(n):
            largest = max(largest, abs(x[i].sum() - mass[i]) / max(mass[i], 1e-300))
        if largest < tolerance:
            break
    return x
