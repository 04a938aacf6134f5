"""Sparse LU of the grounded Laplacian (scipy's SuperLU): the reference for the other methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from thalweg._types import Array
from thalweg.laplacian.pattern import GroundedFactor, Pattern


@dataclass(frozen=True, eq=False)
class SuperLUAnalysis:
    """SuperLU cannot reuse its ordering: nothing is kept between factorisations."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    relabelling: None = None

    def factor(self, weights: Array) -> GroundedFactor | None:
        degree = self.pattern.degrees(weights)
        ground = int(np.argmax(degree))
        m = sparse.csc_array(sparse.diags_array(degree) - self.pattern.weighted(weights))
        keep = np.delete(np.arange(degree.size), ground)
        try:
            lu = splu(
                sparse.csc_array(m[keep][:, keep]),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:  # SuperLU's word for a zero pivot
            return None
        return GroundedFactor(ground, lu.solve)
