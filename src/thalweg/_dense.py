"""Dense helpers for compiled code that cost next to nothing to compile.

Inside compiled functions, `numpy.linalg.solve` and assignments between slices pull in numba's
checks and its formatting of error messages: 3 to 5 CPU seconds of compilation for each type of
argument. These take a tenth of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding
from numba import types
from numba.core.registry import cpu_target
from numpy.typing import NDArray

from thalweg._compile import njit

__all__ = ["copy", "solve"]

Array = NDArray[np.float64]

_SYMBOL = "numba_xgesv"
_DOUBLE = ord("d")


def _lapack() -> Any:
    """LAPACK's `dgesv` as numba's own `numpy.linalg.solve` calls it; `None` if numba renamed it."""
    _ = cpu_target.target_context  # registers numba's symbols
    if binding.address_of_symbol(_SYMBOL) is None:
        return None
    numbers, whole = types.CPointer(types.float64), types.CPointer(types.int32)
    arguments = (types.char, types.intp, types.intp, numbers, types.intp, whole, numbers)
    return types.ExternalFunction(_SYMBOL, types.intc(*arguments, types.intp))


_gesv = _lapack()


@njit(cache=True)
def copy(a: Array, out: Array) -> None:
    """`out[:] = a`, of the same length.

    >>> out = np.zeros(2)
    >>> copy(np.array([1.0, 2.0]), out)
    >>> out
    array([1., 2.])
    """
    for i in range(out.shape[0]):
        out[i] = a[i]


@njit(cache=True)
def _solve(a: Array, b: Array) -> bool:
    n, columns = b.shape
    matrix, right = np.empty((n, n)), np.empty((columns, n))
    for i in range(n):
        for j in range(n):
            matrix[j, i] = a[i, j]
        for j in range(columns):
            right[j, i] = b[i, j]
    pivot = np.empty(n, np.int32)
    failed = _gesv(
        _DOUBLE, n, columns, matrix.ctypes, n, pivot.ctypes, right.ctypes, n
    )  # fmt: skip
    for i in range(n):
        for j in range(columns):
            b[i, j] = right[j, i]
    return failed == 0


@njit(cache=True)
def _solve_by_numba(a: Array, b: Array) -> bool:
    b[:] = np.linalg.solve(a, b)
    return True


solve = _solve_by_numba if _gesv is None else _solve
"""`solve(a, b)`: replace the columns of `b` by the solutions of `a x = b`; false if singular.

>>> b = np.array([[2.0], [8.0]])
>>> solve(np.diag([1.0, 4.0]), b)
True
>>> b
array([[2.],
       [2.]])
"""
