"""Sparse Cholesky by CHOLMOD: an optional accelerator for graphs with little fill.

Needs `pip install 'thalweg[cholmod]'` and the SuiteSparse headers. The fill-reducing ordering and
the symbolic factor are made once for a pattern and reused for every set of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg.errors import MissingDependencyError
from thalweg.laplacian.pattern import GroundedFactor, Pattern


def available() -> bool:
    """Whether scikit-sparse is installed."""
    return find_spec("sksparse") is not None


@dataclass(frozen=True, eq=False)
class CholmodAnalysis:
    """The symbolic factor, and where each weight goes in the grounded matrix."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    ground: int
    symbolic: Any
    indices: NDArray[np.int32]
    indptr: NDArray[np.int32]
    inner: NDArray[np.bool_]
    diagonal: NDArray[np.int64]
    off_diagonal: NDArray[np.int64]
    relabelling: None = None

    @classmethod
    def of(
        cls, pattern: Pattern, *, mode: Literal["auto", "simplicial"] = "auto"
    ) -> CholmodAnalysis:
        try:
            from sksparse.cholmod import analyze
        except ImportError:
            raise MissingDependencyError(
                "method='cholmod' needs scikit-sparse: pip install 'thalweg[cholmod]' (and the "
                "SuiteSparse headers, for instance Debian's libsuitesparse-dev)."
            ) from None
        n, source, target = pattern.n_nodes, pattern.source, pattern.target
        ground = int(np.argmax(pattern.degrees(np.ones(pattern.n_edges))))
        inner = (source != ground) & (target != ground)
        row = (source - (source > ground))[inner].astype(np.int64)
        column = (target - (target > ground))[inner].astype(np.int64)
        low, high = np.maximum(row, column), np.minimum(row, column)
        size = n - 1
        # CHOLMOD reads the lower triangle only; positions are those of the sorted column-major key.
        everywhere = np.arange(size, dtype=np.int64)
        keys, place = np.unique(
            np.concatenate([everywhere * (size + 1), high * size + low]), return_inverse=True
        )
        indices = (keys % size).astype(np.int32)
        indptr = np.searchsorted(keys, np.arange(size + 1) * size).astype(np.int32)
        start = np.where(np.isin(np.arange(keys.size), place[:size]), 2.0 * size, -1.0)
        matrix = sparse.csc_matrix((start, indices, indptr), shape=(size, size))
        symbolic = analyze(matrix, mode=mode)
        return cls(pattern, ground, symbolic, indices, indptr, inner, place[:size], place[size:])

    def factor(self, weights: Array) -> GroundedFactor | None:
        from sksparse.cholmod import CholmodNotPositiveDefiniteError

        n, degree = self.pattern.n_nodes, self.pattern.degrees(weights)
        data = -np.bincount(self.off_diagonal, weights[self.inner], self.indices.size)
        data[self.diagonal] = np.delete(degree, self.ground)
        matrix = sparse.csc_matrix((data, self.indices, self.indptr), shape=(n - 1, n - 1))
        try:
            return GroundedFactor(self.ground, self.symbolic.cholesky(matrix))
        except CholmodNotPositiveDefiniteError:
            return None
