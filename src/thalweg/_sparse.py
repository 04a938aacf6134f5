"""Sparse matrices from outside, checked before compiled code follows their indices.

scipy trusts the index arrays of a matrix and reads foreign memory if they are out of range; a file,
or a caller who assembles the arrays by hand, can put anything there. `as_sparse` is the one place
that checks them, and returns a new CSR array that every later step may trust.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg.errors import InputError

_COMPRESSED = ("csr", "csc", "bsr")
_REMEDY = "build it with scipy.sparse.csr_array((values, (rows, columns)), shape=...)"


def as_sparse(matrix: Any, name: str) -> sparse.csr_array:
    """Copy a scipy sparse matrix into a canonical float64 CSR array with finite entries.

    Parameters
    ----------
    matrix : sparse array or matrix
        Any scipy sparse format; repeated entries are summed.
    name : str
        What the matrix is called in messages.

    Returns
    -------
    scipy.sparse.csr_array
        Sorted, without repeated entries; shares no memory with `matrix`.

    Raises
    ------
    InputError
        If an index is out of range, a pointer falls, sizes disagree, or a value is not a finite
        real number.

    >>> bad = sparse.csr_array([[0, 1.0], [1.0, 0]])
    >>> bad.indices[1] = 9
    >>> as_sparse(bad, "weights")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: weights is not a valid sparse matrix: column 9 of entry 1 is outside
    0 .. 1; build it with scipy.sparse.csr_array((values, (rows, columns)), shape=...).
    """
    if matrix.ndim != 2:
        raise InputError(f"{name} has {matrix.ndim} dimension(s); give a matrix.")
    rows, columns = (int(size) for size in matrix.shape)
    if matrix.format in _COMPRESSED:
        _check_compressed(matrix, rows, columns, name)
    elif matrix.format == "coo":
        _check_coordinates(matrix, rows, columns, name)
    elif matrix.format == "dia":
        _check_diagonals(matrix, rows, columns, name)
    else:
        # Lists and dictionaries of Python objects: unpacked here, not by scipy.
        matrix = _from_objects(matrix, name)
        _check_coordinates(matrix, rows, columns, name)
    _check_values(matrix.data, name)
    csr = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    csr.sum_duplicates()
    if not np.isfinite(csr.data).all():
        entry = int(np.argmax(~np.isfinite(csr.data)))
        row = int(np.searchsorted(csr.indptr, entry, side="right")) - 1
        raise InputError(
            f"{name} is {csr.data[entry]} between {row} and {int(csr.indices[entry])}; every entry "
            "must be a finite number: remove or correct it."
        )
    return csr


def dense(values: Any) -> Array:
    """`values` as an ordinary array, whether they are sparse or not.

    >>> dense(sparse.csr_array([[0.0, 2.0]])), dense([[0.0, 2.0]])
    (array([[0., 2.]]), array([[0., 2.]]))
    """
    return np.asarray(values.toarray() if sparse.issparse(values) else values)


def _refuse(name: str, why: str) -> InputError:
    return InputError(f"{name} is not a valid sparse matrix: {why}; {_REMEDY}.")


def _indices(values: Any, what: str, name: str) -> NDArray[np.integer[Any]]:
    """`values` as a flat array of integers."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refuse(name, f"its {what} are {array.ndim}-dimensional {array.dtype}, not integers")
    return array


def _in_range(values: NDArray[np.integer[Any]], size: int, what: str, name: str) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        entry = int(np.argmax((values < 0) | (values >= size)))
        raise _refuse(
            name, f"{what} {int(values[entry])} of entry {entry} is outside 0 .. {size - 1}"
        )


def _check_compressed(matrix: Any, rows: int, columns: int, name: str) -> None:
    indptr = _indices(matrix.indptr, "pointers", name)
    indices = _indices(matrix.indices, "indices", name)
    data = np.asarray(matrix.data)
    across, along = (columns, rows) if matrix.format == "csc" else (rows, columns)
    what = "row" if matrix.format == "csc" else "column"
    if matrix.format == "bsr":
        if data.ndim != 3 or min(data.shape[1:]) < 1:
            raise _refuse(name, f"its blocks have shape {data.shape}")
        height, width = data.shape[1:]
        if rows % height or columns % width:
            raise _refuse(name, f"blocks of {height} x {width} do not tile {rows} x {columns}")
        across, along, what = rows // height, columns // width, "block column"
    elif data.ndim != 1:
        raise _refuse(name, f"its values have shape {data.shape}")
    if indptr.size != across + 1:
        raise _refuse(name, f"it has {indptr.size} pointers where {across + 1} belong")
    if len(data) != indices.size:
        raise _refuse(name, f"it has {len(data)} values for {indices.size} indices")
    if indptr[0] != 0 or indptr[-1] > indices.size or (np.diff(indptr.astype(np.int64)) < 0).any():
        raise _refuse(
            name, f"its pointers must rise from 0 to at most the number of entries, {indices.size}"
        )
    _in_range(indices, along, what, name)


def _check_coordinates(matrix: Any, rows: int, columns: int, name: str) -> None:
    if len(matrix.coords) != 2:
        raise _refuse(name, f"it has {len(matrix.coords)} coordinates for each entry")
    row = _indices(matrix.coords[0], "rows", name)
    column = _indices(matrix.coords[1], "columns", name)
    data = np.asarray(matrix.data)
    if data.ndim != 1 or not row.size == column.size == data.size:
        raise _refuse(name, f"it has {row.size} rows, {column.size} columns and {data.size} values")
    _in_range(row, rows, "row", name)
    _in_range(column, columns, "column", name)


def _check_diagonals(matrix: Any, rows: int, columns: int, name: str) -> None:
    offsets = _indices(matrix.offsets, "offsets", name)
    data = np.asarray(matrix.data)
    if data.ndim != 2 or data.shape[0] != offsets.size:
        raise _refuse(name, f"it has {offsets.size} diagonals for values of shape {data.shape}")
    if offsets.size and (offsets.min() <= -rows or offsets.max() >= columns):
        raise _refuse(name, f"a diagonal lies outside {rows} x {columns}")
    if np.unique(offsets).size < offsets.size:
        raise _refuse(name, "it has the same diagonal twice")


def _from_objects(matrix: Any, name: str) -> sparse.coo_array:
    """The entries of a list-of-lists or dictionary matrix, or of any that converts itself."""
    try:
        if matrix.format == "lil":
            lengths = [len(line) for line in matrix.rows]
            row = np.repeat(np.arange(len(lengths)), lengths)
            column = np.array([int(x) for line in matrix.rows for x in line], dtype=np.int64)
            value = np.array([x for line in matrix.data for x in line])
        elif matrix.format == "dok":
            keys = [(int(x), int(y)) for x, y in matrix.keys()]  # noqa: SIM118 (iterating gives no keys)
            row, column = np.array(keys, dtype=np.int64).reshape(-1, 2).T
            value = np.array(list(matrix.values()))
        else:
            raise InputError(f"{name} has the sparse format {matrix.format!r}; convert it to CSR.")
        if not row.size == column.size == value.size:
            raise _refuse(name, "its rows and values differ in length")
        found = sparse.coo_array(matrix.shape)
        found.coords, found.data = (row, column), value
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise _refuse(name, f"its entries are not numbers ({error})") from None
    return found


def _check_values(data: Any, name: str) -> None:
    kind = np.asarray(data).dtype.kind
    if kind == "c":
        raise InputError(f"{name} holds complex numbers; take the real part if that is meant.")
    if kind not in "fiub":
        raise InputError(f"{name} holds values of type {np.asarray(data).dtype}; give numbers.")
