"""Dense Cholesky (LAPACK `potrf`): small graphs, and graphs with most of their edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import lapack

from thalweg._types import Array
from thalweg.laplacian.pattern import GroundedFactor, Pattern


@dataclass(frozen=True, eq=False)
class DenseAnalysis:
    """No preparation: the matrix is filled again for each set of weights."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    relabelling: None = None

    def factor(self, weights: Array) -> GroundedFactor | None:
        source, target = self.pattern.source, self.pattern.target
        degree = self.pattern.degrees(weights)
        # The heaviest node is grounded: the other pivots then keep most of their digits.
        ground = int(np.argmax(degree))
        full = np.diag(degree)
        np.subtract.at(full, (np.maximum(source, target), np.minimum(source, target)), weights)
        rest = np.delete(np.arange(degree.size), ground)
        matrix = np.asfortranarray(full[np.ix_(rest, rest)])
        cholesky, info = lapack.dpotrf(matrix, lower=1, overwrite_a=1)
        if info != 0:
            return None
        return GroundedFactor(
            ground, lambda r: np.asarray(lapack.dpotrs(cholesky, r, lower=1, overwrite_b=1)[0])
        )
