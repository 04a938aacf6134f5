"""Dense helpers for compiled code that cost next to nothing to compile.

Inside compiled functions, `numpy.linalg.solve` and assignments between slices pull in numba's
checks and its formatting of error messages: 3 to 5 CPU seconds of compilation for each type of
argument. These take a tenth of a second.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import binding
from numba import types
from numba.core.registry import cpu_target
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array

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


@inner(cache=True, error_model="numpy")
def factor(a: Array, pivot: NDArray[np.int64]) -> bool:
    """LU in place with partial pivoting."""
    n = a.shape[0]
    for k in range(n):
        best, row = abs(a[k, k]), k
        for i in range(k + 1, n):
            if abs(a[i, k]) > best:
                best, row = abs(a[i, k]), i
        pivot[k] = row
        if not best > 0.0 or not math.isfinite(best):
            return False
        if row != k:
            for j in range(n):
                a[k, j], a[row, j] = a[row, j], a[k, j]
        inverse = 1.0 / a[k, k]
        for i in range(k + 1, n):
            factor = a[i, k] * inverse
            if factor != 0.0:
                a[i, k] = factor
                for j in range(k + 1, n):
                    a[i, j] -= factor * a[k, j]
            else:
                a[i, k] = 0.0
    return True


@inner(cache=True, error_model="numpy")
def solve_factored(a: Array, pivot: NDArray[np.int64], b: Array) -> None:
    """Solve in place for all columns of `b`, from `factor`."""
    n, m = b.shape
    for k in range(n):
        row = pivot[k]
        if row != k:
            for j in range(m):
                b[k, j], b[row, j] = b[row, j], b[k, j]
    for i in range(1, n):
        for k in range(i):
            factor = a[i, k]
            if factor != 0.0:
                for j in range(m):
                    b[i, j] -= factor * b[k, j]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            factor = a[i, k]
            if factor != 0.0:
                for j in range(m):
                    b[i, j] -= factor * b[k, j]
        inverse = 1.0 / a[i, i]
        for j in range(m):
            b[i, j] *= inverse


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
