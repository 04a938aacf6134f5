"""Sparse LU of the grounded Laplacian (scipy's SuperLU): the reference for the other methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu

from thalweg._types import Array
from thalweg.laplacian.pattern import Pattern


@dataclass(frozen=True, eq=False)
class SuperLUAnalysis:
    """SuperLU cannot reuse its ordering: nothing is kept between factorisations."""

    direct: ClassVar[bool] = True
    pattern: Pattern
    relabelling: None = None

    def factor(self, weights: Array) -> SuperLUFactor | None:
        n, source, target = self.pattern.n_nodes, self.pattern.source, self.pattern.target
        off = sparse.coo_array((weights, (source, target)), shape=(n, n)).tocsr()
        off = off + off.T
        degree = np.asarray(off.sum(axis=1)).ravel()
        m = sparse.csc_array(sparse.diags_array(degree) - off)
        keep = np.delete(np.arange(n), int(np.argmax(degree)))
        try:
            lu = splu(
                sparse.csc_array(m[keep][:, keep]),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:  # SuperLU's word for a zero pivot
            return None
        return SuperLUFactor(keep, lu)


@dataclass(frozen=True, eq=False)
class SuperLUFactor:
    keep: NDArray[np.intp]
    lu: SuperLU

    def apply(self, r: Array, out: Array) -> None:
        out[:] = 0.0
        out[self.keep] = self.lu.solve(r[self.keep])
