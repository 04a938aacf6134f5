"""Dense Cholesky (LAPACK `potrf`): small graphs, and graphs with most of their edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import lapack

from thalweg._types import Array
from thalweg.laplacian.pattern import Pattern


@dataclass(frozen=True, eq=False)
class DenseAnalysis:
    """No preparation: the matrix is filled again for each set of weights."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    relabelling: None = None

    def factor(self, weights: Array) -> DenseFactor | None:
        n, source, target = self.pattern.n_nodes, self.pattern.source, self.pattern.target
        degree = np.bincount(source, weights, n) + np.bincount(target, weights, n)
        # The heaviest node is grounded: the other pivots then keep most of their digits.
        ground = int(np.argmax(degree))
        full = np.diag(degree)
        np.subtract.at(full, (np.maximum(source, target), np.minimum(source, target)), weights)
        rest = np.delete(np.arange(n), ground)
        matrix = np.asfortranarray(full[np.ix_(rest, rest)])
        cholesky, info = lapack.dpotrf(matrix, lower=1, overwrite_a=1)
        return DenseFactor(cholesky, ground) if info == 0 else None


@dataclass(frozen=True, eq=False)
class DenseFactor:
    cholesky: Array
    ground: int

    def apply(self, r: Array, out: Array) -> None:
        g = self.ground
        z, _ = lapack.dpotrs(self.cholesky, np.delete(r, g), lower=1, overwrite_b=1)
        out[:g], out[g], out[g + 1 :] = z[:g], 0.0, z[g:]
