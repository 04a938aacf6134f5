"""Dense Cholesky (LAPACK `potrf`): small graphs, and graphs with most of their edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from thalweg.laplacian.pattern import Array, Pattern


@dataclass(frozen=True, eq=False)
class DenseAnalysis:
    """Nothing to prepare: the matrix is filled anew for each set of weights."""

    pattern: Pattern

    def factor(self, weights: Array) -> DenseFactor:
        n = self.pattern.n_nodes
        flat = self.pattern.source.astype(np.int64) * n + self.pattern.target
        m = np.bincount(flat, weights, n * n).reshape(n, n)
        m = m + m.T
        degree = m.sum(axis=1)
        np.negative(m, out=m)
        m[np.diag_indices(n)] = degree
        # The heaviest node is grounded: every other pivot then keeps most of its digits.
        ground = int(np.argmax(degree))
        keep = np.delete(np.arange(n), ground)
        cholesky, info = lapack.dpotrf(m[np.ix_(keep, keep)].T, lower=1, overwrite_a=1)
        return DenseFactor(n, keep, cholesky, info == 0)


@dataclass(frozen=True, eq=False)
class DenseFactor:
    n_nodes: int
    keep: np.ndarray[tuple[int], np.dtype[np.intp]]
    cholesky: Array
    positive: bool

    def apply(self, r: Array) -> Array:
        z = np.zeros(self.n_nodes)
        if not self.positive:
            return np.full(self.n_nodes, np.nan)
        z[self.keep], _ = lapack.dpotrs(self.cholesky, r[self.keep], lower=1)
        return z
