"""Distances between probabilities, state by state, without the geometry of the graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array
from thalweg.errors import InputError


@checked
def hellinger(p: ArrayLike, q: ArrayLike) -> Array:
    """`|sqrt(p) - sqrt(q)| / sqrt(2)`, between 0 and 1; over rows, with broadcasting.

    Written with `(p - q) / (sqrt p + sqrt q)`, so that it keeps its digits where `p` is close to
    `q`: the difference of two roots would lose them.

    >>> float(hellinger([1, 0], [0, 1]))
    1.0
    >>> hellinger([[0.5, 0.5], [1.0, 0.0]], [0.5, 0.5]).round(4)
    array([0.    , 0.5412])
    """
    a, b = _pair(p, q)
    total = np.sqrt(a) + np.sqrt(b)
    difference = np.divide(a - b, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(np.sqrt(0.5 * (difference**2).sum(axis=-1)))


def total_variation(p: ArrayLike, q: ArrayLike) -> Array:
    """`sum |p - q| / 2`: the mass that would have to move; over rows, with broadcasting.

    >>> float(total_variation([1, 0], [0.75, 0.25]))
    0.25
    """
    a, b = _pair(p, q)
    return np.asarray(0.5 * abs(a - b).sum(axis=-1))


def _pair(p: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    a, b = _checks.as_array(p, "p"), _checks.as_array(q, "q")
    for name, array in (("p", a), ("q", b)):
        if array.ndim == 0:
            raise InputError(f"{name} is a single number; give a distribution.")
        if array.size and array.min() < 0:
            raise InputError(f"{name} is {array.min():.6g} somewhere; clip it at zero.")
        sums = array.sum(axis=-1)
        if np.any(abs(sums - 1) > 1e-6):
            worst = float(sums.ravel()[np.argmax(abs(sums - 1))])
            raise InputError(f"{name} sums to {worst:.8g}, not 1; divide it by its sum.")
    if a.shape[-1] != b.shape[-1]:
        raise InputError(
            f"p has {a.shape[-1]} states and q has {b.shape[-1]}; compare like with like."
        )
    try:
        left, right = np.broadcast_arrays(a, b)
    except ValueError:
        raise InputError(
            f"shapes {a.shape} and {b.shape} do not match; give one q, or one per row of p."
        ) from None
    return left, right
